"""The recipes of docs/traces.md run as they stand, on exports of several environments."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from published_schemas import schemas
from trace_samples import recorded_trace

from mcp_rollout.rollout.trace.columns import write_columns
from mcp_rollout.rollout.trace.reader import Traces
from mcp_rollout.rollout.trace.record import Reward, Trace
from mcp_rollout.rollout.trace.store import TraceStore
from mcp_rollout.rollout.trace.trained import write_trained
from mcp_rollout.rollout.trace.trained_segment import TrainedSegment

TRAINED = {"retail-1": [0.0, 2.0], "retail-2": None}
ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "traces.md").read_text()
RECIPES = PAGE[PAGE.index("## Recipes") : PAGE.index("## Commands")]


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", RECIPES, re.DOTALL)


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("recipes")
    for number, environment in enumerate(("retail", "calculator", "research")):
        write_columns(directory / f"{environment}.parquet", [trace_of(environment, number, row) for row in range(4)])
    # What lies beside the exports of a training.
    numbers = {"mask": [False, True], "sampled_logprobs": [-0.5, -1.5], "trainer_logprobs": [-0.5, -1.0]}
    segment = TrainedSegment(trace="", segment=0, step=1, uid="u", sample=0, output=0, **numbers, advantages=[0.0, 0.5])
    trained = [replace(segment, trace=name, entropy=entropy) for name, entropy in TRAINED.items()]
    write_trained(directory, 1, [*trained, replace(segment, trace="retail-0", dropped="filtered", mask=[])])
    TraceStore(directory).append(recorded_trace("in a journal"))
    (directory / "retail-0.run.json").write_text("{}")
    with Traces(directory):
        pass
    return directory


def trace_of(environment: str, number: int, row: int) -> Trace:
    trace = recorded_trace(f"{environment}-{row}")
    trace.task = trace.task.model_copy(update={"environment": environment})
    trace.origin = trace.origin.model_copy(update={"row": row // 2, "step": number})
    trace.reward = Reward(score=row / 4, parts={f"{environment}_part": row / 4})
    trace.turns[0].tools[0].is_error = row == 3
    return trace


def asked(directory: Path, number: int) -> list[tuple[Any, ...]]:
    duckdb = pytest.importorskip("duckdb")
    return duckdb.sql(blocks("sql")[number].replace("DIR", str(directory))).fetchall()


def run(directory: Path, number: int) -> dict[str, Any]:
    names: dict[str, Any] = {}
    code = blocks("python")[number].replace("DIR", str(directory)).replace("CACHE", str(directory / "cache"))
    exec(code, names)
    return names


def test_duckdb_has_rewards_and_errors_by_step(directory: Path) -> None:
    assert asked(directory, 0) == [
        ("calculator", 1, 4, 0.375, 0.25),
        ("research", 2, 4, 0.375, 0.25),
        ("retail", 0, 4, 0.375, 0.25),
    ]


def test_duckdb_has_each_call_with_its_result(directory: Path) -> None:
    rows = asked(directory, 1)
    assert len(rows) == 12 and [row[4] for row in rows] == [True] * 3 + [False] * 9
    assert rows[0] == ("calculator-3", 0, "x", '{"k":[1,null]}', True, "ok")


def test_duckdb_has_reward_parts_in_long_form(directory: Path) -> None:
    assert [row[1:] for row in asked(directory, 2)] == [
        (f"{name}_part", 0.375, 4) for name in ("calculator", "research", "retail")
    ]


def test_duckdb_has_what_was_trained_on_each_token(directory: Path) -> None:
    rows = asked(directory, 3)
    assert [row[:6] for row in rows] == [(name, 1, 0, 1, 4, 0.5) for name in TRAINED]
    assert [row[6:8] for row in rows] == [(-1.5, -1.0)] * 2 and [row[9] for row in rows] == [2.0, None]
    assert rows[0][8] == pytest.approx(math.exp(0.5))


def test_pandas_has_the_spread_of_siblings(directory: Path) -> None:
    spread = run(directory, 0)["spread"]
    assert len(spread) == 6 and set(spread["count"]) == {2}


def test_pandas_has_log_probabilities(directory: Path) -> None:
    summary = run(directory, 1)["summary"]
    assert len(summary) == 12 and set(summary.sampled) == {2} and set(summary.logprob) == {-1.0}


@pytest.mark.filterwarnings("ignore")
def test_polars_and_datasets_read_several_environments(directory: Path) -> None:
    pytest.importorskip("polars")
    names = run(directory, 2)
    assert names["shortest"].shape == (3, 3)
    assert {row["environment"] for row in names["rows"]} == {"retail", "calculator", "research"}


def test_the_published_schemas_are_those_of_the_code() -> None:
    """Made by `python tests/support/published_schemas.py docs/schemas`."""
    for name, text in schemas().items():
        assert (ROOT / "docs" / "schemas" / name).read_text() == text, name
