"""Token in, token out, under every tool format: random conversations over a real server, against the engine's log."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import anyio
import pytest
from conversations import EVERYTHING, Said, played
from engine_log import compare, read_records, recorded
from hypothesis import example, given, settings
from hypothesis import strategies as st
from sampled import Sampler
from tool_formats import DIALECTS, tokenizer_for

from mcp_rollout.rollout.formats import FORMATS
from mcp_rollout.rollout.trace.record import SpanKind, StopReason, Trace
from mcp_rollout.rollout.types import Call

pytestmark = pytest.mark.usefixtures("imported_verl")

WORDS = st.text("abcxyz 0123456789.,:;!?-_äß\u4e2d\U0001f351\n", min_size=1, max_size=12).map(lambda text: f"p{text}q")


CALLS = st.builds(
    lambda name, text: Call(name=name, arguments={"text": text}), st.sampled_from(["note", "note", "guess"]), WORDS
)
TURNS = st.builds(
    Said,
    thinking=st.one_of(st.just(""), WORDS),
    content=st.one_of(st.just(""), WORDS),
    calls=st.lists(CALLS, max_size=2).map(tuple),
    half=st.sampled_from([False, False, False, True]),
)
SCRIPTS = st.lists(TURNS, min_size=2, max_size=6)


def check(name: str, script: Sequence[Said], trace: Trace, sampler: Sampler, record: dict[str, Any]) -> None:
    tokenizer, dialect = tokenizer_for(name), DIALECTS[name]
    assert trace.stop_reason is StopReason.TURN_LIMIT, trace.failure
    # The trace is what the engine's log gives, position by position.
    stands_in = frozenset(tokenizer.convert_tokens_to_ids(token) for token in dialect.stands_in)
    assert compare(sampler.log, recorded([record]), stands_in=stands_in).differences == {}
    # What is trained on is what was sampled, but for what the builder took out, which the trace has beside it.
    for index, generation in enumerate(sampler.log):
        spans = [span for span in trace.spans if span.turn == index and span.kind is not SpanKind.CONTEXT]
        ids = [token for span in spans for token in trace.response_ids[span.start : span.end]]
        assert ids + trace.turns[index].trimmed == generation["token_ids"]
        assert all(trace.loss_mask[span.start : span.end] == [1] * (span.end - span.start) for span in spans)
    # Each context goes on from the one before.
    for turn, (earlier, later) in zip(trace.turns, zip(sampler.log, sampler.log[1:], strict=False), strict=False):
        kept = earlier["token_ids"][: len(earlier["token_ids"]) - len(turn.trimmed)]
        assert later["prompt_ids"][: len(earlier["prompt_ids"]) + len(kept)] == earlier["prompt_ids"] + kept
    # Every call was read, in its order, with its arguments; what could not be read was answered.
    for said, turn in zip(script, trace.turns, strict=True):
        calls = [Call(name="note")] if said.half else said.calls[: None if dialect.many else 1]
        assert [event.name for event in turn.tools] == [call.name for call in calls]
        assert [event.is_error for event in turn.tools] == [said.half or call.name != "note" for call in calls]
        if not said.half:
            assert [event.arguments for event in turn.tools] == [call.arguments for call in calls]
            assert (turn.thinking.strip(), turn.content) == (said.thinking.strip(), said.content.strip())


def one(name: str, script: Sequence[Said]) -> None:
    with tempfile.TemporaryDirectory() as directory:
        trace, sampler = anyio.run(played, name, script, Path(directory))
        (record,) = read_records(Path(directory))
    check(name, script, trace, sampler, record)


@pytest.mark.parametrize("name", DIALECTS)
@given(script=SCRIPTS)
@example(script=EVERYTHING)
@settings(max_examples=5, deadline=None, derandomize=True, database=None)
def test_a_conversation_is_what_the_engine_saw_and_sampled(name: str, script: list[Said]) -> None:
    one(name, script)


@pytest.mark.parametrize("name", ["glm"])
def test_a_stop_that_opens_the_next_message_is_the_messages(name: str, tmp_path: Path) -> None:
    trace, sampler = anyio.run(played, name, EVERYTHING, tmp_path)
    end = {token: tokenizer_for(name).convert_tokens_to_ids(token) for token in ("<|observation|>", "<|user|>")}
    trimmed = [end["<|observation|>"]], [end["<|user|>"]], [], [end["<|observation|>"]], []
    assert tuple(turn.trimmed for turn in trace.turns) == trimmed
    assert trace.response_ids[-1] == sampler.log[-1]["token_ids"][-1] == end["<|user|>"]
    assert trace.loss_mask[-1] == 1


CUT = {name: FORMATS[name].truncated_end[0] for name in DIALECTS} | {
    "glm": "<|observation|>",  # opens the answer; no end of turn comes before it
    "deepseek_v4": DIALECTS["deepseek_v4"].eos,
}


@pytest.mark.parametrize("name", DIALECTS)
def test_half_a_call_gets_the_end_of_its_message_before_the_answer(name: str, tmp_path: Path) -> None:
    trace, sampler = anyio.run(played, name, EVERYTHING, tmp_path)
    half, after = sampler.log[2:4]
    seen = half["prompt_ids"] + half["token_ids"]
    assert after["prompt_ids"][: len(seen)] == seen
    assert after["prompt_ids"][len(seen)] == tokenizer_for(name).convert_tokens_to_ids(CUT[name])
    assert trace.loss_mask[len(seen) - len(trace.prompt_ids)] == 0
