"""Play a trajectory by a program: its seat, its addresses, the program beside them, and what its end means."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import anyio
import structlog

from gateway.errors import ConfigError
from rollout.environment.config import Environment
from rollout.environment.sections import Strategy
from rollout.errors import AgentError
from rollout.loop.limits import Limits
from rollout.loop.turns import TrajectoryOver, Turns
from rollout.programs.face import Addresses, Face
from rollout.programs.process import Homes
from rollout.programs.seat import Seat

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Ended:
    """How a program ended that was not made to."""

    problem: str = ""
    """What it ended with, if that was an error."""
    is_killed: bool = False
    """Whether a signal of others ended it: no doing of the policy's."""


async def play_program(
    turns: Turns, run: Callable[[Addresses, Homes], Awaitable[Ended]], *, events_s: float, close_s: float
) -> None:
    """Play the trajectory by what `run` does with the addresses, until it returns or the trajectory is over.

    Args:
        events_s: As in `Face.placed`.
        close_s: How long `run` may go on once a limit has ended the trajectory; then it is cancelled.

    Raises:
        AgentError: the program took no turn, began without the world's tools, or was killed.
        TrajectoryOver: see `Turns`.
    """
    seat, ended, has_ended = Seat(turns), list[Ended](), anyio.Event()

    async def beside(addresses: Addresses, homes: Homes) -> None:
        ended.append(await run(addresses, homes))
        seat.end()
        has_ended.set()

    try:
        # The endpoint ends after the program: what the program still asks is answered, by a refusal.
        async with (
            Face.placed(seat, events_s=events_s) as (addresses, homes),
            anyio.create_task_group() as tasks,
        ):
            tasks.start_soon(beside, addresses, homes)
            try:
                await seat.serve(tasks)
            except TrajectoryOver:
                # Its requests are refused now, with which most programs end by themselves.
                with anyio.move_on_after(close_s):
                    await has_ended.wait()
                raise
    finally:
        seat.close()
    (how,) = ended
    if seat.ignored:
        log.debug("program.parameters_ignored", trajectory=turns.trajectory, names=sorted(seat.ignored))
    if not how.problem and turns.taken:
        return
    problem = how.problem or "the program ended"
    refused = f"; its last request was refused: {seat.refused}" if seat.refused else ""
    if how.is_killed or not turns.taken:
        raise AgentError(f"{problem}{'' if turns.taken else ', without a turn'}{refused}")
    turns.note_end(problem + refused)


def context_tokens(limits: Limits) -> int:
    """Room of the model, for a program that summarises its conversation before it is full."""
    return limits.context_tokens or (limits.prompt_tokens or 0) + limits.response_tokens


def check_chain(environment: Environment, use: str) -> None:
    """Raises ConfigError where an environment asks of a program what it cannot do."""
    file = environment.file
    if environment.strategy.use is not Strategy.CHAIN:
        problem = f"{use} plays chains only: a program's state can be neither copied nor cut"
        raise ConfigError(problem, file=file, key="strategy.use", remedy="set it to chain")
    if environment.user is not None:
        problem = f"{use} answers once, and the environment has a user who replies"
        raise ConfigError(problem, file=file, key="user", remedy="leave it out, with the task in the prompt")
