"""Every thinking policy that a tool format permits, position by position against the engine's log."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import anyio
import pytest
from conversations import EVERYTHING, Said, played
from engine_log import derive, read_records, samples_of
from sampled import Sampler
from thoughts import thought_tokens, without_thoughts
from tool_formats import DIALECTS, tokenizer_for

from rollout.trace.record import SpanKind, StopReason, Trace
from rollout.types import Call

pytestmark = pytest.mark.usefixtures("imported_verl")

SCRIPT = [
    *EVERYTHING,
    Said(thinking="Too late to be the first.", content="It was.", calls=(), half=False, late=True),
    Said(
        thinking="Late, and then",
        content="",
        calls=(Call(name="note", arguments={"text": "x"}),),
        half=False,
        late=True,
    ),
    Said(thinking="Bye \U0001f351.", content="Bye.", calls=(), half=False),
]
POLICIES: dict[str, dict[str, Any]] = {
    "mask": {"loss": "mask"},
    "drop": {"context": "drop_previous"},
    "close": {"tokens_per_turn": 9},
    "all": {"loss": "mask", "context": "drop_previous", "tokens_per_turn": 9},
}
PERMITTED = [(name, policy) for name in DIALECTS for policy in POLICIES if name != "gpt-oss" or policy == "mask"]


@pytest.mark.parametrize(("name", "policy"), PERMITTED)
def test_a_conversation_is_what_the_engine_saw_and_sampled(name: str, policy: str, tmp_path: Path) -> None:
    trace, sampler = anyio.run(lambda: played(name, SCRIPT, tmp_path, **POLICIES[policy]))
    assert trace.stop_reason is StopReason.TURN_LIMIT, trace.failure
    (record,) = read_records(tmp_path)
    check(name, record, sampler, **POLICIES[policy])
    closed = [span for segment in trace.segments for span in segment.spans if span.kind is SpanKind.FORCED]
    assert bool(closed) == ("tokens_per_turn" in POLICIES[policy])
    # All calls that were whole were sent, whatever became of the thoughts.
    assert [[event.name for event in turn.tools] for turn in trace.turns] == names_called(name, trace)
    if not closed:
        for said, turn in zip(SCRIPT, trace.turns, strict=True):
            assert said.thinking in turn.thinking and said.content in turn.content
            assert not said.thinking or said.thinking not in turn.content


def names_called(name: str, trace: Trace) -> list[list[str]]:
    many = DIALECTS[name].many
    return [["note"] if said.half else [call.name for call in said.calls[: None if many else 1]] for said in SCRIPT]


def check(
    name: str,
    record: dict[str, Any],
    sampler: Sampler,
    *,
    loss: str = "keep",
    context: str = "keep",
    tokens_per_turn: int | None = None,
) -> None:
    """All samples of a trajectory against the log, and each sample's prompt against what came before it."""
    tokenizer = tokenizer_for(name)
    stands_in = frozenset(tokenizer.convert_tokens_to_ids(token) for token in DIALECTS[name].stands_in)
    left, samples = list(sampler.log), samples_of(record)
    assert context == "drop_previous" or len(samples) == 1
    assert context == "keep" or len(samples) > 2
    dropped: list[int] = []
    for number, sample in enumerate(samples):
        begin = len(sampler.log) - len(left)
        ids, mask, logprobs = derive(sample, left, stands_in=stands_in)
        turns = turns_of(sample, sampler.log[begin : len(sampler.log) - len(left)])
        prompt = len(sample["prompt_ids"])
        if loss == "mask":
            for start, turn in turns:
                thought = thought_tokens(name, tokenizer, turn)
                own = slice(start - prompt, start - prompt + len(turn))
                # Where the stop was taken out, the turn is by one longer than what is left of it.
                mask[own] = [
                    bit * (not is_thought) for bit, is_thought in zip(mask[own], thought[: len(mask[own])], strict=True)
                ]
        if number < len(samples) - 1 and ids[-1] in stands_in:
            ids, mask, logprobs = ids[:-1], mask[:-1], logprobs[:-1]
        own = slice(0, len(ids))
        assert (sample["response_ids"][own], sample["loss_mask"][own], sample["logprobs"][own]) == (ids, mask, logprobs)
        assert set(sample["loss_mask"][len(ids) :]) <= {0}
        assert sample["prompt_ids"][: len(dropped)] == dropped
        dropped = left_of(name, tokenizer, sample, turns, stands_in)
    assert left == [], "what the engine sampled is in no training sample"


def turns_of(sample: dict[str, Any], generations: list[dict[str, Any]]) -> list[tuple[int, list[int]]]:
    """(where it begins in prompt and response, its ids) of each turn, the marker between two generations included."""
    found: list[tuple[int, list[int]]] = []
    left = list(generations)
    for turn in sample["turns"]:
        own = [left.pop(0) for _ in range(turn["generations"])]
        start = len(own[0]["prompt_ids"])
        found.append((start, own[-1]["prompt_ids"][start:] + own[-1]["token_ids"]))
    return found


def left_of(
    name: str,
    tokenizer: Any,
    sample: dict[str, Any],
    turns: list[tuple[int, list[int]]],
    stands_in: frozenset[int],
) -> list[int]:
    """How the context of the next sample begins, if thoughts are dropped."""
    whole = sample["prompt_ids"] + sample["response_ids"]
    kept: list[int] = []
    done = 0
    for start, ids in turns:
        kept = without_thoughts(name, tokenizer, kept + whole[done:start], ids)
        done = start + len(ids)
        if kept[-1] in stands_in:
            del kept[-1]
            done -= 1
    return kept
