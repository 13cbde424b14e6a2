"""Reading a degenerate turn, of one marker again and again, is linear in its text: meanwhile all others wait."""

from __future__ import annotations

from itertools import permutations
from typing import Any

import pytest

from mcp_rollout.rollout.formats import FORMATS

TIMES = 300
MOST_PASSES = 12
"""Over the whole text; reading takes five or six, and one for each block would be hundreds."""


class Counted(str):
    """A text that counts the characters which are searched in it, stripped or copied."""

    touched = 0

    def find(self, *args: Any) -> int:
        found = super().find(*args)
        Counted.touched += (found if found >= 0 else len(self)) - (args[1] if len(args) > 1 else 0)
        return found

    def __getitem__(self, key: Any) -> Counted:
        part = Counted(super().__getitem__(key))
        Counted.touched += len(part)
        return part

    def strip(self, *args: Any) -> Counted:
        Counted.touched += len(self)
        return Counted(super().strip(*args))


@pytest.mark.parametrize("name", FORMATS)
def test_no_pair_of_markers_makes_reading_pass_over_the_text_for_each_block(name: str) -> None:
    known = FORMATS[name]
    for first, second in permutations(sorted(known.markers), 2):
        for text in (f"{first}{second}" * TIMES, f" {first}x{second}\n" * TIMES):
            Counted.touched = 0
            known.read(Counted(text), ())
            assert Counted.touched <= MOST_PASSES * len(text), (first, second)


@pytest.mark.parametrize(
    ("name", "opening", "repeated"),
    [
        ("glm", "<tool_call>x", "<arg_key>"),
        ("glm", "<tool_call>x", "<arg_key></arg_key><arg_value>"),
        ("qwen3_coder", "<tool_call>", "<function="),
        ("qwen3_coder", "<tool_call><function=x>", "<parameter="),
        ("seed", "<seed:tool_call>", "<function="),
    ],
)
def test_tags_without_an_end_are_read_once(name: str, opening: str, repeated: str) -> None:
    # Expressions cannot be counted. A search from each tag to the end of so long a text takes more than an hour.
    text = opening + repeated * (10_000_000 // len(repeated)) + ("</function>" if "<parameter" in repeated else "")
    calls = FORMATS[name].read(text, ()).calls
    assert calls and all(call.problem for call in calls)
