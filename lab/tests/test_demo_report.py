"""The table and the picture in the docs are those of the recorded results, and README states the weakest of them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
RESULTS: list[dict[str, Any]] = json.loads((ROOT / "docs" / "demo_results.json").read_text())

pytestmark = [pytest.mark.verl]


def test_the_table_in_the_docs_is_that_of_the_recorded_results() -> None:
    from lab.demo.report import with_table

    page = (ROOT / "docs" / "demo.md").read_text()
    assert with_table(page, RESULTS) == page
    changed = [RESULTS[0] | {"first": 0.123}, *RESULTS[1:]]
    assert "0.12 →" in with_table(page, changed)


def test_the_readme_states_the_weakest_seed() -> None:
    shares = [count / of for result in RESULTS if result["learning_rate"] for count, of in [result["after"]["total"]]]
    assert f"the weakest seed ends at {min(shares):.2f}" in " ".join((ROOT / "README.md").read_text().split())


def test_a_page_without_marks_is_refused() -> None:
    from lab.demo.report import with_table

    with pytest.raises(ValueError, match="begin"):
        with_table("# The demo\n", RESULTS)


def test_a_run_of_other_tasks_is_refused_and_the_recorded_results_stay(tmp_path: Path) -> None:
    from lab.demo.report import main

    (tmp_path / "result.json").write_text(json.dumps(RESULTS[0] | {"held_out_environment": "shop:slice=validation"}))
    with pytest.raises(SystemExit, match="shop:slice=validation"):
        main([str(tmp_path)])
    assert json.loads((ROOT / "docs" / "demo_results.json").read_text()) == RESULTS
