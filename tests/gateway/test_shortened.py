"""What is kept of large values: their beginning, and how much is missing."""

import json
from typing import Any

import anyio
import pytest

from mcp_rollout.gateway.connection.in_flight import Answerer, InFlightCall, Question
from mcp_rollout.gateway.server_events import RequestKind, ServerEvents, shortened


@pytest.mark.parametrize(
    ("value", "kept"),
    [
        ("abcdefgh", "abcdef…[2 characters cut]"),
        (["abc", "abcdef"], ["ab…[1 characters cut]", "…[1 more]"]),
        ({"a": {"b": "c"}, "x": 1}, {"a": {"…": "1 more"}, "…": "1 more"}),
        ("abcdef", "abcdef"),
    ],
)
def test_what_is_cut_says_how_much_is_missing(value: Any, kept: Any) -> None:
    assert shortened(value, 6) == kept


def test_a_value_that_is_small_enough_stays_as_it_is() -> None:
    value = {"message": "How many?", "schema": {"required": ["n"], "minimum": 1.5, "x": None}}
    assert shortened(value) == value


def test_nothing_is_kept_beyond_its_depth() -> None:
    value: Any = 1
    for _ in range(5000):
        value = [value]
    assert len(json.dumps(shortened(value))) < 200


@pytest.mark.anyio
async def test_of_a_large_question_and_answer_the_beginning_is_kept_and_the_whole_is_passed_on() -> None:
    events, long = ServerEvents(), "x" * 1_000_000

    async def answer(question: Question) -> dict[str, Any]:
        assert question.params["message"] == long
        return {"action": "accept", "content": {"text": long}}

    call = InFlightCall(
        server="s",
        tool="t",
        answerers={RequestKind.ELICITATION: Answerer(answer=answer, timeout_s=5, queue=anyio.CapacityLimiter(1))},
        events=events,
    )
    answered = await call.answer(RequestKind.ELICITATION, {"message": long, "requestedSchema": {}})
    assert answered["content"]["text"] == long
    (kept,) = events.requests
    assert len(json.dumps(kept.asked)) < 10_000 and len(json.dumps(kept.answer)) < 10_000
    assert "characters cut]" in kept.asked["message"]
