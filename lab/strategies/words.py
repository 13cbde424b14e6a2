"""Other conditions and treatments in the expert's days, so that a small model learns to copy and to tell them apart."""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from lab.demo.variation import Piece

CONDITIONS: Sequence[str] = "damp torn loose bent cracked dirty dusty faded frozen greasy leaking muddy wet".split()
TREATMENTS: Sequence[str] = "dry tape strap bag clean cool fold glue label lift pack press rinse".split()
"""The depot's three conditions and treatments, and ten of each that only the warm-up has."""
OWN = 3
OWN_SHARE = 0.5
"""Share of the parcels that keep their words under `known`."""

Words = Literal["random", "known"]
"""`random`: any condition with any treatment. Among thirteen words a model learns to copy, where it would guess among
three. `known`: half of the parcels keep their words and the expert's treatments; the others have a condition of the ten
and the treatment that belongs to it, from which a model learns that treatments depend on conditions."""

_CALL = '"name": "'
_WORD = re.compile(
    r"(?P<before>: |It is |, |\"name\": \")"
    r"(?:(?P<condition>damp|torn|loose)(?=, )|(?P<treatment>dry|tape|strap)(?= it\.|\", ))"
)


def exchange(pieces: Sequence[Piece], words: Words, rng: random.Random) -> list[Piece]:
    """Exchange the words of a day in the order of its text: inspection, thought, call."""
    parcel = _Parcel(words, rng)
    return [Piece(_WORD.sub(parcel.exchanged, piece.text), piece.sampled) for piece in pieces]


@dataclass(slots=True)
class _Parcel:
    """The words of the parcel that the text is at."""

    words: Words
    rng: random.Random
    condition: str = ""
    thought: str | None = None

    def exchanged(self, found: re.Match[str]) -> str:
        before: str = found["before"]
        if not self.condition and before != ": ":  # the text begins after the parcel's inspection
            return found[0]
        if found["condition"]:
            if before == ": ":  # an inspection's result, which the thought then copies
                self.condition, self.thought = self._condition(found["condition"]), None
            return before + self.condition
        chosen = self._treatment(found["treatment"]) if self.thought is None else self.thought
        self.thought = None if before == _CALL else chosen
        return before + chosen

    def _condition(self, own: str) -> str:
        if self.words == "random":
            return self.rng.choice(CONDITIONS)
        return own if self.rng.random() < OWN_SHARE else self.rng.choice(CONDITIONS[OWN:])

    def _treatment(self, own: str) -> str:
        if self.words == "random":
            return self.rng.choice(TREATMENTS)
        kind = CONDITIONS.index(self.condition)
        return own if kind < OWN else TREATMENTS[kind]
