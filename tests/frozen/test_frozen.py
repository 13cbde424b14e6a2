"""The code of the day makes of each engine log of the corpus what the version that made the corpus made of it."""

from __future__ import annotations

import fnmatch
from collections import defaultdict
from pathlib import Path
from random import Random

import frozen_corpus
import pytest
import yaml

HERE = Path(__file__).parent
KINDS = sorted(path.stem for path in (HERE / "corpus").glob("*.zst"))
DECLARED: list[dict[str, str]] = yaml.safe_load((HERE / "differences.yaml").read_text()) or []
SHARE = 24
"""One case in so many is played by `make test`, at least one of each kind."""

pytestmark = [pytest.mark.verl, pytest.mark.anyio, pytest.mark.usefixtures("imported_verl")]


async def played(kind: str, *, share: int) -> dict[str, list[str]]:
    """By case, how what it gives today differs from the corpus."""
    from frozen_playing import Recorded, name_of, play_stages

    corpus = frozen_corpus.read(HERE / "corpus" / f"{kind}.zst")
    count = len(corpus["cases"])
    # Drawn, since each seventh case, say, may be of one environment.
    places = sorted(Random(kind).sample(range(count), -(-count // share)))
    chosen = [corpus["cases"][at] for at in places]
    old = {name_of(each["case"]): each["seen"] for each in chosen}
    cases = [each["case"] for each in chosen]
    seen = await play_stages(
        cases,
        corpus["environments"],
        lambda case: Recorded(old[name_of(case)]["engine"]),
        lambda case: old[name_of(case)]["world"],
    )
    again = dict(zip(old, seen, strict=True))
    return {name: list(frozen_corpus.differences(name, old[name], again[name])) for name in old}


def undeclared(found: dict[str, list[str]]) -> list[str]:
    """The differences that differences.yaml does not name, and its entries that name none."""
    left: list[str] = []
    used = defaultdict[int, int](int)
    for difference in (each for differences in found.values() for each in differences):
        path = difference.partition(": ")[0]
        matching = [at for at, each in enumerate(DECLARED) if fnmatch.fnmatch(path, each["where"])]
        left += [] if matching else [difference]
        for at in matching:
            used[at] += 1
    for at, each in enumerate(DECLARED):
        name = each["where"].partition("/")[0]
        if not used[at] and (touched := fnmatch.filter(found, name)):
            left.append(f"{each['where']} is declared, and nothing differs there in {', '.join(touched)}")
    return left


def check(found: dict[str, list[str]]) -> None:
    left = undeclared(found)
    if left:
        cases = {each.partition("/")[0] for each in left}
        shown = "\n".join(left[:40])
        pytest.fail(f"{len(left)} differences in {len(cases)} of {len(found)} cases:\n{shown}", pytrace=False)


def test_each_declared_difference_has_a_reason_and_is_of_a_kind_of_the_corpus() -> None:
    for each in DECLARED:
        assert set(each) == {"where", "reason"} and each["reason"]
        assert any(fnmatch.fnmatch(f"{kind}-0", f"{each['where'].partition('-')[0]}-*") for kind in KINDS), each


@pytest.mark.parametrize("kind", KINDS)
async def test_samples_and_prompts_are_those_of_the_version_before(kind: str) -> None:
    check(await played(kind, share=SHARE))


@pytest.mark.full
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("kind", KINDS)
async def test_all_samples_and_prompts_are_those_of_the_version_before(kind: str) -> None:
    check(await played(kind, share=1))
