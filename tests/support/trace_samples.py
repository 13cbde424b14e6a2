"""A recorded trajectory of one turn, for tests of what is done with traces."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from mcp_rollout.gateway.types import Content, ContentKind, ToolResult
from mcp_rollout.rollout.environment.task import Origin, Task
from mcp_rollout.rollout.trace.archive import archive
from mcp_rollout.rollout.trace.files import JOURNAL_SUFFIX
from mcp_rollout.rollout.trace.journal import from_json, to_json
from mcp_rollout.rollout.trace.lines import lines_of
from mcp_rollout.rollout.trace.record import Reward, StopReason, Trace, UserEvent
from mcp_rollout.rollout.types import Call, Completion, Edit, FinishReason, Parsed


def recorded_trace(name: str = "a") -> Trace:
    task = Task(environment="e", task="t", seed=3, tools=("x",), prompt=({"role": "user", "content": "hé"},))
    trace = Trace.begin(name, task, Origin(row=4, sample=2, step=7, validate=True, uid="u"))
    trace.prompt_ids = [1, 2]
    completion = Completion(
        ids=[3, 4], logprobs=[-0.5, -1.5], finish_reason=FinishReason.LENGTH, weights_version=(6, 7)
    )
    call = Call(name="x", arguments={"k": [1, None]}, id="c1")
    parsed = Parsed(content="hi", thinking="hm", thoughts=((0, 1),), calls=(call,))
    trace.add_completion(completion, parsed, Edit(appended=[3, 4]), mask_thinking=False)
    trace.add_calls([call], [ToolResult(content=(Content(kind=ContentKind.TEXT, text="ok"),), reward=0.25)])
    trace.turns[0].user = UserEvent(seq=1, message="bye", done=True, reward=0.5)
    trace.reward = Reward(score=0.75, parts={"p": 0.75})
    trace.stop_reason = StopReason.USER_DONE
    return trace


def archived(directory: Path, name: str, traces: Iterable[Trace]) -> Path:
    """An archive of these traces."""
    journal = directory / f"{name}{JOURNAL_SUFFIX}"
    journal.write_bytes(b"".join(to_json(trace) + b"\n" for trace in traces))
    return archive(journal)


def read_file(path: Path) -> list[Trace]:
    """The traces of a journal or an archive."""
    return [from_json(line) for _, line in lines_of(path)]
