"""What becomes of everything that can go wrong in a turn: the table of outcomes in docs/train.md, row by row."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import anyio
import pytest
from clock import Clock
from mcp.server.mcpserver import MCPServer
from mcp.types import CallToolResult
from worlds import ROLE, play, saying

from mcp_rollout.rollout.formats import hermes
from mcp_rollout.rollout.loop.limits import Limits
from mcp_rollout.rollout.tokens.chatml import IM_END, ByteTokens
from mcp_rollout.rollout.trace.events import MarkKind
from mcp_rollout.rollout.trace.record import StopReason, Trace
from mcp_rollout.rollout.trace.store import read_traces
from mcp_rollout.rollout.types import Call, Completion, FinishReason, Policy

pytestmark = pytest.mark.anyio
TOKENS = ByteTokens()
DOCS = Path(__file__).parents[3] / "docs" / "train.md"


def calling(*names: str, **arguments: Any) -> str:
    return hermes.write(calls=[Call(name=name, arguments=arguments) for name in names])


def server() -> MCPServer:
    made = MCPServer("world", log_level="ERROR")

    @made.tool()
    async def hello() -> str:
        """Greets."""
        return "Hello."

    @made.tool()
    async def read(length: int) -> str:
        """A long text."""
        return "abcdefghi " * (length // 10)

    return made


def marks(trace: Trace, turn: int = 0) -> list[str]:
    return [str(mark.kind) for mark in trace.turns[turn].marks]


async def played(directory: Path, *texts: str, limits: Limits | None = None, **fields: Any) -> Trace:
    return await play({"world": server()}, saying(*texts), directory, limits=limits, **fields)


async def test_a_malformed_call_is_answered_with_what_is_wrong(tmp_path: Path) -> None:
    trace = await played(tmp_path, "<tool_call>{broken</tool_call>", "Sorry.")
    assert marks(trace) == ["malformed_call", "void"]
    assert "not valid JSON" in trace.turns[0].tools[0].text and trace.turns[0].tools[0].server is None
    assert trace.stop_reason is StopReason.ANSWERED and set(trace.loss_mask) == {0, 1}


async def test_a_call_that_was_not_sent_is_put_down_to_no_server(tmp_path: Path) -> None:
    """Else two siblings that failed in different ways at the same call would look like drift of that server."""
    unreadable = '<tool_call>{"name": "hello", "arguments": 1}</tool_call>'
    limits = Limits(response_tokens=5000, parallel_calls=1)
    trace = await played(tmp_path, unreadable + calling("hello", "hello"), "Sorry.", limits=limits)
    assert [event.name for event in trace.turns[0].tools] == ["hello"] * 3
    assert [event.server for event in trace.turns[0].tools] == [None, "world", None]


@pytest.mark.parametrize("tool", ["read", "nothing"])
@pytest.mark.parametrize("value", ["[" * 64 + "]" * 64, "[" * 300 + "]" * 300, "1e999", "NaN", "1" * 5000, r'"\ud800"'])
async def test_arguments_that_json_cannot_carry_are_the_policys_mistake_and_the_trace_is_read_back(
    tmp_path: Path, tool: str, value: str
) -> None:
    written = f'<tool_call>{{"name": "{tool}", "arguments": {{"length": {value}}}}}</tool_call>'
    trace = await played(tmp_path, written, "Sorry.")
    (event,) = trace.turns[0].tools
    assert event.is_error and event.server is None and "not valid JSON" in event.text
    assert trace.stop_reason is StopReason.ANSWERED and trace.reward is not None
    (stored,) = read_traces(tmp_path)
    assert stored.id == trace.id and stored.turns == trace.turns


async def test_an_unknown_tool_is_answered_with_the_known_ones(tmp_path: Path) -> None:
    trace = await played(tmp_path, calling("nothing"), "Sorry.")
    assert marks(trace) == ["unknown_tool"] and trace.turns[0].marks[0].detail == "nothing"
    assert "Available tools: hello, read" in trace.turns[0].tools[0].text


async def test_half_a_call_at_the_length_limit_is_answered_and_the_whole_ones_before_it_are_sent(
    tmp_path: Path,
) -> None:
    whole = calling("hello")
    limits = Limits(response_tokens=5000, tokens_per_turn=len(TOKENS.encode(whole)) + 9)
    trace = await played(tmp_path, whole + "\n" + whole, "Sorry.", limits=limits)
    assert marks(trace) == ["cut_call"]
    assert [event.is_error for event in trace.turns[0].tools] == [False, True]
    assert "has no </tool_call>" in trace.turns[0].tools[1].text
    assert trace.stop_reason is StopReason.ANSWERED


async def test_a_call_inside_the_thinking_is_a_thought(tmp_path: Path) -> None:
    trace = await played(tmp_path, f"<think>\n{calling('hello')}\n</think>\n\nDone.")
    assert marks(trace) == ["call_in_thinking"] and trace.turns[0].tools == []
    assert "hello" in trace.turns[0].thinking


@pytest.mark.parametrize("ids", [TOKENS.encode(IM_END), []])
async def test_an_empty_generation_is_a_void_turn_and_no_failure(tmp_path: Path, ids: list[int]) -> None:
    class Silent:
        async def generate(self, ids_: list[int], *, max_tokens: int, turn: int) -> Completion:
            return Completion(ids=ids, logprobs=[-1.0] * len(ids))

    async def policy_for(_: object) -> Policy:
        return Silent()

    trace = await play({"world": server()}, policy_for, tmp_path)
    assert (marks(trace), trace.turns[0].marks[0].detail) == (["void"], "empty")
    assert trace.stop_reason is StopReason.ANSWERED and not trace.is_withdrawn and trace.failure is None
    assert trace.reward is not None and trace.loss_mask == [1] * len(ids)


async def test_calls_beyond_the_parallel_limit_are_answered_and_not_sent(tmp_path: Path) -> None:
    limits = Limits(response_tokens=5000, parallel_calls=1)
    trace = await played(tmp_path, calling("hello", "hello"), "Done.", limits=limits)
    assert marks(trace) == ["not_sent"] and trace.turns[0].marks[0].detail == "1 of 2 calls"
    assert [event.text for event in trace.turns[0].tools] == [
        "Hello.",
        "Not called: at most 1 calls per turn are sent.",
    ]


async def test_a_result_that_exceeds_the_budget_is_cut_to_what_fits_and_leaves_room_to_answer(tmp_path: Path) -> None:
    limits = Limits(response_tokens=600)
    trace = await played(tmp_path, calling("read", length=2000), "Short answer.", limits=limits)
    (event,) = trace.turns[0].tools
    assert marks(trace) == ["result_cut"] and event.cut_tokens > 1000 and len(event.text) == 2000
    assert event.shown is not None and "tokens cut ...]" in event.shown
    assert trace.messages[2]["content"] == event.shown
    assert event.shown in TOKENS.decode(trace.response_ids)
    assert trace.stop_reason is StopReason.ANSWERED and len(trace.response_ids) <= 600


async def test_a_result_of_which_too_little_would_be_left_ends_the_trajectory(tmp_path: Path) -> None:
    trace = await played(tmp_path, calling("read", length=2000), "Never said.", limits=Limits(response_tokens=150))
    assert marks(trace) == ["result_overflow"] and trace.stop_reason is StopReason.TOKEN_LIMIT
    assert trace.turns[0].tools[0].text.startswith("abc") and trace.loss_mask[-1] == 1
    (event,) = trace.turns[0].tools
    assert (event.shown, event.cut_tokens) == (None, 0) and trace.messages[-1]["content"] == event.text
    assert trace.reward is not None


async def test_a_user_message_that_does_not_fit_ends_the_trajectory(tmp_path: Path) -> None:
    user = MCPServer("user", log_level="ERROR")

    @user.tool(name="start", meta={ROLE: "start"})
    async def start() -> dict[str, Any]:
        return {"message": "Hello."}

    @user.tool(name="reply", meta={ROLE: "reply"})
    async def reply(seq: int, message: str) -> dict[str, Any]:
        return {"message": "long " * 100, "done": False}

    limits = Limits(response_tokens=200)
    trace = await play({"user": user}, saying("Hi.", "x"), tmp_path, limits=limits, user={"server": "user"})
    assert marks(trace) == ["result_overflow"] and trace.stop_reason is StopReason.TOKEN_LIMIT
    assert trace.turns[0].user is not None and trace.messages[-1]["role"] == "user"


async def test_an_overlong_prompt_is_withdrawn_and_never_cut(tmp_path: Path) -> None:
    trace = await played(tmp_path, "Hi.", limits=Limits(response_tokens=100, prompt_tokens=10))
    assert trace.is_withdrawn and trace.failure is not None and trace.failure.kind == "prompt_too_long"


class Endless:
    """Samples until the minute of its trajectory is over, and then gives what it has."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock

    async def generate(self, ids: list[int], *, max_tokens: int, turn: int) -> Completion:
        try:
            await self._clock.advance(60)
            await anyio.sleep_forever()
        except anyio.get_cancelled_exc_class():  # the scope cancels the next wait as well
            sampled = TOKENS.encode("Half a sen")
            return Completion(ids=sampled, logprobs=[-0.5] * len(sampled), finish_reason=FinishReason.ABORT)
        raise AssertionError


