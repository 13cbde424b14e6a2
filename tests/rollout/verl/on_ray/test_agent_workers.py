"""Prompts of agent workers whose process dies, through Ray, TransferQueue and verl's replay buffer."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from typing import Any

import pytest

# A first test waits for Ray and the imports of verl, a minute and more on a busy machine.
pytestmark = [pytest.mark.verl, pytest.mark.usefixtures("imported_verl", "transfer_queue")]

SAMPLES = 2
"""Of each prompt, see `gated_worker`."""


@pytest.fixture
def gate() -> Any:
    from gated_worker import started_gate

    return started_gate()


@pytest.fixture
def crew(gate: Any) -> Iterator[Any]:
    from gated_worker import Crew

    crew = Crew(gate)
    yield crew
    crew.workers.close()


def kill(played: list[tuple[str, int, int]], uid: str) -> set[str]:
    """End the process that plays this prompt. Returns all prompts that it was playing."""
    process = [process for name, _, process in played if name == uid][-1]
    os.kill(process, signal.SIGKILL)
    return {name for name, _, each in played if each == process}


def test_the_prompts_of_a_dead_worker_and_no_others_are_played_again(crew: Any, gate: Any, ray_get: Any) -> None:
    from gated_worker import sample

    crew.issue("a", "b", "c", "d")
    played = ray_get(gate.seen.remote(4))
    assert {attempt for _, attempt, _ in played} == {0} and len({process for *_, process in played}) == 2
    ray_get(gate.open.remote("b"))
    died = kill(played, "d")
    assert len(died) == 2 and "b" not in died
    again = ray_get(gate.seen.remote(6))[4:]
    assert {(uid, attempt) for uid, attempt, _ in again} == {(uid, 1) for uid in died}
    assert {process for *_, process in again}.isdisjoint({process for *_, process in played})
    ray_get(gate.open.remote("a", "c", "d"))
    # All four groups, each with the samples of one attempt.
    assert sample(4) == sorted(f"{uid}_{session}_0" for uid in "abcd" for session in range(SAMPLES))
    assert sorted(crew.begun_again) == sorted(died) and crew.given_up == [] and crew.replaced == 1
    # The worker is as good as before.
    crew.issue("e", "f")
    ray_get(gate.open.remote("e", "f"))
    assert len(sample(2)) == 2 * SAMPLES and len(ray_get(gate.seen.remote(8))) == 8


@pytest.mark.full
def test_a_prompt_whose_worker_dies_again_is_given_up(crew: Any, gate: Any, ray_get: Any) -> None:
    from gated_worker import sample

    crew.issue("a", "b")
    kill(ray_get(gate.seen.remote(2)), "a")
    kill(ray_get(gate.seen.remote(3)), "a")
    ray_get(gate.open.remote("a", "b"))
    # verl takes a failed group into the batch, and the samples that it had written are gone.
    assert sample(2) == [f"b_{session}_0" for session in range(SAMPLES)]
    assert crew.given_up == [("a", 1)] and crew.replaced == 2


@pytest.fixture
def ray_get() -> Callable[[Any], Any]:
    import ray

    return lambda reference: ray.get(reference, timeout=60)
