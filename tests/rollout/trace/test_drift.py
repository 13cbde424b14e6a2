"""Siblings whose identical calls got different results are found; what may differ is left alone."""

from __future__ import annotations

import json
from pathlib import Path

from trace_samples import archived, read_file

from mcp_rollout.gateway.types import Content, ContentKind, ToolResult
from mcp_rollout.rollout.environment.task import Origin, Task
from mcp_rollout.rollout.trace.drift import calls_seen, drifts, siblings
from mcp_rollout.rollout.trace.journal import from_json, to_json
from mcp_rollout.rollout.trace.record import StopReason, Trace
from mcp_rollout.rollout.types import Call, Completion, Edit, Parsed

Turns = list[list[tuple[str, str]]]


def played(
    turns: Turns, *, uid: str = "u", row: int = 0, server: str | None = "shop", volatile: tuple[str, ...] = ()
) -> Trace:
    """Turns of calls, each with its argument and its result."""
    task = Task(environment="e", task="t", seed=1, prompt=({"role": "user", "content": "Hello"},))
    trace = Trace.begin("t", task, Origin(uid=uid, row=row))
    for calls in turns:
        made = tuple(Call(name="look", arguments={"at": argument}) for argument, _ in calls)
        trace.add_completion(
            Completion(ids=[1]), Parsed(content="", calls=made), Edit(appended=[1]), mask_thinking=False
        )
        meta = {"mcp-rollout/volatile": list(volatile)}
        results = [ToolResult(content=(Content(kind=ContentKind.TEXT, text=text),), meta=meta) for _, text in calls]
        trace.add_calls(made, results, servers=[server] * len(made))
    trace.stop_reason = StopReason.ANSWERED
    return trace


def found(*traces: Trace) -> list[str]:
    return [str(drift) for drift in drifts((siblings(trace), calls_seen(trace)) for trace in traces)]


def test_the_same_call_after_the_same_calls_with_another_result_is_drift() -> None:
    first, second = played([[("a", "1")], [("b", "2")]]), played([[("a", "1")], [("b", "3")]])
    assert found(first, second, played([[("a", "1")]])) == ["""shop/look {"at":"b"} gave '2' and '3'"""]


def test_another_history_another_group_or_another_call_is_none() -> None:
    base = played([[("a", "1")], [("b", "2")]])
    assert found(base, played([[("c", "1")], [("b", "3")]])) == []
    assert found(base, played([[("a", "9")]], uid="other")) == []
    assert found(base, played([[("a", "1"), ("b", "3")]])) == []


def test_runs_without_a_trainer_have_rows_for_groups() -> None:
    assert found(played([[("a", "1")]], uid=""), played([[("a", "2")]], uid="", row=1)) == []
    assert len(found(played([[("a", "1")]], uid=""), played([[("a", "2")]], uid=""))) == 1


def test_a_call_that_the_deadline_cut_off_is_not_compared() -> None:
    late = played([[("a", "No answer: the trajectory ended while the call was under way.")]])
    late.stop_reason = StopReason.TIME_LIMIT
    assert found(played([[("a", "1")]]), late) == []


def test_fields_that_the_server_declares_volatile_are_not_compared(tmp_path: Path) -> None:
    def at(clock: int, size: int = 1) -> Trace:
        said = json.dumps({"stat": [{"clock": clock, "size": size}]})
        return played([[("a", said)]], volatile=("stat.clock",))

    assert found(at(1), at(2)) == []
    assert len(found(at(1), at(2, size=2))) == 1
    # A record keeps what was declared, in a journal and in an archive.
    assert found(*read_file(archived(tmp_path, "a", [at(1), at(2)])), from_json(to_json(at(3)))) == []
