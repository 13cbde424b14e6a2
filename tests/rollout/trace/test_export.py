"""An export holds conversations that a chat template renders: those worth imitating, or a better and a worse one."""

import json
from pathlib import Path
from typing import Any

import pytest

from mcp_rollout.gateway.errors import ConfigError
from mcp_rollout.gateway.types import CallFault, Content, ContentKind, ToolResult
from mcp_rollout.rollout.environment.task import Origin, Task
from mcp_rollout.rollout.trace.export import Exported, export_sft, sft_row
from mcp_rollout.rollout.trace.record import Reward, StopReason, Trace, UserEvent
from mcp_rollout.rollout.types import Call, Completion, Edit, FinishReason, Parsed

TOOLS = {"shop": [{"type": "function", "function": {"name": name, "parameters": {}}} for name in ("look", "buy")]}
PROMPT = (
    {"role": "system", "content": "Sell."},
    {"role": "user", "content": "Hello"},
    {"role": "assistant", "content": "Earlier."},
    {"role": "user", "content": "Look, please."},
)


def played(
    score: float = 1.0, *, tools: tuple[str, ...] | None = None, problem: str | None = None, name: str = "look"
) -> Trace:
    trace = Trace.begin("t", Task(environment="shop", task="a", seed=3, tools=tools, prompt=PROMPT), Origin())
    call = Call(name=name, arguments={"what": "thé", "n": [1, None]}, id="c1", problem=problem)
    say(trace, Parsed(content="", thinking="Look first.", calls=(call,)))
    result = ToolResult(content=(Content(kind=ContentKind.TEXT, text="tea"),))
    if problem is not None:
        result = ToolResult.error(problem, fault=CallFault.UNREADABLE)
    trace.messages += trace.add_calls([call], [result])
    say(trace, Parsed(content="There is tea."))
    trace.turns[-1].user = UserEvent(seq=1, message="Bye", done=True)
    trace.messages.append({"role": "user", "content": "Bye"})
    trace.reward = Reward(score=score)
    trace.stop_reason = StopReason.USER_DONE
    return trace


def say(trace: Trace, parsed: Parsed) -> None:
    trace.add_completion(Completion(ids=[1]), parsed, Edit(appended=[1]), mask_thinking=False)


def exported(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_thinking_calls_and_results_come_out_as_they_went_in(tmp_path: Path) -> None:
    assert export_sft([played()], tmp_path / "sft.jsonl", tools=TOOLS) == Exported(rows=1, left_out=0)
    (row,) = exported(tmp_path / "sft.jsonl")
    function = {"name": "look", "arguments": {"what": "thé", "n": [1, None]}}
    assert row["messages"] == [
        *PROMPT,
        {
            "role": "assistant",
            "content": "",
            "reasoning_content": "Look first.",
            "tool_calls": [{"type": "function", "id": "c1", "function": function}],
        },
        {"role": "tool", "name": "look", "content": "tea", "tool_call_id": "c1"},
        {"role": "assistant", "content": "There is tea."},
    ]
    assert row["tools"] == TOOLS["shop"]
    del row["messages"], row["tools"]
    assert row == {
        "environment": "shop",
        "task": "a",
        "seed": 3,
        "trajectory": "t",
        "reward": 1.0,
        "stop_reason": "user_done",
    }


def test_only_what_is_worth_imitating_is_exported(tmp_path: Path) -> None:
    withdrawn = played()
    withdrawn.fail("server_died", "gone")
    unscored = played()
    unscored.reward = None
    # A call that names a tool is no better for it: what was read of it is not what was written.
    unreadable = [played(name="", problem="no name"), played(problem="the arguments are not an object")]
    traces = [played(0.8), played(0.79), withdrawn, unscored, *unreadable]
    done = export_sft(traces, tmp_path / "sft.jsonl", tools=TOOLS, min_reward=0.8)
    assert done == Exported(rows=1, left_out=3, as_ids=2)
    assert [row["reward"] for row in exported(tmp_path / "sft.jsonl")] == [0.8]
    assert [row["input_ids"] for row in exported(tmp_path / "sft.ids.jsonl")] == [[1, 1]] * 2
    assert export_sft([played()], tmp_path / "ids.jsonl", tools=TOOLS, ids_only=True) == Exported(
        rows=0, left_out=0, as_ids=1
    )


@pytest.mark.parametrize("reason", [FinishReason.LENGTH, FinishReason.ABORT])
def test_a_rewarded_trajectory_that_was_cut_is_no_conversation(tmp_path: Path, reason: FinishReason) -> None:
    cut = played(1.0)
    cut.turns[-1].finish_reason = reason
    done = export_sft([cut], tmp_path / "sft.jsonl", tools=TOOLS)
    assert done == Exported(rows=0, left_out=0, as_ids=1)


def test_a_row_shows_the_tools_that_its_trajectory_had() -> None:
    assert sft_row(played(tools=("look",)), TOOLS)["tools"] == TOOLS["shop"][:1]


@pytest.mark.parametrize(("tools", "message"), [({}, "environment 'shop'"), ({"shop": []}, r"tools \['look'\]")])
def test_schemas_that_are_missing_are_named_and_nothing_is_left_behind(
    tmp_path: Path, tools: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        export_sft([played(tools=("look",))], tmp_path / "sft.jsonl", tools=tools)
    assert list(tmp_path.iterdir()) == []
