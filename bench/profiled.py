"""Run a module under cProfile: `python -m holdfast.bench.profiled OUT MODULE ARGUMENT...`.

It writes OUT.prof (for pstats) and OUT.txt (the most expensive functions) when the module's `main`
returns or exits, so a server has to be stopped by a signal that it handles. It covers only the main
thread, which runs a server's event loop; the work of other threads shows as waiting. The program
becomes about twice as slow."""

from __future__ import annotations

import cProfile
import io
import pstats
import sys
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Final

_TOP_FUNCTIONS: Final = 40


def main(arguments: Sequence[str]) -> int:
    """Run `MODULE.main(ARGUMENTS)` and return its exit code. `MODULE` may be a package with
    a `__main__`."""
    out, name, *rest = arguments
    module = import_module(f"{name}.__main__")
    profile = cProfile.Profile()
    try:
        return int(profile.runcall(module.main, rest))
    finally:
        write_profile(profile, Path(out))


def write_profile(profile: cProfile.Profile, out: Path) -> None:
    """Write a profile to OUT.prof and OUT.txt."""
    out.parent.mkdir(parents=True, exist_ok=True)
    profile.dump_stats(out.with_name(f"{out.name}.prof"))
    text = io.StringIO()
    stats = pstats.Stats(profile, stream=text)
    for order in (pstats.SortKey.TIME, pstats.SortKey.CUMULATIVE):
        stats.sort_stats(order).print_stats(_TOP_FUNCTIONS)
    out.with_name(f"{out.name}.txt").write_text(text.getvalue())


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
