"""What agent programs of public reports do, played through a trajectory: what they hear, and what is trained."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import told
from field_cases import FieldCase, field_cases
from field_programs import finish, play

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("imported_verl")]


@pytest.fixture(autouse=True)
def nothing_seen() -> Iterator[None]:
    told.SEEN.clear()
    yield
    told.SEEN.clear()


@pytest.mark.parametrize("case", field_cases("programs"))
async def test_a_program_hears_what_its_api_promises_and_is_trained_on_what_is_its_own(
    tmp_path: Path, case: FieldCase
) -> None:
    made, offered = await play(tmp_path, case.given)
    trace, expected = made.trace, case.expected
    assert trace.failure is None, trace.failure
    found = {
        "status": [status for status, _, _ in told.SEEN],
        "problems": [document["error"]["message"] for status, document, _ in told.SEEN if status != 200],
        "finish": [finish(document) for status, document, _ in told.SEEN if status == 200],
        "turns": [turn.content for turn in trace.turns],
        "segments": [segment.turns_sampled for segment in trace.segments],
        "marks": [[str(mark.kind) for mark in turn.marks] for turn in trace.turns],
        "results": [
            [event.text if event.shown is None else event.shown for event in turn.tools] for turn in trace.turns
        ],
        "stop": str(trace.stop_reason),
        "offered": offered,
        "notes": [text for text, _ in made.notes],
    }
    assert {key: found[key] for key in expected if key != "problems"} == {
        key: value for key, value in expected.items() if key != "problems"
    }
    for said, part in zip(found["problems"], expected.get("problems", ()), strict="problems" in expected):
        assert part in said
    # Each turn is an entry of the engine's log, exactly; what is in no segment is in no batch.
    if not offered:
        log = list(made.engine.log)
        kept = [entry for entry in log if entry in told.generations(trace)]
        assert told.differences(trace, kept) == 0 and len(kept) == len(trace.turns)
