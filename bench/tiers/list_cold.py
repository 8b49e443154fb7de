"""Read every manifest of a bucket: `python -m holdfast.bench.tiers.list_cold URL`.

`backup --all`, `verify`, `collect` and `rebuild` begin with this. It is a process of its own, so
that its memory can be measured. It prints one JSON object.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Sequence

from holdfast.bench.processes import usage_of
from holdfast.shared_fs.bucket.bucket import open_bucket
from holdfast.shared_fs.snapshots.manifest import open_manifests


def main(arguments: Sequence[str]) -> int:
    bucket = open_bucket(arguments[0])
    began_at = time.perf_counter()
    count = versions = image_bytes = 0
    for _, entry in open_manifests(bucket).entries():
        count += 1
        versions += len(entry.versions)
        image_bytes += sum(version.image_bytes for version in entry.versions)
    seconds = time.perf_counter() - began_at
    used = usage_of(os.getpid())
    told = {
        "stores": count,
        "versions": versions,
        "image_bytes": image_bytes,
        "seconds": seconds,
        "peak_rss_bytes": used.peak_rss_bytes,
        "received_bytes": bucket.usage.total().received_bytes,
    }
    print(json.dumps(told))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
