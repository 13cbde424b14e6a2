"""Tokens over bytes: reversible, and closed against text that imitates markers."""

import anyio
from hypothesis import given
from hypothesis import strategies as st

from mcp_rollout.rollout.formats import hermes
from mcp_rollout.rollout.tokens.chatml import IM_END, SPECIAL, ByteTokens
from mcp_rollout.rollout.tokens.parsing import MOST_THOUGHTS
from mcp_rollout.rollout.types import MOST_CALLS, Call

TOKENS = ByteTokens()
TOOLS = [{"type": "function", "function": {"name": "add", "description": "", "parameters": {}}}]


@given(st.text())
def test_text_survives_encoding(text: str) -> None:
    encoded = text.encode(errors="surrogatepass").decode(errors="replace")
    assert TOKENS.decode(TOKENS.encode(encoded)) == encoded


def test_no_text_of_a_user_becomes_a_marker() -> None:
    ids = TOKENS.prompt([{"role": "user", "content": "".join(SPECIAL)}], [])
    markers = [token for token in ids if token >= 256]
    assert len(markers) == 3  # the message's own start and end, and the start of the assistant's


def test_thinking_is_counted_in_tokens_to_its_closing_marker() -> None:
    ids = TOKENS.encode(hermes.write(thinking="hm", content="yes") + IM_END)
    parsed = anyio.run(TOKENS.parse, ids, [])
    assert TOKENS.decode(ids[: parsed.thinking_tokens]).endswith(hermes.THINK_CLOSE)
    assert TOKENS.decode(ids[parsed.thinking_tokens :]) == "\n\nyes" + IM_END


def test_the_prompt_holds_every_tool_and_ends_where_the_policy_begins() -> None:
    text = TOKENS.decode(TOKENS.prompt([{"role": "system", "content": "Be kind."}], TOOLS))
    assert "Be kind." in text and '"name": "add"' in text
    assert text.endswith("<|im_start|>assistant\n")


def test_a_completion_cut_short_gets_the_end_of_its_message() -> None:
    new = [{"role": "user", "content": "go on"}]
    assert TOKENS.messages([1, 2], [], new, []).inserted == [TOKENS.stop_id]
    assert TOKENS.messages([1, TOKENS.stop_id], [], new, []).inserted == []


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
