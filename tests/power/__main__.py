"""Every crash point, in parallel.

    make power                                      all scenarios
    make power SCENARIO=take_over                   one
    make power SCENARIO=take_over CUTS="87/all/host/756"   one run again, with its last events

Exits with 1 if a run fails, and prints the command that repeats it.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import secrets
import time
from collections.abc import Sequence

from tests.power.choice import every_cut
from tests.power.cluster import Cut
from tests.power.run import run, run_job
from tests.power.scenarios import SCENARIOS


def main(arguments: Sequence[str] | None = None) -> int:
    """Run everything, or one cut again; return 1 if a run fails."""
    parser = argparse.ArgumentParser(
        prog="power", description="Cut the power at every change of a file."
    )
    parser.add_argument("--scenario", choices=SCENARIOS, help="default: all of them")
    parser.add_argument("--seed", type=int, help="of what survives; default: a fresh one")
    parser.add_argument("--cuts", nargs="+", type=Cut.parse, help="of one run, as it was printed")
    options = parser.parse_args(arguments)
    if options.cuts:
        result = run(options.scenario or parser.error("which scenario?"), *options.cuts)
        print("\n".join(result.events))
        print(result)
        return 1 if result.violation else 0
    seed = secrets.randbelow(1 << 16) if options.seed is None else options.seed
    failed = 0
    with multiprocessing.get_context("spawn").Pool(os.cpu_count(), maxtasksperchild=2000) as pool:
        for scenario in [options.scenario] if options.scenario else SCENARIOS:
            started = time.monotonic()
            jobs = [(scenario, *cuts) for cuts in every_cut(scenario, seed)]
            wrong = [each for each in pool.imap_unordered(run_job, jobs, 16) if each.violation]
            seconds = time.monotonic() - started
            print(
                f"{scenario}: {len(jobs)} runs, {len(wrong)} failed ({seconds:.0f} s)", flush=True
            )
            for result in wrong[:5]:
                cuts_text = " ".join(map(str, result.cuts))
                print(
                    f'    make power SCENARIO={scenario} CUTS="{cuts_text}"\n    {result.violation}'
                )
            failed += len(wrong)
    return 1 if failed else 0


if __name__ == "__main__":
    raise SystemExit(main())