async def test_what_an_engine_hands_over_at_the_deadline_is_recorded_and_scored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock(monkeypatch)

    async def policy_for(_: object) -> Policy:
        return Endless(clock)

    limits = Limits(response_tokens=5000, wall_clock_s=60)
    with anyio.fail_after(600):
        trace = await play({"world": server()}, policy_for, tmp_path, limits=limits)
    assert trace.stop_reason is StopReason.TIME_LIMIT and not trace.is_withdrawn
    assert TOKENS.decode(trace.response_ids) == "Half a sen" and trace.loss_mask == [1] * 10
    assert trace.turns[0].finish_reason is FinishReason.ABORT and marks(trace) == []
    assert trace.reward is not None and list(read_traces(tmp_path)) == [trace]


async def test_an_abort_of_the_engines_own_is_withdrawn_with_its_partial_tokens(tmp_path: Path) -> None:
    class Aborted:
        async def generate(self, ids: list[int], *, max_tokens: int, turn: int) -> Completion:
            return Completion(ids=TOKENS.encode("Half"), logprobs=[0.0] * 4, finish_reason=FinishReason.ABORT)

    async def policy_for(_: object) -> Policy:
        return Aborted()

    trace = await play({"world": server()}, policy_for, tmp_path)
    assert trace.stop_reason is StopReason.ABORTED and trace.is_withdrawn and len(trace.response_ids) == 4


