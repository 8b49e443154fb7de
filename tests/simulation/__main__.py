"""Many seeds in parallel.

    make simulate SEEDS=200            fresh seeds
    make simulate SEED=42 TRACE=1      one again, with everything that happened
    make simulate SEEDS=200 TIERS=1    with a bucket, and stores that go cold
    make simulate SEEDS=200 WIDE=1     with transactions, queues, large values and patterns
    make simulate SEEDS=200 GRANTS=1   with tokens, which expire, are revoked and renewed
    make simulate SEEDS=200 JETSTREAM=1  gateways, and applications of JetStream

Exits with 1 if a seed fails, and prints the command that runs it again.
"""

from __future__ import annotations

import argparse
import functools
import multiprocessing
import os
import secrets
import sys
import time
from collections.abc import Sequence
from typing import Final

from tests.simulation.jetstream.planted import JETSTREAM_PLANTED
from tests.simulation.planted import PLANTED
from tests.simulation.run import RUN_SECONDS, run_seed

#: What a run may have, by the name of the option.
_MODES: Final = ("tiers", "wide", "grants", "jetstream", "roles")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run seeds; return 1 if one fails."""
    parser = argparse.ArgumentParser(
        prog="simulation", description="Run seeds of the deterministic simulation."
    )
    parser.add_argument("--seeds", type=int, help="how many; default: 1 with --seed, else 50")
    parser.add_argument("--seed", type=int, help="the first one; default: a fresh one")
    parser.add_argument("--fault", help="let only this happen, see nemesis.py; default: any")
    planted = [*PLANTED, *JETSTREAM_PLANTED]
    parser.add_argument("--planted", choices=planted, help="break the shipped code like this")
    parser.add_argument("--limited", action="store_true", help="stores have limits, values a ttl")
    parser.add_argument(
        "--tiers", action="store_true", help="with a bucket, and stores that go cold"
    )
    parser.add_argument(
        "--wide", action="store_true", help="transactions, queues, large values, patterns too"
    )
    parser.add_argument("--grants", action="store_true", help="the cluster asks for tokens")
    parser.add_argument("--jetstream", action="store_true", help="gateways and their applications")
    parser.add_argument(
        "--roles", action="store_true", help="servers own stores, or do cold work; needs --tiers"
    )
    parser.add_argument("--seconds", type=float, default=RUN_SECONDS, help="of faults; default: 20")
    parser.add_argument("--trace", action="store_true", help="print everything that happens")
    options = parser.parse_args(arguments)
    if options.limited and options.grants:
        # Limits are configured by a client that has no token yet.
        parser.error("--limited and --grants do not go together")
    if options.roles and not options.tiers:
        parser.error("--roles needs --tiers")
    first = secrets.randbelow(1 << 31) if options.seed is None else options.seed
    seeds = options.seeds or (50 if options.seed is None else 1)
    started = time.monotonic()
    failed = 0
    processes = min(seeds, os.cpu_count() or 1)
    run = functools.partial(
        run_seed,
        fault=options.fault,
        planted=options.planted,
        limited=options.limited,
        tiers=options.tiers,
        wide=options.wide,
        grants=options.grants,
        jetstream=options.jetstream,
        roles=options.roles,
        seconds=options.seconds,
    )
    with multiprocessing.get_context("spawn").Pool(processes, maxtasksperchild=50) as pool:
        for result in pool.imap_unordered(run, range(first, first + seeds)):
            if options.trace:
                print("\n".join(result.trace))
            if result.violations:
                failed += 1
                print(f"seed {result.seed} FAILED; again: {_command(result.seed, options)}")
                for violation in result.violations[:10]:
                    print(f"    {violation}")
            elif seeds == 1:
                print(f"seed {result.seed}: well, {result.acknowledged} operations answered")
            sys.stdout.flush()
    seconds = time.monotonic() - started
    print(
        f"{seeds - failed} of {seeds} seeds from {first} on are well ({seconds:.1f} s)",
        flush=True,
    )
    return 1 if failed else 0


def _command(seed: int, options: argparse.Namespace) -> str:
    is_whole = options.seconds == RUN_SECONDS
    if options.fault is None and options.planted is None and not options.limited and is_whole:
        return f"make simulate SEED={seed}" + "".join(
            f" {name.upper()}=1" for name in _MODES if getattr(options, name)
        )
    words = [f"{sys.executable} -m tests.simulation --seed {seed}"]
    for name in ("fault", "planted"):
        if getattr(options, name) is not None:
            words.append(f"--{name} {getattr(options, name)}")
    words += [f"--{name}" for name in ("limited", *_MODES) if getattr(options, name)]
    words += [] if is_whole else [f"--seconds {options.seconds:g}"]
    return " ".join(words)


if __name__ == "__main__":
    sys.exit(main())
