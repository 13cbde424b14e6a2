"""The number that a message gives as its answer."""

from __future__ import annotations

import re

_ANSWER = re.compile(r"^\W*Answer:\W*?(-?\d[\d,]*(?:\.\d+)?)\W*$", re.MULTILINE)


def answer_in(message: str) -> float | None:
    """The number in the message's explicit `Answer: N`; two different ones are none, or naming many would pay."""
    answers = {float(found.replace(",", "")) for found in _ANSWER.findall(message)}
    return answers.pop() if len(answers) == 1 else None
