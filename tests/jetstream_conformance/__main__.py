"""`python -m tests.jetstream_conformance`; see `make conformance-jetstream`.

Exit codes: 0 all is as expected; 1 something is not; 2 wrong usage; 3 a suite cannot be had here,
and everything else is as expected.
"""

from __future__ import annotations

import sys

if __name__ == "__main__":
    # The processes of the clusters import this module too, under another name.
    from tests.jetstream_conformance.command import main

    sys.exit(main())
