"""data --check names every problem of a file with row, column and remedy."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from typer.testing import CliRunner

from mcp_rollout.gateway.catalogue.tool_config import lock_entries, write_lock
from mcp_rollout.gateway.errors import ConfigError
from mcp_rollout.gateway.types import ToolDefinition
from mcp_rollout.rollout.cli.app import app
from mcp_rollout.rollout.cli.data import MOST_SHOWN, data

MCP: dict[str, Any] = {"environment": "sums", "task": "test-1", "seed": 1, "tools": ["add"]}
USER = [{"role": "user", "content": "Add up to 1."}]
TEMPLATES = Path(__file__).parents[2] / "support" / "templates"
Examine = Callable[..., dict[str, Any]]


@pytest.fixture
def examine(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Examine:
    """Writes rows and the environment `sums`, and gives what `data --check --json` says, the status as `status`."""
    made = {
        "servers": {"faulty": {"factory": "faulty:sound"}},
        "system": {"text": "Add."},
        "user": {"server": "faulty"},
        "reward": {"server": "faulty", "parts": ["right", "polite"]},
        "tasks": {"server": "faulty"},
    }

    def run(rows: list[dict[str, Any]], *, environment: dict[str, Any] = {}, **options: Any) -> dict[str, Any]:  # noqa: B006
        (tmp_path / "sums.yaml").write_text(yaml.safe_dump(made | environment))
        rows = [{**row, "extra_info": {"index": index} | row["extra_info"]} for index, row in enumerate(rows)]
        pq.write_table(pa.Table.from_pylist(rows), tmp_path / "rows.parquet")
        status = data(check=tmp_path / "rows.parquet", environments_dir=tmp_path, as_json=True, **options)
        *_, answer = capsys.readouterr().out.splitlines()  # the lines before it are logs
        return {"status": status, **json.loads(answer)}

    return run


def row(mcp: Any = MCP, **columns: Any) -> dict[str, Any]:
    return {
        "data_source": "sums",
        "agent_name": "mcp_agent",
        "prompt": USER,
        "extra_info": {"mcp": mcp},
    } | columns


def found(said: dict[str, Any]) -> list[tuple[int | None, str]]:
    return [(problem["row"], problem["column"]) for problem in said["shown"]]


def test_rows_that_can_be_trained_on_pass(examine: Examine) -> None:
    said = examine([row(), row({**MCP, "task": "train-0", "tools": None})])
    assert said["status"] == 0 and said["problems"] == 0 and said["rows"] == 2


@pytest.mark.parametrize(("indices", "shared"), [((None, None), "rows 0, 1 have"), ((0, 0, 1), "row 1 has")])
def test_rows_that_share_a_number_are_a_problem(examine: Examine, indices: tuple[int | None, ...], shared: str) -> None:
    said = examine([row(extra_info={"mcp": MCP, "index": index}) for index in indices])
    assert found(said) == [(None, "extra_info.index")]
    assert said["shown"][0]["problem"].startswith(f"{shared} no number")


def test_rows_of_verls_own_agents_may_stand_beside_ours(examine: Examine) -> None:
    said = examine([row(), row(agent_name="single_turn_agent", extra_info={"mcp": None})])
    assert (said["rows"], said["problems"]) == (1, 0)


def test_a_row_without_a_prompt_is_told_what_one_is(examine: Examine) -> None:
    said = examine([row(prompt=None)])
    (problem,) = said["shown"]
    assert (problem["column"], problem["problem"]) == ("prompt", "is not a list of chat messages")


def test_every_problem_is_named_with_row_column_and_remedy(examine: Examine) -> None:
    said = examine(
        [
            row(),
            row({**MCP, "tools": ["ad"]}),
            row({**MCP, "environment": "sms"}),
            row({**MCP, "seed": None}),
            row(agent_name="mcp_agents"),
            row(data_source=None),
            row(None),
            row(prompt=[]),
        ]
    )
    assert found(said) == [
        (1, "extra_info.mcp.tools"),
        (2, "extra_info.mcp.environment"),
        (3, "extra_info.mcp.seed"),
        (4, "agent_name"),
        (5, "data_source"),
        (6, "extra_info.mcp"),
        (7, "prompt"),
    ]
    assert said["status"] == 1 and all(problem["remedy"] for problem in said["shown"])
    assert said["shown"][0]["remedy"] == "did you mean 'add'?"
    assert "did you mean 'sums'" in said["shown"][1]["remedy"]
    assert said["shown"][6]["problem"] == "the prompt has no messages"


def test_every_problem_of_one_row_is_reported(examine: Examine) -> None:
    said = examine([row({**MCP, "environment": "", "seed": None}, prompt=None, data_source=None)])
    assert sorted(column for _, column in found(said)) == [
        "data_source",
        "extra_info.mcp.environment",
        "extra_info.mcp.seed",
        "prompt",
    ]


def test_an_environment_that_many_rows_need_is_one_problem_with_their_number(examine: Examine) -> None:
    said = examine([row({**MCP, "environment": name}) for name in ("sms", "sums", "sms", "smus", "sms")])
    assert [(problem["row"], "as 2 more rows do" in problem["problem"]) for problem in said["shown"]] == [
        (0, True),
        (3, False),
    ]


def test_a_task_that_no_list_has_is_tried_by_a_reset(examine: Examine) -> None:
    said = examine([row({**MCP, "task": "of my own", "seed": 99})])
    assert said["problems"] == 0  # this server resets to any task
    broken = examine(
        [row({**MCP, "task": "other"})], environment={"servers": {"faulty": {"factory": "faulty:reset_raises"}}}
    )
    assert found(broken) == [(0, "extra_info.mcp.task")]


def test_every_task_that_no_list_has_is_tried_however_many_there_are(examine: Examine) -> None:
    rows = [row({**MCP, "task": f"of my own {number}"}) for number in range(60)]
    rows[55] = row({**MCP, "task": "unheard of"})
    said = examine(rows, environment={"servers": {"faulty": {"factory": "faulty:picky"}}})
    assert found(said) == [(55, "extra_info.mcp.task")] and "no task 'unheard of'" in said["shown"][0]["problem"]


def test_a_task_that_is_not_the_one_of_its_prompt_or_has_another_seed_is_found(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "rows.parquet"
    data("calculator", output=file, split="test", rows=6)
    rows = pq.read_table(file).to_pylist()
    for name in ("task", "seed"):  # a seed may be part of what makes a task
        first, second = rows[0]["extra_info"]["mcp"], rows[1]["extra_info"]["mcp"]
        first[name], second[name] = second[name], first[name]
    rows[2]["extra_info"]["mcp"]["seed"] += 1000
    rows[3]["prompt"][-1]["content"] += " Answer in one line."
    rows[4]["prompt"][-1]["content"] = rows[5]["prompt"][-1]["content"]
    pq.write_table(pa.Table.from_pylist(rows), file)
    capsys.readouterr()
    assert data(check=file, as_json=True) == 1
    said = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert [row for row, _ in found(said)] == [0, 1, 2, 4]
    assert dict(found(said))[2] == "extra_info.mcp.seed"


def test_an_agent_loop_of_ones_own_is_known_by_the_file_that_registers_it(examine: Examine, tmp_path: Path) -> None:
    file = tmp_path / "loops.yaml"
    file.write_text("- name: my_loop\n  _target_: my.Loop\n")
    rows = [row(), row(agent_name="my_loop", extra_info={"mcp": None})]
    assert found(examine(rows)) == [(1, "agent_name")]
    assert examine(rows, agent_loops=file)["problems"] == 0
    file.write_text("my_loop: my.Loop\n")
    with pytest.raises(ConfigError, match="is not a list"):
        examine(rows, agent_loops=file)
    file.write_text("- name: my_loop\n- _target_: my.Loop\n- 3\n")
    with pytest.raises(ConfigError, match="entries 2, 3 without a name"):
        examine(rows, agent_loops=file)


def test_an_opening_that_the_user_does_not_say_is_found(examine: Examine) -> None:
    servers = {"faulty": {"factory": "faulty:prompt_of_its_own"}}
    said = examine([row()], environment={"servers": servers})
    assert found(said) == [(0, "prompt")] and "differs from the opening" in said["shown"][0]["problem"]


def test_an_environment_that_cannot_serve_is_a_problem_of_the_file(examine: Examine) -> None:
    said = examine([row()], environment={"servers": {"faulty": {"factory": "faulty:unmarked_score"}}})
    assert found(said) == [(None, "reward.server")]
    gone = examine([row()], environment={"servers": {"faulty": {"command": "no-such-program"}}})
    assert found(gone) == [(None, "servers.faulty")]


def test_a_lock_that_differs_or_lacks_the_environment_is_found(examine: Examine, tmp_path: Path) -> None:
    changed = ToolDefinition(
        server="faulty", name="add", exposed_name="add", description="Subtract.", input_schema={"type": "object"}
    )
    write_lock(tmp_path / "lock.yaml", lock_entries({"faulty": [changed]}, environment="sums", source="sums.yaml"))
    said = examine([row()], tool_config=tmp_path / "lock.yaml")
    assert said["problems"] == 1 and "Subtract." in said["shown"][0]["problem"]
    assert "--accept" in said["shown"][0]["remedy"]
    write_lock(tmp_path / "lock.yaml", lock_entries({"faulty": [changed]}, environment="other", source="other.yaml"))
    assert (
        "no tools of environment 'sums'" in examine([row()], tool_config=tmp_path / "lock.yaml")["shown"][0]["problem"]
    )


@pytest.mark.verl
def test_a_template_that_leaves_out_tools_is_found_and_another_can_be_given(
    examine: Examine, tmp_path: Path, imported_verl: None
) -> None:
    from mcp_rollout.rollout.verl_cpu.tiny_model import make_tiny_model

    model = make_tiny_model(tmp_path / "model", hidden=32, layers=1)
    rendering = (model / "chat_template.jinja").rename(tmp_path / "tools.jinja")
    (model / "chat_template.jinja").write_text((TEMPLATES / "smollm2.jinja").read_text())
    lengths = {"tokenizer": str(model), "max_prompt_length": 4000}
    said = examine([row()], **lengths)
    assert found(said) == [(None, "--chat-template")] and "leaves out tools" in said["shown"][0]["problem"]
    assert examine([row()], chat_template=rendering, **lengths)["problems"] == 0
    with pytest.raises(ConfigError, match="--chat-template: nothing is counted"):
        examine([row()], chat_template=rendering)


def test_the_list_is_bounded_and_says_so(examine: Examine, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    many = [row({**MCP, "tools": ["ad"]}) for _ in range(MOST_SHOWN + 5)]
    assert examine(many)["problems"] == MOST_SHOWN + 5
    assert data(check=tmp_path / "rows.parquet", environments_dir=tmp_path) == 1
    shown = capsys.readouterr().out
    assert "and 5 more" in shown and shown.count("unknown tool 'ad'") == MOST_SHOWN


def test_what_cannot_be_examined_at_all_is_bad_use(examine: Examine, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no such file"):
        data(check=tmp_path / "none.parquet", environments_dir=tmp_path)
    with pytest.raises(ConfigError, match="lengths need both"):
        examine([row()], max_prompt_length=5)
    examine([row()])
    (tmp_path / "rows.csv").write_bytes((tmp_path / "rows.parquet").read_bytes())
    with pytest.raises(ConfigError, match=r"rows.csv: does not end in .parquet \(name it rows.parquet"):
        data(check=tmp_path / "rows.csv", environments_dir=tmp_path)  # verl would refuse it once Ray runs


def test_the_command_wants_a_file_to_check_or_an_environment_to_write() -> None:
    def refused(*arguments: str) -> str:
        error = CliRunner().invoke(app, ["data", *arguments]).exception
        assert isinstance(error, ConfigError)
        return str(error)

    assert "ENVIRONMENT: is not given" in refused()
    assert "-o: is not given" in refused("retail")
    assert "does not end in .parquet" in refused("retail", "-o", "rows.csv")
    assert "without ENVIRONMENT and -o" in refused("retail", "--check", "rows.parquet")
