"""Thinking policies: what is in the context, what is in the loss, and how long a thought may be."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from thinking_game import SCRIPT, check, play, servers
from worlds import environment

from mcp_rollout.gateway.errors import ConfigError
from mcp_rollout.rollout.environment.sections import FiltersConfig
from mcp_rollout.rollout.formats import FORMATS, hermes
from mcp_rollout.rollout.loop.filters import Filters
from mcp_rollout.rollout.loop.limits import Limits
from mcp_rollout.rollout.loop.thinking import check_thoughts, without_thinking
from mcp_rollout.rollout.tokens.chatml import IM_END, ByteTokens
from mcp_rollout.rollout.trace.record import SpanKind, StopReason, Trace
from mcp_rollout.rollout.trace.segment import Segment, Span
from mcp_rollout.rollout.types import Call, Completion

pytestmark = pytest.mark.anyio
TOKENS = ByteTokens()
ONE_TURN = Limits(response_tokens=20_000, assistant_turns=1)


async def played(directory: Path, **options: Any) -> tuple[Trace, list[dict[str, Any]]]:
    return await play(directory, TOKENS, TOKENS.encode, stop=IM_END, **options)


@pytest.mark.parametrize("loss", ["keep", "mask"])
@pytest.mark.parametrize("context", ["keep", "drop_previous"])
async def test_every_token_is_where_the_engine_saw_it_and_in_one_samples_loss(
    tmp_path: Path, loss: str, context: str
) -> None:
    trace, log = await played(tmp_path, thinking={"loss": loss, "context": context})
    assert trace.stop_reason is StopReason.USER_DONE and len(log) == len(SCRIPT)
    check(trace, log, loss=loss, drops=context == "drop_previous", decode=TOKENS.decode)


async def test_dropped_thoughts_no_longer_count_against_the_token_budget(tmp_path: Path) -> None:
    script = [hermes.write(thinking="long " * 60, content=f"Answer {number}.") for number in range(4)]
    limits = Limits(response_tokens=700)
    kept, _ = await played(tmp_path / "keep", thinking={"context": "keep"}, script=script, limits=limits)
    dropped, log = await played(tmp_path / "drop", thinking={"context": "drop_previous"}, script=script, limits=limits)
    assert (kept.stop_reason, dropped.stop_reason) == (StopReason.TOKEN_LIMIT, StopReason.USER_DONE)
    check(dropped, log, loss="keep", drops=True, decode=TOKENS.decode)
    opening = len(dropped.segments[0].prompt_ids)
    assert all(len(segment.prompt_ids + segment.response_ids) <= opening + 700 for segment in dropped.segments)


@pytest.mark.parametrize("loss", ["keep", "mask"])
@pytest.mark.parametrize("context", ["keep", "drop_previous"])
@pytest.mark.parametrize("budget", [10, 25, 60])
async def test_a_thought_beyond_its_budget_is_closed_with_tokens_nobody_sampled(
    tmp_path: Path, loss: str, context: str, budget: int
) -> None:
    thinking = {"loss": loss, "context": context, "tokens_per_turn": budget}
    trace, log = await played(tmp_path, thinking=thinking)
    check(trace, log, loss=loss, drops=context == "drop_previous", decode=TOKENS.decode)
    closed = [turn for turn in trace.turns if any(mark.kind == "thinking_closed" for mark in turn.marks)]
    forced = [
        segment.response_ids[span.start : span.end]
        for segment in trace.segments
        for span in segment.spans
        if span.kind is SpanKind.FORCED
    ]
    assert len(closed) == len(forced) > 0 and {TOKENS.decode(ids) for ids in forced} == {"\n</think>\n\n"}
    for turn in closed:
        assert turn.generations == 2 and len(TOKENS.encode(turn.thinking)) < budget
    assert sum(turn.generations for turn in trace.turns) == len(log)
    assert sum(turn.sampled for turn in trace.turns) == sum(len(generation["token_ids"]) for generation in log)


LATE = hermes.write(thinking="Hm. Which of them?", content="That one.") + IM_END


def spans_of(trace: Trace) -> list[tuple[str, str, bool]]:
    return [
        (str(span.kind), TOKENS.decode(trace.response_ids[span.start : span.end]), trace.loss_mask[span.start] == 1)
        for span in trace.spans
        if span.kind is not SpanKind.CONTEXT
    ]


THINKING, OTHER = "thinking", "completion"


@pytest.mark.parametrize(
    ("text", "expected", "content"),
    [
        # The token that ends the turn is a decision of its own, and no thought.
        ("<think>\nHm.", [(THINKING, "<think>\nHm.", False), (OTHER, IM_END, True)], ""),
        ("Hm.</think>Yes.", [(THINKING, "Hm.</think>", False), (OTHER, f"Yes.{IM_END}", True)], "Yes."),
        (
            "<think>Hm.</think>Yes.</think>No.",
            [(THINKING, "<think>Hm.</think>", False), (OTHER, f"Yes.</think>No.{IM_END}", True)],
            "Yes.</think>No.",
        ),
    ],
)
async def test_the_loss_mask_of_markers_without_their_pair(
    tmp_path: Path, text: str, expected: list[tuple[str, str, bool]], content: str
) -> None:
    trace, _ = await played(tmp_path, thinking={"loss": "mask"}, script=[text], limits=ONE_TURN)
    assert spans_of(trace) == expected and trace.turns[0].content == content


async def test_a_thought_is_one_wherever_in_the_turn_it_stands(tmp_path: Path) -> None:
    script = [f"Ok. {LATE.removesuffix(IM_END)} <think>Sure?</think>Yes."]
    trace, _ = await played(tmp_path, thinking={"loss": "mask"}, script=script, limits=ONE_TURN)
    assert spans_of(trace) == [
        ("completion", "Ok. ", True),
        ("thinking", "<think>\nHm. Which of them?\n</think>", False),
        ("completion", "\n\nThat one. ", True),
        ("thinking", "<think>Sure?</think>", False),
        ("completion", f"Yes.{IM_END}", True),
    ]
    assert (trace.turns[0].thinking, trace.turns[0].content) == ("Hm. Which of them?\nSure?", "Ok. \n\nThat one. Yes.")


async def test_a_word_before_the_thought_evades_neither_budget_nor_dropping_nor_filter(tmp_path: Path) -> None:
    script = [f"Ok. {LATE.removesuffix(IM_END)}", "Bye."]
    closed, _ = await played(tmp_path / "a", thinking={"tokens_per_turn": 9}, script=script, limits=ONE_TURN)
    assert spans_of(closed)[:3] == [
        ("completion", "Ok. ", True),
        ("thinking", "<think>\nHm.", True),
        ("forced", "\n</think>\n\n", False),
    ]
    dropped, log = await played(tmp_path / "b", thinking={"context": "drop_previous"}, script=script)
    assert TOKENS.decode(log[1]["prompt_ids"]).partition("assistant\n")[2].startswith(f"Ok. That one.{IM_END}")
    assert dropped.segments[0].turns_sampled == [0]
    judged = Filters(FiltersConfig.model_validate({"long_thinking": {"tokens": 9}}))
    ids = TOKENS.encode(f"Ok. {LATE}")
    parsed = await TOKENS.parse(ids, ())
    judged.judge(closed, Completion(ids=ids), parsed)
    assert [str(mark.kind) for mark in closed.turns[0].marks][-1] == "long_thinking"


@pytest.mark.parametrize("thinking", [{"context": "drop_previous"}, {"tokens_per_turn": 5}])
def test_a_thinking_policy_that_a_format_cannot_have_is_refused(thinking: dict[str, Any]) -> None:
    made = environment(servers(), thinking=thinking)
    with pytest.raises(ConfigError, match=r"thinking\.(context|tokens_per_turn).*'gpt-oss'"):
        check_thoughts(made, "gpt-oss")
    for name in FORMATS.keys() - {"gpt-oss"}:
        check_thoughts(made, name)
    check_thoughts(environment(servers(), thinking={"loss": "mask"}), "gpt-oss")


def test_a_thought_that_the_template_opened_goes_with_its_opening() -> None:
    head, thought = TOKENS.encode("<|im_start|>assistant\n<think>\n"), TOKENS.encode("Hm.\n</think>")
    said = TOKENS.encode("\n\nYes.<|im_end|>")
    spans = [
        Span(kind=SpanKind.THINKING, turn=0, start=0, end=len(thought)),
        Span(kind=SpanKind.COMPLETION, turn=0, start=len(thought), end=len(thought) + len(said)),
    ]
    segment = Segment(prompt_ids=head, response_ids=thought + said, spans=spans)
    assert TOKENS.decode(without_thinking(segment, TOKENS)) == "<|im_start|>assistant\nYes.<|im_end|>"


async def test_calls_of_a_turn_whose_thought_was_closed_are_sent(tmp_path: Path) -> None:
    call = hermes.write(calls=[Call(name="shout", arguments={"text": "plum"})])
    trace, _ = await played(tmp_path, thinking={"tokens_per_turn": 9}, script=[f"<think>\nI think{call}", "Done."])
    assert trace.turns[0].tools[0].text == "PLUM"
