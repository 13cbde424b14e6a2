"""Names, numbers and seeds of an environment's tasks."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mcp_rollout.mcp_servers.kit import Splits

TASKS = Splits("shop", {"train": 12_000, "test": 30})


def test_names_and_seeds_of_both_splits_are_all_unlike() -> None:
    names = [*TASKS.names("train"), *TASKS.names("test")]
    assert names[:2] == ["shop-train-0000", "shop-train-0001"] and names[-1] == "shop-test-0029"
    assert len(set(names)) == len({TASKS.seed(name) for name in names}) == 12_030
    assert [TASKS.parse(name) for name in ("shop-train-11999", "shop-test-0029")] == [("train", 11_999), ("test", 29)]


@pytest.mark.parametrize(
    "task",
    [
        "shop-test-0030",
        "shop-test-29",
        "shop-test-00029",
        "shop-test--001",
        "shop-test-\u0661\u0661\u0661\u0661",
        "shop-test-0029\n",
        "shop-dev-0001",
        "shop-train-test-0001",
        "SHOP-test-0001",
        "shop-test-" + "9" * 5000,
        "",
    ],
)
def test_a_task_has_one_name_and_any_other_is_none(task: str) -> None:
    with pytest.raises(LookupError, match="there is no task"):
        TASKS.parse(task)


@settings(deadline=None)
@given(st.text())
def test_whatever_is_asked_for_is_a_listed_name_or_refused(text: str) -> None:
    for task in (text, f"shop-test-{text}"):
        try:
            split, index = TASKS.parse(task)
        except LookupError:
            continue
        assert TASKS.names(split)[index] == task
