"""Whatever an agent does, the trace holds what was sampled and rendered, and the trajectory has a defined outcome."""

from __future__ import annotations

import asyncio
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import anyio
import hostile_agents
import pytest
from clock import Clock
from hostile_agents import EDITS, KEPT, KEPT_TASKS, LET_GO, WAITING
from mcp.server.mcpserver import Context, MCPServer
from worlds import ROLE, play, saying

from mcp_rollout.gateway.errors import GatewayError
from mcp_rollout.rollout.formats import hermes
from mcp_rollout.rollout.loop.limits import Limits
from mcp_rollout.rollout.loop.turns import TrajectoryOver
from mcp_rollout.rollout.tokens.chatml import IM_END, ByteTokens
from mcp_rollout.rollout.trace.record import StopReason, Trace
from mcp_rollout.rollout.trace.store import read_traces
from mcp_rollout.rollout.types import Call

pytestmark = pytest.mark.anyio
TEXTS = [hermes.write(calls=[Call(name="bump", arguments={"by": number})]) for number in (1, 2)] + ["Three."]
A_MINUTE = Limits(response_tokens=20_000, wall_clock_s=60, agent_close_timeout_s=0.1)


@pytest.fixture
async def at_the_end(monkeypatch: pytest.MonkeyPatch) -> AbstractAsyncContextManager[None]:
    """Moves the clock to the end of the minute once the agent waits for ever."""
    WAITING.clear()
    return Clock(monkeypatch).passing(60, whenever=lambda: bool(WAITING) and bool(WAITING.pop()))


def world() -> MCPServer:
    """`bump` counts, `hang` does not return; the score is the count over ten."""
    server = MCPServer("world", log_level="ERROR")
    counts: dict[str, int] = {}

    def key(ctx: Context) -> str:
        return (ctx.request_context.meta or {})["mcp-rollout/trajectory"]

    @server.tool()
    async def bump(by: int, ctx: Context) -> int:
        """Add to the count."""
        counts[key(ctx)] = counts.get(key(ctx), 0) + by
        return counts[key(ctx)]

    @server.tool(name="score", meta={ROLE: "score"})
    async def score(messages: list[dict[str, Any]], ctx: Context) -> dict[str, Any]:
        return {"score": counts.get(key(ctx), 0) / 10}

    @server.tool()
    async def hang() -> str:
        """Never returns."""
        await anyio.sleep_forever()
        return ""

    return server


async def rolled_out(agent: str, directory: Path, *texts: str, limits: Limits | None = None, **arguments: Any) -> Trace:
    return await play(
        {"world": world()},
        saying(*(texts or TEXTS)),
        directory,
        limits=limits,
        agent={"use": f"hostile_agents:{agent}", "with": arguments},
        reward={"server": "world"},
    )


def failure(trace: Trace) -> tuple[str, str]:
    assert trace.stop_reason is StopReason.FAILED and trace.is_withdrawn and trace.reward is None
    assert trace.failure is not None
    return trace.failure.kind, trace.failure.message


def holds_only_what_was_sampled(trace: Trace, texts: list[str]) -> bool:
    """Whether the tokens in the loss are those of the policy's texts, in order."""
    sampled = [token for text in texts for token in ByteTokens().encode(text + IM_END)]
    return [token for token, mask in zip(trace.response_ids, trace.loss_mask, strict=True) if mask] == sampled


async def test_an_agent_like_the_built_in_one_makes_the_same_trace(tmp_path: Path) -> None:
    own = await rolled_out("Plain", tmp_path / "own")
    built_in = await play({"world": world()}, saying(*TEXTS), tmp_path / "built-in", reward={"server": "world"})
    for part in ("prompt_ids", "response_ids", "loss_mask", "logprobs", "spans", "messages", "stop_reason", "reward"):
        assert getattr(own, part) == getattr(built_in, part), part
    assert own.agent is not None and built_in.agent is None
    assert list(read_traces(tmp_path / "own")) == [own]