async def test_what_is_left_is_told_where_the_environment_says_so(tmp_path: Path) -> None:
    limits = Limits(response_tokens=600, assistant_turns=5, tool_calls=7, tell_budget=True)
    said = calling("hello")
    trace = await played(tmp_path, said, calling("read", length=2000), "Done.", limits=limits)
    left = 600 - len(TOKENS.encode(said + IM_END))
    assert trace.messages[2]["content"] == f"Hello.\n[Left: 4 turns, {left} tokens, 6 tool calls]"
    assert trace.turns[0].tools[0].text == "Hello." and trace.turns[0].tools[0].shown == trace.messages[2]["content"]
    assert trace.messages[4]["content"].endswith("5 tool calls]")  # the line outlives the cut
    assert marks(trace, 1) == ["result_cut"]


async def test_halves_of_surrogate_pairs_in_results_are_replaced_and_the_trace_is_read_back(tmp_path: Path) -> None:
    world = MCPServer("world", log_level="ERROR")

    @world.tool()
    async def names() -> CallToolResult:
        return CallToolResult(content=[], structured_content={"name": "a\ud83db"})

    @world.tool(structured_output=False)
    async def name() -> str:
        return "a\ud83db"

    calls = hermes.write(calls=[Call(name="names"), Call(name="name")])
    await play({"world": world}, saying(calls, "Done."), tmp_path)
    (trace,) = read_traces(tmp_path)
    assert trace.stop_reason is StopReason.ANSWERED
    listed, said = trace.turns[0].tools
    assert said.text == "a?b" and "a?b" in listed.text and listed.structured == {"name": "a?b"}


def test_the_table_of_outcomes_names_every_mark() -> None:
    text = DOCS.read_text()
    assert [kind for kind in MarkKind if f"`{kind}`" not in text] == []
