"""What a policy writes is read in time linear in its length: on a shared server, other trajectories wait meanwhile.

Time quadratic in these texts is hours, so that a pattern that takes it fails by the time limit of a test.
"""

from __future__ import annotations

import pytest

from mcp_rollout.mcp_servers.calculator import arithmetic
from mcp_rollout.mcp_servers.research.server import answer_in
from mcp_rollout.mcp_servers.retail import score

LENGTH = 200_000
TEXTS = [
    "\n",
    " ",
    "1",
    "1,",
    "Answer:",
    "Answer:\n",
    "Answer: 1\n\n",
    ".",
    "W1",
    "TRK1",
    "no ",
    "yes",
    '"a',
]


@pytest.mark.parametrize("text", TEXTS)
def test_degenerate_text_is_read_at_once(text: str) -> None:
    for begin in ("", "Answer: 1", "Answer: "):
        for end in ("", "x"):
            said = begin + text * (LENGTH // len(text)) + end
            arithmetic.answer_in(said)
            answer_in(said)
            score.values_in([said])
            score.is_yes(said)


@pytest.mark.parametrize(
    ("said", "answer"),
    [
        ("**Answer: 1,234**", 1234),
        ("So\n\n**Answer:**\n 7", 7),
        ("- Answer: -2.50.", -2.5),
        ("Answer: 1, 2", None),
        ("The Answer: 3", None),
        ("Answer: 3\nAnswer: 4", None),
        ("Answer: 3\n> Answer: $3", 3),
    ],
)
def test_the_number_of_an_answer(said: str, answer: float | None) -> None:
    assert arithmetic.answer_in(said) == answer
