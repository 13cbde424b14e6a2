"""What happens in a turn, and how a trajectory ends: real servers in process, a scripted policy, a real tokenizer."""

from pathlib import Path
from typing import Any

import anyio
import pytest
from mcp.server.mcpserver import Context, MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from worlds import ROLE, environment, opened, play, saying, task

from mcp_rollout.rollout.environment.task import Origin
from mcp_rollout.rollout.formats import hermes
from mcp_rollout.rollout.loop.limits import Limits
from mcp_rollout.rollout.loop.trajectory import roll_out
from mcp_rollout.rollout.tokens.chatml import IM_END, ByteTokens
from mcp_rollout.rollout.trace.record import SpanKind, StopReason, Trace
from mcp_rollout.rollout.trace.store import TraceStore, read_traces
from mcp_rollout.rollout.types import Call, Completion, Policy

pytestmark = pytest.mark.anyio
TOKENS = ByteTokens()


def calling(*calls: tuple[str, dict[str, Any]], thinking: str = "") -> str:
    return hermes.write(thinking=thinking, calls=[Call(name=name, arguments=arguments) for name, arguments in calls])


def counter_server() -> MCPServer:
    """`bump` counts per trajectory, `fail` says no; the score is the count over ten."""
    server = MCPServer("counter", log_level="ERROR")
    counts: dict[str, int] = {}

    def key(ctx: Context) -> str:
        return (ctx.request_context.meta or {})["mcp-rollout/trajectory"]

    @server.tool(name="reset", meta={ROLE: "reset"}, structured_output=False)
    async def reset(task: str, seed: int, ctx: Context) -> str:
        counts[key(ctx)] = 0
        return "{}"

    @server.tool()
    async def bump(by: int, ctx: Context) -> int:
        """Add to the count."""
        counts[key(ctx)] += by
        return counts[key(ctx)]

    @server.tool()
    async def fail() -> int:
        """Always refuses."""
        raise ToolError("not today")

    @server.tool(name="score", meta={ROLE: "score"})
    async def score(messages: list[dict[str, Any]], ctx: Context) -> dict[str, Any]:
        return {"score": counts[key(ctx)] / 10, "parts": {"count": float(counts[key(ctx)])}}

    return server


def user_server(replies: list[tuple[str, bool]]) -> MCPServer:
    server = MCPServer("user", log_level="ERROR")

    @server.tool(name="start", meta={ROLE: "start"})
    async def start() -> dict[str, Any]:
        return {"message": "Hello, please count."}

    @server.tool(name="reply", meta={ROLE: "reply"})
    async def reply(seq: int, message: str) -> dict[str, Any]:
        text, done = replies[seq - 1]
        return {"message": text, "done": done, "reward": 0.1}

    return server


SCORED = {"reward": {"server": "counter", "parts": ["count"]}}


async def test_sampled_ids_enter_the_trace_as_sampled_with_mask_one(tmp_path: Path) -> None:
    texts = [calling(("bump", {"by": 2}), thinking="hm"), "Two."]
    trace = await play({"counter": counter_server()}, saying(*texts), tmp_path)
    sampled = [token for text in texts for token in TOKENS.encode(text + IM_END)]
    masked = zip(trace.response_ids, trace.loss_mask, strict=True)
    assert [token for token, mask in masked if mask] == sampled
    thoughts = [span for span in trace.spans if span.kind is SpanKind.THINKING]
    assert [TOKENS.decode(trace.response_ids[span.start : span.end]) for span in thoughts] == ["<think>\nhm\n</think>"]


async def test_each_context_is_a_prefix_of_the_next(tmp_path: Path) -> None:
    seen: list[list[int]] = []
    script = [calling(("bump", {"by": 1})), calling(("fail", {})), "Done."]

    class Watching:
        async def generate(self, ids: list[int], *, max_tokens: int, turn: int) -> Completion:
            seen.append(list(ids))
            sampled = TOKENS.encode(script[turn] + IM_END)
            return Completion(ids=sampled, logprobs=[0.0] * len(sampled))

    async def policy_for(_: object) -> Policy:
        return Watching()

    trace = await play({"counter": counter_server()}, policy_for, tmp_path)
    for earlier, later in zip(seen, [*seen[1:], trace.context], strict=True):
        assert later[: len(earlier)] == earlier


