"""JetStream by several gateways keeps its promises, whoever dies, hangs or is cut off."""

from __future__ import annotations

import pytest

from tests.simulation.jetstream.planted import JETSTREAM_PLANTED
from tests.simulation.run import RUN_SECONDS, run_seed
from tests.support.effort import tries

_SEEDS = range(1, 1 + tries(1, 1, 5))
_SECONDS = tries(4.0, 6.0, RUN_SECONDS)
#: What found a bug once: the seed, the fault that was repeated, and for how long. Only a thorough
#: run has them, since what a seed does changes with the code.
_REGRESSIONS = {
    (6, "stall_gateway", 8.0): "a stream that was lost while it was begun, and wanted again, was "
    "served by nobody",
    (5, None, 8.0): "the answer to a gateway that asked for shards failed with a traceback",
    (108, None, 6.0): "streams whose gateway could not read the catalogue were served by nobody",
}
#: The seed that finds each planted bug, the fault that is repeated to that end, and for how long.
_PLANTED_SEEDS = {
    "ack_before_the_store": (1, "kill_after_an_answer", 4.0),
    "forget_message_ids": (1, "kill_before_an_answer", 3.0),
    "serve_by_the_epoch_before": (2, "stall_gateway", 5.0),
    "write_without_the_epoch": (3, "stall_gateway", 3.0),
    "confirm_acks_before_they_are_recorded": (1, "kill_after_an_answer", 4.0),
    "deliver_without_asking": (2, "pause_gateway", 4.0),
    "record_the_position_apart": (3, "kill_gateway", 4.0),
    "answer_through_pipes_past_the_gate": (3, "isolate", 5.0),
    "republish_with_the_answers": (3, "isolate", 5.0),
}
#: Other seeds, from 1 on, that are tried if what that seed does has changed with the code.
_OTHER_SEEDS = 8


@pytest.mark.parametrize("seed", _SEEDS)
def test_gateways_that_die_hang_and_are_cut_off_keep_the_promises_of_jetstream(seed: int) -> None:
    result = run_seed(seed, jetstream=True, seconds=_SECONDS)
    again = f"seed {seed}; again: make simulate SEED={seed} JETSTREAM=1"
    assert not result.violations, "\n".join([again, *result.violations[:20]])
    assert result.acknowledged > 50, f"next to nothing was answered with {again}"


@pytest.mark.parametrize(("seed", "fault", "seconds"), tries([], [], list(_REGRESSIONS)))
def test_what_a_seed_found_once_is_mended(seed: int, fault: str | None, seconds: float) -> None:
    result = run_seed(seed, fault, jetstream=True, seconds=seconds)
    assert not result.violations, "\n".join(result.violations[:20])


@pytest.mark.parametrize("bug", list(JETSTREAM_PLANTED)[: tries(2, 9, 9)])
def test_a_bug_planted_in_the_gateway_is_found(bug: str) -> None:
    first, fault, seconds = _PLANTED_SEEDS[bug]
    seeds = [first, *(seed for seed in range(1, _OTHER_SEEDS + 1) if seed != first)]
    assert any(
        run_seed(seed, fault, planted=bug, jetstream=True, seconds=seconds).violations
        for seed in seeds
    ), f"{bug} is not found within {len(seeds)} seeds"


def test_a_seed_with_gateways_replays_to_the_byte() -> None:
    first, second = (run_seed(5, jetstream=True, seconds=1.5) for _ in range(2))
    assert first.trace == second.trace
