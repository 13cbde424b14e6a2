"""Clauses about whole trajectories and the worlds that they leave, one function each; see `clauses`."""

from __future__ import annotations

from collections.abc import Sequence

from mcp_rollout.gateway.errors import HarnessError
from mcp_rollout.gateway.leases.session import Session
from mcp_rollout.gateway.types import Role
from mcp_rollout.rollout.contract import calls
from mcp_rollout.rollout.contract.calls import Turn
from mcp_rollout.rollout.contract.clauses import ClauseFailed, ClauseUntested, expect_same
from mcp_rollout.rollout.contract.play import CheckSetup, Play, view
from mcp_rollout.rollout.environment.config import DEFAULT_ASSISTANT_TURNS
from mcp_rollout.rollout.environment.sections import LimitsConfig
from mcp_rollout.rollout.trace.outcome import ROUNDING


async def reset(setup: CheckSetup) -> str:
    for item in setup.items:
        seen: list[object] = []
        for gateway in (setup.gateway, setup.gateway, setup.elsewhere):
            async with setup.lease(item, gateway) as session:
                world = await view(setup.environment, session, item)
                # Nothing brings back a world without a reset, which even a tool that says it only reads may change.
                if setup.has(session, Role.RESET):
                    await setup.renew(session, item)  # a reset in the middle of a trajectory
                    again = await view(setup.environment, session, item)
                    expect_same(world, again, f"task {item.task!r}, reset twice in a trajectory,")
            seen.append([world, await setup.solo(item, gateway)])
        expect_same(seen[0], seen[1], f"task {item.task!r}, reset in another trajectory,")
        expect_same(seen[0], seen[2], f"task {item.task!r}, reset in another process,")
    return f"{len(setup.items)} tasks, each in three trajectories and two processes"


async def expert(setup: CheckSetup) -> str:
    for item in setup.items:
        async with setup.lease(item) as session:
            turns = await setup.expert(session, item)
            if turns is None:
                raise ClauseUntested("no expert tool on a tasks.server")
            play = Play(setup.environment, session, item, turns)
            await play.begin()
            await play.finish()
            found = await play.score()
        if problem := beyond_limits(turns, setup.environment.limits):
            raise ClauseFailed(f"task {item.task!r}: {problem}")
        # A tool may refuse a call whose arguments fit, and finding that out may be the solution: the score decides.
        if play.misfits:
            raise ClauseFailed(f"task {item.task!r}: a call of the expert cannot be made: {play.misfits[0]}")
        least = setup.environment.tasks.expert_reward if setup.environment.tasks else 1.0
        if found is not None and found.score < least - ROUNDING:
            problem = f"the expert scores {found.score:g} of {least:g}, parts {found.parts}"
            raise ClauseFailed(f"task {item.task!r}: {problem}")
    return f"{len(setup.items)} tasks"


def beyond_limits(turns: Sequence[Turn], limits: LimitsConfig) -> str | None:
    """Describe how a script exceeds the environment's own limits; None if it keeps them."""
    made = [len(turn.calls or ()) for turn in turns]
    for needed, allowed, key in (
        (len(turns), limits.assistant_turns or DEFAULT_ASSISTANT_TURNS, "assistant_turns"),
        (sum(made), limits.tool_calls, "tool_calls"),
        (max(made, default=0), limits.parallel_calls, "parallel_calls"),
        (made.count(0), limits.user_turns, "user_turns"),
    ):
        if allowed is not None and needed > allowed:
            return f"the expert needs {needed}, limits.{key} allows {allowed}"
    return None


async def isolation(setup: CheckSetup) -> str:
    first, second = setup.items[0], setup.items[-1]
    alone = [await setup.solo(first), await setup.solo(second)]
    async with setup.lease(first) as one, setup.lease(second) as other:
        plays = [await setup.play(one, first), await setup.play(other, second)]
        going = [True, True]
        # Turn by turn: one after the other, a state that all trajectories share could go unnoticed.
        while any(going):
            going = [await play.step() for play in plays]
        together = [await setup.outcome(play) for play in plays]
    for item, solo, mixed in zip((first, second), alone, together, strict=True):
        expect_same(solo, mixed, f"task {item.task!r}, alone and taking turns with another,")
    return "two trajectories, turn by turn"


async def release(setup: CheckSetup) -> str:
    item = setup.items[0]
    async with setup.lease(item) as session:
        if not setup.has(session, Role.RESET, Role.RELEASE):
            raise ClauseUntested("no server has a reset or release tool")
        fresh = await view(setup.environment, session, item)
        play = await setup.play(session, item)
        await play.step()
        for server in setup.environment.servers:
            # Twice, since a release whose answer was lost may be called again.
            for _ in range(2):
                if session.has(Role.RELEASE, server):
                    await calls.release(session, server)
        await setup.renew(session, item)
        expect_same(fresh, await view(setup.environment, session, item), "after release and reset the world")
    return "twice, then reset"


async def snapshot(setup: CheckSetup) -> str:
    item = setup.items[0]
    async with setup.lease(item) as session, setup.lease(item) as other:
        both = {Role.SNAPSHOT, Role.RESTORE}
        servers = [name for name in setup.environment.servers if all(session.has(role, name) for role in both)]
        if not servers:
            raise ClauseUntested("no server has both snapshot and restore")
        before = await view(setup.environment, session, item)
        states = {server: await calls.snapshot(session, server) for server in servers}
        play = await setup.play(session, item)
        await play.finish()
        # In another trajectory too, since a branch restores its root's snapshot.
        for name, leased in (("it", session), ("another trajectory", other)):
            for server in servers:
                await calls.restore(leased, server, states[server])
            expect_same(before, await view(setup.environment, leased, item), f"restored in {name}, the world")
        if setup.environment.user is not None and setup.environment.user.server in servers:
            await _expect_next_reply(session, setup.environment.user.server, play.replies)
            await _expect_next_reply(other, setup.environment.user.server, 0)
    return f"restored in its own and in another trajectory: {', '.join(servers)}"


async def _expect_next_reply(session: Session, server: str, given: int) -> None:
    """After a restore the user still gives the reply that follows the `given` ones."""
    try:
        await calls.reply(session, server, given + 1, "Hello.")
    except HarnessError as error:
        problem = f"restored after {given} replies, reply {given + 1} was not answered: {error}"
        raise ClauseFailed(problem) from error