async def test_parallel_calls_are_in_flight_together_and_keep_their_order(tmp_path: Path) -> None:
    server = MCPServer("meet", log_level="ERROR")
    arrived = {"a": anyio.Event(), "b": anyio.Event()}

    @server.tool()
    async def meet(me: str, other: str) -> str:
        """Returns once both are here."""
        arrived[me].set()
        await arrived[other].wait()
        return me

    policy = saying(calling(("meet", {"me": "a", "other": "b"}), ("meet", {"me": "b", "other": "a"})), "Met.")
    with anyio.fail_after(20):
        trace = await play({"meet": server}, policy, tmp_path)
    assert [event.text for event in trace.turns[0].tools] == ["a", "b"]


async def test_a_user_is_answered_until_done_and_its_rewards_count(tmp_path: Path) -> None:
    servers = {"counter": counter_server(), "user": user_server([("More.", False), ("Thanks.", True)])}
    policy = saying(calling(("bump", {"by": 1})), "One.", "Still one.")
    trace = await play(servers, policy, tmp_path, user={"server": "user"}, **SCORED)
    assert trace.stop_reason is StopReason.USER_DONE
    assert [turn.user.seq for turn in trace.turns if turn.user] == [1, 2]
    assert trace.messages[-1] == {"role": "user", "content": "Thanks."}
    assert trace.reward is not None and trace.reward.score == pytest.approx(0.1 + 0.2)


async def test_the_last_turn_still_acts_on_the_world(tmp_path: Path) -> None:
    limits = Limits(response_tokens=20_000, assistant_turns=2)
    policy = saying(*[calling(("bump", {"by": 4}))] * 5)
    trace = await play({"counter": counter_server()}, policy, tmp_path, limits=limits, **SCORED)
    assert trace.stop_reason is StopReason.TURN_LIMIT and trace.stop_reason.is_truncated
    assert len(trace.turns) == 2
    assert trace.reward is not None and trace.reward.score == 0.8
    assert trace.loss_mask[-1] == 1  # nothing is rendered that no generation would read


async def test_the_token_budget_is_never_exceeded(tmp_path: Path) -> None:
    for budget in (40, 100, 150, 200, 300):
        limits = Limits(response_tokens=budget)
        policy = saying(*[calling(("bump", {"by": 1}))] * 10)
        trace = await play({"counter": counter_server()}, policy, tmp_path / str(budget), limits=limits)
        assert trace.stop_reason is StopReason.TOKEN_LIMIT
        assert 0 < len(trace.response_ids) <= budget


async def test_a_straggler_keeps_its_whole_turns_and_is_scored(tmp_path: Path) -> None:
    server = counter_server()

    @server.tool()
    async def hang() -> str:
        """Never returns."""
        await anyio.sleep_forever()
        return ""

    limits = Limits(response_tokens=20_000, wall_clock_s=1.0)
    policy = saying(calling(("bump", {"by": 3})), calling(("bump", {"by": 1}), ("hang", {}), ("hang", {})))
    row = task(prompt=({"role": "system", "content": "Count."}, {"role": "user", "content": "Begin."}))
    trace = await play({"counter": server}, policy, tmp_path, limits=limits, row=row, **SCORED)
    assert trace.stop_reason is StopReason.TIME_LIMIT
    assert trace.turns[0].tools[0].text == "3"
    assert ["No answer" in event.text for event in trace.turns[1].tools] == [False, True, True]
    assert trace.reward is not None and trace.reward.score == 0.4
    # What may have taken effect is on record, as an event and as a message, and the opening is the opening.
    roles = ["system", "user", "assistant", "tool", "assistant", "tool", "tool", "tool"]
    assert [message["role"] for message in trace.messages] == roles and trace.opening == 2
    assert trace.messages[-1]["content"] == trace.turns[1].tools[-1].text
    assert read_traces(tmp_path).__next__() == trace


async def test_every_outcome_is_on_disk_when_the_trajectory_is_over(tmp_path: Path) -> None:
    traces: list[Trace] = [
        await play({"counter": counter_server()}, saying("Hi."), tmp_path),
        await play({"counter": counter_server()}, saying("Hi."), tmp_path, limits=Limits(response_tokens=9)),
        await play({"counter": counter_server()}, saying("Hi."), tmp_path, reward={"server": "counter"}),
    ]
    assert list(read_traces(tmp_path)) == traces


