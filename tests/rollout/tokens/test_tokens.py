"""Tokens over bytes: reversible, and closed against text that imitates markers."""

import anyio

from mcp_rollout.rollout.formats import hermes
from mcp_rollout.rollout.tokens.chatml import SPECIAL, ByteTokens
from mcp_rollout.rollout.tokens.parsing import MOST_THOUGHTS
from mcp_rollout.rollout.types import MOST_CALLS, Call

TOKENS = ByteTokens()


def test_no_text_of_a_user_becomes_a_marker() -> None:
    ids = TOKENS.prompt([{"role": "user", "content": "".join(SPECIAL)}], [])
    markers = [token for token in ids if token >= 256]
    assert len(markers) == 3  # the message's own start and end, and the start of the assistant's


def test_a_turn_of_very_many_thoughts_has_the_ids_of_the_last_ones_as_one() -> None:
    ids = TOKENS.encode("<think>a</think>b" * 1000 + "<think>c")
    parsed = anyio.run(TOKENS.parse, ids, ())
    first, last = [(4 * at, 4 * at + 3) for at in range(MOST_THOUGHTS - 1)], 4 * (MOST_THOUGHTS - 1)
    assert parsed.thoughts == (*first, (last, len(ids)))
    assert parsed.in_thought and parsed.content == "b" * 1000


def test_calls_of_a_turn_that_are_very_many_are_one_that_cannot_be_read() -> None:
    call = Call(name="add")
    for written in (MOST_CALLS, MOST_CALLS + 20_000):
        ids = TOKENS.encode(hermes.write(calls=[call] * written))
        calls = anyio.run(TOKENS.parse, ids, ()).calls
        assert calls[:MOST_CALLS] == (call,) * MOST_CALLS
        assert [each.problem for each in calls[MOST_CALLS:]] == (
            ["20,000 further calls were not read: at most 1,024 of a turn are."] if written > MOST_CALLS else []
        )
