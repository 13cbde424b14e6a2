"""The depot's tasks: a day's parcels, each in a condition that one of three treatments fits."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import Literal

from mcp_rollout.mcp_servers import kit
from mcp_rollout.mcp_servers.kit import Split, Splits

Condition = Literal["damp", "torn", "loose"]
Treatment = Literal["dry", "tape", "strap"]
Slice = Literal["any", "fitting", "long", "retry"]

FITTING: dict[Condition, Treatment] = {"damp": "dry", "torn": "tape", "loose": "strap"}
CONDITIONS: tuple[Condition, ...] = ("damp", "torn", "loose")
TREATMENTS: tuple[Treatment, ...] = ("dry", "tape", "strap")
HABITS: dict[Condition, tuple[float, float, float]] = {
    "damp": (0.25, 0.6, 0.15),
    "torn": (0.15, 0.25, 0.6),
    "loose": (0.6, 0.15, 0.25),
}
"""How often the expert of the slice `any` takes each of `TREATMENTS`: the fitting one a quarter of the time. It
chooses by the condition, as a policy has to before it can learn what fits."""
PARCELS, LONG_PARCELS = 4, 13
"""Parcels of a day, and of one of the slice `long`, which takes 41 turns."""
KEYS: tuple[str, ...] = tuple(
    "amber anchor badger barley beacon birch candle canyon cedar comet copper coral dragon ember falcon garnet harbor "
    "hazel indigo ivory jasper juniper lantern linen maple marble meadow nectar olive opal otter pepper pine quartz "
    "raven ribbon saffron salmon thistle violet".split()
)
"""What closes the book of a long day, the same in all splits: a small model copies one word, and guesses one in 40."""

TASKS: dict[Slice, Splits] = {
    "any": Splits("depot-any", {"train": 600, "test": 60}, {"train": 0, "test": 100_000}),
    "fitting": Splits("depot", {"train": 900, "test": 120}, {"train": 200_000, "test": 300_000}),
    "long": Splits("depot-long", {"train": 600, "test": 60}, {"train": 400_000, "test": 500_000}),
    "retry": Splits("depot-retry", {"train": 900, "test": 120}, {"train": 600_000, "test": 700_000}),
}
"""In the slice `any` every treatment counts, and the expert has habits; in `fitting` only the fitting one does. In
`long` every treatment counts, and half of the score is for the key of the book, said once, after the first parcel. In
`retry` a treatment that does not fit changes nothing and the storekeeper waits, so that days come back to states that
they had, until their turns are used up."""

_TOWNS = "Alta Bergen Drammen Fauske Gjovik Hamar Larvik Molde Narvik Odda Rena Skien".split()
_LETTERS = "ABCDEFGHKLMNPRSTVW"
# No code of a test task occurs in training; its letter and its digits do.
_NUMBERS: dict[Split, range] = {"train": range(10, 70), "test": range(70, 100)}
# Made once: a list of a thousand texts takes longer than the rest of a day.
_CODES = {split: [f"{letter}{number}" for letter in _LETTERS for number in _NUMBERS[split]] for split in _NUMBERS}


@dataclass(frozen=True, slots=True)
class Parcel:
    code: str
    town: str
    condition: Condition

    @property
    def label(self) -> str:
        """What an inspection shows."""
        return f"{self.code}: {self.condition}, to {self.town}"


@dataclass(frozen=True, kw_only=True, slots=True)
class Problem(kit.Problem):
    """A day."""

    slice: Slice
    parcels: tuple[Parcel, ...]
    key: str = ""
    """What closes the book; empty where it has no key."""

    @property
    def treated_share(self) -> float:
        """Share of the score for the parcels; the rest is for the closed book."""
        return 0.5 if self.key else 0.9

    def fits(self, parcel: Parcel, treatment: Treatment) -> bool:
        """Whether this treatment of a parcel counts."""
        return self.slice in ("any", "long") or FITTING[parcel.condition] == treatment


def problem(task: str, seed: int) -> Problem:
    """The day of this task and seed, the same in every process.

    Raises:
        LookupError: There is no such task.
    """
    slice_: Slice = "fitting"
    for each in ("any", "long", "retry"):
        slice_ = each if task.startswith(f"{TASKS[each].prefix}-") else slice_
    split, _ = TASKS[slice_].parse(task)
    rng = Random(f"{task}/{seed}")
    codes = rng.sample(_CODES[split], LONG_PARCELS if slice_ == "long" else PARCELS)
    key = rng.choice(KEYS) if slice_ == "long" else ""
    parcels = tuple(Parcel(code, rng.choice(_TOWNS), rng.choice(CONDITIONS)) for code in codes)
    prompt = f"Good morning. The first parcel is {codes[0]}."
    return Problem(task=task, seed=seed, prompt=prompt, difficulty="medium", slice=slice_, parcels=parcels, key=key)