async def test_what_an_agent_is_given_is_a_copy(tmp_path: Path) -> None:
    trace = await rolled_out("EditsCopies", tmp_path, TEXTS[0], "One.")
    assert trace.stop_reason is StopReason.ANSWERED and trace.failure is None
    event = trace.turns[0].tools[0]
    assert (event.arguments, event.text, event.reward) == ({"by": 1}, "1", None)
    assert trace.messages[1]["tool_calls"][0]["function"]["arguments"] == {"by": 1}
    assert trace.reward is not None and trace.reward.score == 0.1
    assert holds_only_what_was_sampled(trace, [TEXTS[0], "One."])


@pytest.mark.parametrize("edit", EDITS)
async def test_a_trace_whose_ids_and_mask_do_not_fit_together_is_withdrawn(tmp_path: Path, edit: str) -> None:
    kind, message = failure(await rolled_out("Tampers", tmp_path, edit=edit))
    assert kind == "agent_error" and message.startswith("the agent wrote into the trace")


async def test_turns_that_an_agent_keeps_are_worth_nothing_after_the_end(tmp_path: Path) -> None:
    KEPT.clear()
    trace = await rolled_out("Keeper", tmp_path)
    before = trace.context.copy(), len(trace.turns), len(trace.messages)
    (turns,) = KEPT
    for method in (turns.generate, turns.call_tools, turns.ask_user, lambda: turns.say("More.")):
        with pytest.raises(TrajectoryOver):
            await method()
    with pytest.raises(GatewayError):  # the session itself, where the agent reached for it
        await turns._session.call("bump", {"by": 1})
    assert (trace.context, len(trace.turns), len(trace.messages)) == before


@pytest.mark.parametrize("agent", ["OnceMore", "Plain"])
async def test_no_turn_is_taken_beyond_the_limits_and_what_was_played_is_scored(tmp_path: Path, agent: str) -> None:
    limits = Limits(response_tokens=20_000, assistant_turns=1)
    trace = await rolled_out(agent, tmp_path, limits=limits)
    assert trace.stop_reason is StopReason.TURN_LIMIT and len(trace.turns) == 1
    assert trace.reward is not None and trace.reward.score == 0.1


async def test_an_agent_that_goes_on_after_the_end_is_stopped(tmp_path: Path) -> None:
    limits = Limits(response_tokens=20_000, assistant_turns=2, agent_close_timeout_s=0.1)
    with anyio.fail_after(20):
        trace = await rolled_out("NeverEnough", tmp_path, limits=limits)
    assert trace.stop_reason is StopReason.TURN_LIMIT and trace.failure is None
    assert len(trace.turns) == 2 and holds_only_what_was_sampled(trace, TEXTS[:2])


async def test_an_agent_that_catches_every_cancellation_is_left_behind(
    tmp_path: Path, at_the_end: AbstractAsyncContextManager[None]
) -> None:
    with anyio.fail_after(100):
        async with at_the_end:
            trace = await rolled_out("Stubborn", tmp_path, limits=A_MINUTE)
    kind, message = failure(trace)
    assert kind == "agent_timeout" and "0.1 s" in message
    let_go()


def let_go() -> None:
    LET_GO.set()
    KEPT_TASKS.pop().cancel()


async def test_a_cancellation_at_the_time_limit_that_the_agent_catches_is_still_the_time_limit(
    tmp_path: Path, at_the_end: AbstractAsyncContextManager[None]
) -> None:
    async with at_the_end:
        trace = await rolled_out("Swallows", tmp_path, limits=Limits(response_tokens=20_000, wall_clock_s=60))
    assert trace.stop_reason is StopReason.TIME_LIMIT and trace.failure is None
    assert trace.reward is not None and trace.reward.score == 0.1


