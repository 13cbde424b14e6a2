"""Every thinking policy that a tool format permits, position by position against the engine's log."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import anyio
import pytest
from conversations import EVERYTHING, Said, played
from engine_log import compare, read_records, recorded, samples_of
from sampled import Sampler
from thoughts import thought_tokens, without_thoughts
from tool_formats import DIALECTS, tokenizer_for

from mcp_rollout.rollout.trace.record import SpanKind, StopReason, Trace
from mcp_rollout.rollout.types import Call

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
    in_loss: dict[int, list[bool]] = {}
    for sample in samples:
        turns: list[tuple[int, list[int]]] = []
        for turn in sample["turns"]:
            own = [left.pop(0) for _ in range(turn["generations"])]
            start = len(own[0]["prompt_ids"])
            # The marker between two generations included.
            ids = own[-1]["prompt_ids"][start:] + own[-1]["token_ids"]
            turns.append((start, ids))
            thought = thought_tokens(name, tokenizer, ids) if loss == "mask" else [False] * len(ids)
            for each in own:
                at = len(each["prompt_ids"]) - start
                in_loss[id(each)] = [not is_thought for is_thought in thought[at : at + len(each["token_ids"])]]
        assert sample["prompt_ids"][: len(dropped)] == dropped
        dropped = left_of(name, tokenizer, sample, turns, stands_in)
    assert left == []
    found = compare(
        sampler.log, recorded([record]), in_loss=lambda generation: in_loss[id(generation)], stands_in=stands_in
    )
    assert found.differences == {}


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