async def test_a_defect_of_ours_is_recorded_and_raised(tmp_path: Path) -> None:
    async def policy_for(_: object) -> Policy:
        raise ZeroDivisionError("oops")

    with pytest.raises(ZeroDivisionError):
        await play({"counter": counter_server()}, policy_for, tmp_path)
    (trace,) = read_traces(tmp_path)
    assert trace.failure is not None and trace.failure.kind == "internal_error"


async def test_half_a_sentence_never_reaches_the_user(tmp_path: Path) -> None:
    limits = Limits(response_tokens=20_000, tokens_per_turn=5)
    servers = {"user": user_server([("What?", False)])}
    trace = await play(servers, saying("A long sentence."), tmp_path, limits=limits, user={"server": "user"})
    assert trace.stop_reason is StopReason.TOKEN_LIMIT and trace.user_turns == 0


@pytest.mark.parametrize("score", ["nan", "inf", float("nan")])
async def test_a_score_that_is_no_number_withdraws_the_trajectory(tmp_path: Path, score: object) -> None:
    server = MCPServer("judge", log_level="ERROR")

    @server.tool(name="score", meta={ROLE: "score"}, structured_output=False)
    async def judge(messages: list[dict[str, Any]]) -> str:
        return f'{{"score": "{score}"}}'

    trace = await play({"judge": server}, saying("Hi."), tmp_path, reward={"server": "judge"})
    assert trace.failure is not None and trace.failure.kind == "harness_error"
    assert list(read_traces(tmp_path)) == [trace]


async def test_tools_that_change_with_the_very_last_call_withdraw_the_trajectory(tmp_path: Path) -> None:
    server = MCPServer("world", log_level="ERROR")
    server.add_tool(lambda: "x", name="add", description="Adds.")

    @server.tool(meta={ROLE: "score"})
    async def score(messages: list[dict[str, Any]], ctx: Context) -> dict[str, Any]:
        """Score."""
        server.remove_tool("add")
        await ctx.notify_tools_changed()
        return {"score": 1.0, "parts": {}}

    async def policy_for(session: Any) -> Policy:
        await anyio.wait_all_tasks_blocked()  # the gateway listens to the server by now
        return await saying("Done.")(session)

    trace = await play({"world": server}, policy_for, tmp_path, reward={"server": "world"})
    assert trace.stop_reason is StopReason.FAILED and trace.failure is not None
    assert trace.failure.kind == "tools_changed" and "world/add is not listed any more" in trace.failure.message


async def test_a_tool_outside_what_is_rendered_cannot_be_called(tmp_path: Path) -> None:
    made, servers = environment({"counter": counter_server()}), {"counter": counter_server()}
    async with opened(made, servers) as gateway:
        shown = [tool.openai_schema() for tool in gateway.catalogue["counter"] if tool.name == "bump"]
        trace = await roll_out(
            Trace.begin("t", task(), Origin()),
            environment=made,
            gateway=gateway,
            policy_for=saying(calling(("fail", {})), "Done."),
            tokens=TOKENS,
            limits=Limits(response_tokens=20_000),
            store=TraceStore(tmp_path),
            tools=shown,
        )
    assert trace.turns[0].tools[0].text == "Unknown tool 'fail'. Available tools: bump"


async def test_rewards_too_large_to_be_added_withdraw_the_trajectory(tmp_path: Path) -> None:
    server = MCPServer("judge", log_level="ERROR")

    @server.tool(name="score", meta={ROLE: "score"}, structured_output=False)
    async def judge(messages: list[dict[str, Any]]) -> str:
        return '{"score": 1.7e308, "parts": {"more": 1.7e308}}'

    reward = {"server": "judge", "parts": ["more"], "weights": {"score": 1.0, "more": 1.0}}
    trace = await play({"judge": server}, saying("Hi."), tmp_path, reward=reward)
    assert trace.failure is not None and trace.failure.kind == "harness_error"
    assert "the reward is not a finite number" in trace.failure.message


async def test_a_cancelled_trajectory_leaves_its_record(tmp_path: Path) -> None:
    server, begun = counter_server(), anyio.Event()

    @server.tool()
    async def hang() -> str:
        """Never returns."""
        begun.set()
        await anyio.sleep_forever()
        return ""

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(play, {"counter": server}, saying(calling(("hang", {}))), tmp_path)
        await begun.wait()
        tasks.cancel_scope.cancel()
    (trace,) = read_traces(tmp_path)
    assert trace.failure is not None and trace.failure.kind == "cancelled" and len(trace.turns) == 1
