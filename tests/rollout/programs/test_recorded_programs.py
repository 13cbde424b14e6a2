"""What real programs sent, sent again: every dialect, exactly; and the live programs over long conversations."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import told
from recorded_programs import CASSETTES, NODE, PROGRAMS, RETRY, agent, cutting, requests, script
from told import Engine, played

from mcp_rollout.rollout.loop.limits import Limits
from mcp_rollout.rollout.programs.program import preset
from mcp_rollout.rollout.trace.events import MarkKind
from mcp_rollout.rollout.trace.record import StopReason

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("imported_verl")]
LIMITS = Limits(response_tokens=400_000, context_tokens=400_000, assistant_turns=100)
TURNS = 56
NAMES = sorted(path.stem for path in CASSETTES.glob("*.jsonl"))
REWRITE = {"claude_code", "opencode", "pydantic_ai_chat"}
"""Programs that write the arguments of calls anew."""


@pytest.fixture(autouse=True)
def nothing_seen() -> Iterator[None]:
    told.SEEN.clear()
    yield
    told.SEEN.clear()


def test_each_program_that_is_started_here_is_recorded() -> None:
    assert NAMES == sorted(PROGRAMS)


@pytest.mark.parametrize("name", NAMES)
async def test_a_recorded_program_is_played_with_every_id_as_the_engine_saw_it(tmp_path: Path, name: str) -> None:
    own = {"use": "recorded_programs:replaying", "arguments": {"name": name}}
    engine = Engine(script(name), asides=("A title",))
    function = {"use": "mcp_rollout.rollout.programs.program:Function", "with": own}
    made = await played(tmp_path, (), agent=function, engine=engine, limits=LIMITS)
    trace = made.trace
    assert trace.failure is None and trace.stop_reason is StopReason.ANSWERED
    assert made.differences() == 0 and [segment.turns_sampled for segment in trace.segments] == [[0, 1, 2]]
    assert made.notes == [("plum", 3.0), ("a", 100.0), ("b\u00e4", 2.0)]
    assert [event.server for turn in trace.turns for event in turn.tools] == ["desk"] * 3
    changed = any(mark.kind is MarkKind.CAME_BACK_CHANGED for turn in trace.turns for mark in turn.marks)
    assert changed == (name in REWRITE)
    # What a program sends is what it was recorded with: nothing of the machine that it ran on.
    assert not any("/tmp/" in json.dumps(sent) for sent in requests(name))


@pytest.mark.parametrize("name", ["codex", "claude_code"])
def test_a_preset_leaves_no_date_but_its_own_in_what_its_program_sends(name: str) -> None:
    text = json.dumps([sent["body"] for sent in requests(name) if "mcp" not in sent["path"]], ensure_ascii=False)
    for pattern, said in preset(name)["frozen"].items():
        text = re.sub(pattern, said, text)
    assert set(re.findall(r"20\d\d-\d\d-\d\d", text)) == {"2026-01-01"}


@pytest.mark.full
@pytest.mark.needs("programs")
@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", sorted(PROGRAMS))
async def test_a_live_program_is_exact_over_a_long_conversation_whatever_is_cut_and_malformed(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch, record_property: Callable[[str, object], None]
) -> None:
    monkeypatch.setenv("PATH", f"{NODE}:{os.environ['PATH']}")
    engine = Engine(script(name, TURNS), asides=("A title",))
    repair = cutting(every=5) if name in RETRY else lambda: None
    try:
        made = await played(tmp_path, (), agent=agent(name), engine=engine, limits=LIMITS)
    finally:
        repair()
    trace = made.trace
    assert trace.failure is None, trace.failure
    # Each text was said once, whatever was cut and asked again.
    assert len(engine.log) == len(script(name, TURNS)) == len(trace.turns)
    assert made.differences() == 0
    assert [text for text, _ in made.notes[3:]] == [f"n{at}" for at in range(TURNS)]
    seen = sum(len(read) + len(said) for read, said in engine.log)
    (tmp_path / "positions").write_text(str(seen))
    record_property("positions", seen)