@pytest.mark.parametrize("agent", ["Swallows", "Stubborn"])
@pytest.mark.parametrize("native", [False, True])
async def test_a_cancellation_from_outside_is_never_lost(tmp_path: Path, agent: str, native: bool) -> None:
    limits = Limits(response_tokens=20_000, agent_close_timeout_s=0.1)
    with anyio.fail_after(20):
        if native:
            rolling = asyncio.ensure_future(rolled_out(agent, tmp_path, limits=limits))
            await anyio.wait_all_tasks_blocked()
            rolling.cancel()
            with pytest.raises(asyncio.CancelledError):
                await rolling
        else:
            with anyio.CancelScope() as outside:
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(lambda: rolled_out(agent, tmp_path, limits=limits))
                    await anyio.wait_all_tasks_blocked()
                    outside.cancel()
            assert outside.cancelled_caught
    (trace,) = read_traces(tmp_path)
    assert failure(trace)[0] == "cancelled"
    if agent == "Stubborn":
        let_go()


@pytest.mark.parametrize(
    ("what", "said"),
    [
        ("value", "the agent raised ValueError: the answer has no number"),
        ("group", "the agent raised ValueError: the answer has no number"),
        ("world", "the agent raised GatewayError"),
        ("engine", "the agent raised EngineError"),
        ("cancelled", "the agent raised CancelledError"),
        ("exit", "the agent raised SystemExit: 3"),
    ],
)
async def test_an_agents_exception_withdraws_the_trajectory_by_name(tmp_path: Path, what: str, said: str) -> None:
    trace = await rolled_out("Raises", tmp_path, what=what)
    kind, message = failure(trace)
    assert kind == "agent_error" and said in message
    assert trace.turns[0].tools[0].text == "1"  # what was played is on record


async def test_an_engine_that_fails_withdraws_the_trajectory_even_if_the_agent_catches_it(tmp_path: Path) -> None:
    from mcp_rollout.rollout.errors import EngineError

    class Failing:
        async def generate(self, ids: list[int], *, max_tokens: int, turn: int) -> Any:
            raise EngineError("the engine is gone")

    async def policy_for(_: object) -> Any:
        return Failing()

    trace = await play({"world": world()}, policy_for, tmp_path, agent="hostile_agents:Blames")
    assert failure(trace) == ("engine_error", "the engine is gone")


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ("ask nothing", "ask_user() needs an environment with a user"),
        ("call nothing", "call_tools() needs unanswered calls"),
        ("generate twice", "generate() needs a message"),
        ("leave calls", "say() would leave calls unanswered"),
        ("ask with calls", "ask_user() needs an environment with a user"),
        ("call twice", "call_tools() needs unanswered calls"),
        ("say nothing", "say() needs a text"),
        ("say half", "say() needs a text, without halves of surrogate pairs"),
    ],
)
async def test_a_method_without_a_meaning_is_an_agents_error(tmp_path: Path, how: str, said: str) -> None:
    kind, message = failure(await rolled_out("Misuses", tmp_path, how=how))
    assert kind == "agent_error" and message.startswith(said)


async def test_two_methods_at_a_time_are_an_agents_error(tmp_path: Path) -> None:
    kind, message = failure(await rolled_out("Twice", tmp_path))
    assert kind == "agent_error" and "at a time" in message


async def test_an_agent_that_returns_while_its_calls_are_under_way_is_withdrawn(tmp_path: Path) -> None:
    hang = hermes.write(calls=[Call(name="hang")])
    kind, message = failure(await rolled_out("Leaves", tmp_path, hang))
    assert kind == "agent_error" and message == "the agent returned while a method of its turns was running"
    for left in hostile_agents.KEPT_TASKS:
        left.cancel()


async def test_an_agent_without_a_turn_is_withdrawn(tmp_path: Path) -> None:
    assert failure(await rolled_out("Idle", tmp_path)) == ("agent_error", "the agent took no turn")
