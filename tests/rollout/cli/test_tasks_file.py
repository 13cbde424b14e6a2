"""A servers file and a file of tasks, without an environment's YAML: `run`, `check-env` and `data`."""

from __future__ import annotations

import json
from itertools import chain
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner, Result

from mcp_rollout.gateway.errors import ConfigError, faults_of, innermost
from mcp_rollout.rollout.cli.app import app
from mcp_rollout.rollout.environment.config import environment_names, load_environment
from mcp_rollout.rollout.environment.parquet import read_rows
from mcp_rollout.rollout.environment.row_validation import read_task_rows, row_problems
from mcp_rollout.rollout.environment.task import Task
from mcp_rollout.rollout.trace.store import read_traces

WRITE = {"name": "write", "arguments": {"name": "a", "text": "one"}}
READ = {"name": "read", "arguments": {"name": "a"}, "returns": "one"}
GSM8K = {
    "data_source": "openai/gsm8k",
    "prompt": [{"role": "user", "content": "2 + 2?"}],
    "reward_model": {"style": "rule", "ground_truth": "4"},
    "extra_info": {"index": 5, "split": "dev", "question": "2 + 2?", "steps": [1, 2]},
}


SYSTEM = {"role": "system", "content": "Count."}
FILES = """
from pathlib import Path
from mcp.server.mcpserver import MCPServer

server = MCPServer("files", log_level="ERROR")


@server.tool()
def write(path: str, text: str) -> str:
    Path(path).write_text(text)
    return "written"


@server.tool(structured_output=False)
def read(path: str) -> str:
    return Path(path).read_text()


server.run()
"""


@pytest.fixture(autouse=True)
def servers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`servers.json` in the working directory, with a world for each trajectory."""
    monkeypatch.chdir(tmp_path)
    entry = {"factory": "notes:notes_server", "scope": "process"}
    Path("servers.json").write_text(json.dumps({"mcpServers": {"notes": entry}}))


def tasks(*rows: Any, name: str = "tasks.jsonl") -> str:
    Path(name).write_text("".join(json.dumps(row) + "\n" for row in rows))
    return name


def called(command: str, *arguments: Any, status: int = 0) -> Result:
    done = CliRunner().invoke(app, [command, "servers.json", *map(str, arguments)])
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    assert done.exit_code == status, done.output
    return done


def refusal(command: str, *arguments: Any) -> list[str]:
    with pytest.raises((ConfigError, ExceptionGroup)) as caught:
        called(command, *arguments)
    error = innermost(caught.value)  # as `main` prints it
    assert isinstance(error, ConfigError)
    return [str(fault) for fault in faults_of(error)]


def test_all_rows_of_a_file_are_evaluated_without_an_environment() -> None:
    file = tasks(
        {"prompt": "1?", "answer": "x"},
        {"id": "kept", "prompt": "2?", "setup": [WRITE], "check": [READ]},
        {"prompt": "3?", "check": [READ]},
    )
    done = called("run", "--tasks", file, "--engine", "none", "--out", "out", "--json")
    report = json.loads(done.stdout)
    assert (report["trajectories"], report["failed"], report["split"]) == (3, 0, "all")
    traces = {trace.task.task: trace for trace in read_traces(Path("out"))}
    assert {trace.task.environment for trace in traces.values()} == {"servers"}
    rewards = [
        trace.reward.score for trace in sorted(traces.values(), key=lambda each: each.origin.row) if trace.reward
    ]
    assert rewards == [0.0, 1.0, 0.0] and traces["kept"].checks[0].holds and "note:" not in done.stderr


def test_rows_that_can_earn_nothing_are_noted_in_an_evaluation_and_refused_in_training() -> None:
    file = tasks({"prompt": "1?"}, {"prompt": "2?", "answer": "x"})
    done = called("run", "--tasks", file, "--engine", "none", "--out", "out")
    assert "note: servers.json: reward.weights.solved: rewards what a row asks for, and 1 of 2 rows" in done.stderr
    noted = called("data", "--tasks", file, "-o", "rows.parquet").stderr
    assert "note: servers.json: reward.weights.solved: rewards what a row asks for, and 1 of 2 rows" in noted
    rows, _ = read_task_rows(Path("rows.parquet"))
    problems = list(chain.from_iterable(row_problems(row, load_environment("servers", Path()), {}, ()) for row in rows))
    assert [(each.row, "neither an answer nor checks" in each.problem) for each in problems] == [(0, True)]


def test_a_run_is_resumed_with_the_same_file_only() -> None:
    arguments = ("--engine", "none", "--out", "out")
    called("run", "--tasks", tasks({"prompt": "1?", "answer": "x"}), *arguments)
    called("run", "--tasks", "tasks.jsonl", "--resume", *arguments)
    (fault,) = refusal("run", "--tasks", tasks({"prompt": "2?", "answer": "x"}), "--resume", *arguments)
    assert ".run.json: --tasks: the run in this directory had" in fault


def test_what_does_not_fit_the_servers_is_refused_with_its_line() -> None:
    file = tasks(
        {"prompt": "1?", "answer": "x", "setup": [{"name": "wrte", "arguments": {}}]},
        {"prompt": "2?", "answer": "x", "tools": ["wipe"], "check": [{"name": "read", "arguments": {"nme": "a"}}]},
    )
    faults = refusal("run", "--tasks", file, "--engine", "none", "--out", "out")
    assert faults[0] == "tasks.jsonl: line 1: setup.0: unknown tool 'wrte' (did you mean 'write'?)"
    assert faults[1] == "tasks.jsonl: line 2: tools: unknown tool 'wipe' (did you mean 'write'?)"
    assert faults[2].startswith("tasks.jsonl: line 2: check.0.arguments: read: ")
    file = tasks({"prompt": [{"role": "user", "content": "1?"}, {"role": "assistant", "content": "2"}]})
    (fault,) = refusal("run", "--tasks", file, "--engine", "none", "--out", "out")
    assert "line 1: prompt: the prompt does not end in a user message" in fault
    done = called("run", "--tasks", tasks({"prompt": "1?", "check": [WRITE]}), "--engine", "none", "--out", "out")
    assert "checks call tools that are not annotated as read-only" in done.stderr


def test_equal_faults_of_many_rows_are_one_and_the_tools_are_listed_once() -> None:
    named = [["reed"], ["reed"], ["drop"], ["reed", "write"], ["list"]]
    file = tasks(*({"prompt": "?", "answer": "x", "tools": tools} for tools in named))
    assert refusal("data", "--tasks", file, "-o", "rows.parquet") == [
        "tasks.jsonl: line 1 and 2 more rows: tools: unknown tool 'reed' (did you mean 'read'?)",
        "tasks.jsonl: line 3: tools: unknown tool 'drop' (known tools of servers: read, write)",
        "tasks.jsonl: line 5: tools: unknown tool 'list' (the tools are listed above)",
    ]


def test_an_answer_that_nothing_can_match_is_refused_with_its_line() -> None:
    made = {"servers": {"notes": {"factory": "notes:notes_server"}}, "tasks": {"file": "tasks.jsonl"}}
    Path("own.yaml").write_text(json.dumps(made | {"reward": {"match": "number", "weights": {"exact_match": 1}}}))
    tasks({"prompt": "1?", "answer": "one"}, {"prompt": "2?"}, {"prompt": "3?", "answer": 3})
    with pytest.raises(ConfigError) as caught:
        CliRunner().invoke(app, ["data", "own.yaml", "-o", "rows.parquet", "--split", "all"], catch_exceptions=False)
    one, two = map(str, faults_of(caught.value))
    assert one.startswith("tasks.jsonl: line 1: answer: reward.match of own is number, and the answer is not a number")
    assert two.startswith("tasks.jsonl: line 2: answer: the reward of own weighs exact_match")
    file = tasks(*({"prompt": "?", "answer": answer} for answer in ({"n": 1}, "[1]", [1])))
    (fault,) = refusal("data", "--tasks", file, "-o", "rows.parquet")
    assert fault == (
        "tasks.jsonl: line 1 and 1 more row: answer: is an object or a list, and reward.match of servers is text "
        "(set reward.match: json, or write the answer as text)"
    )


def test_an_environments_own_reward_and_system_message_stay_with_tasks_of_another_file() -> None:
    made = {"servers": "servers.json", "system": "Be brief.", "reward": {"weights": {"exact_match": 2.0}}}
    Path("own.yaml").write_text(json.dumps(made))
    file = tasks({"prompt": "1?", "answer": "x"}, {"prompt": [SYSTEM, {"role": "user", "content": "2?"}], "answer": 3})
    done = CliRunner().invoke(app, ["data", "own.yaml", "--tasks", file, "-o", "rows.parquet"])
    assert done.exit_code == 0, done.output
    first, second = (row["prompt"] for row in read_rows(Path("rows.parquet")))
    assert first[0]["content"] == "Be brief." and second[0] == SYSTEM and len(first) == len(second) == 2
    made_with = load_environment("own.yaml").with_tasks(Path(file))
    assert made_with.reward.weights == {"exact_match": 2.0} and made_with.servers["notes"].required
    assert load_environment("servers.json").with_tasks(Path(file)).reward.weights == {"solved": 1.0}


def test_calls_may_name_the_directory_of_their_trajectory() -> None:
    files = {"command": "${python}", "args": ["-c", FILES, "${lease.dir}"], "scope": "process"}
    Path("servers.json").write_text(json.dumps({"mcpServers": {"files": files}}))
    note = "${lease.dir}/${trajectory.seed}.txt"
    check = {"name": "read", "arguments": {"path": note}, "returns": "of ${lease.dir}", "match": "exact"}
    setup = {"name": "write", "arguments": {"path": note, "text": "of ${lease.dir}"}}
    file = tasks({"prompt": "1?", "seed": 7, "setup": [setup], "check": [check]})
    called("run", "--tasks", file, "--engine", "none", "--out", "out")
    (trace,) = read_traces(Path("out"))
    assert trace.checks[0].holds and trace.setup[0].arguments["path"].endswith("/7.txt")
    assert "${" not in json.dumps(trace.setup[0].arguments) and trace.task.setup[0].arguments["path"] == note


def test_a_world_whose_preparation_returns_something_else_is_withdrawn() -> None:
    read = {"name": "read", "arguments": {"name": "a"}}
    file = tasks(
        {"prompt": "1?", "setup": [WRITE, {**read, "returns": "one"}]},
        {"prompt": "2?", "setup": [WRITE, {**read, "returns": "tw.", "match": "regex"}]},
    )
    called("run", "--tasks", file, "--engine", "none", "--out", "out", status=1)
    first, second = sorted(read_traces(Path("out")), key=lambda trace: trace.task.prompt[-1]["content"])
    assert first.failure is None and second.failure is not None
    assert "setup.1: read answers with what is not 'tw.': one" in second.failure.message


def test_check_env_examines_the_tasks_of_a_file() -> None:
    file = tasks(
        {"prompt": "1?", "answer": "x", "setup": [WRITE], "check": [READ]}, {"prompt": " 1? ", "check": [READ]}
    )
    report = json.loads(called("check-env", "--tasks", file, "--json").stdout)
    clauses = {clause["clause"]: clause for clause in report["clauses"]}
    assert report["keeps_the_contract"], report["failed"]
    assert clauses["tasks"]["said"] == "2 in the file, 1 of which repeat the prompt of another"
    assert clauses["score"]["said"] == "tasks with checks: 2; all of a task's hold before any turn in 1"
    assert clauses["reset"]["outcome"] == clauses["isolation"]["outcome"] == "holds"


def test_check_env_plays_nothing_of_a_faulty_file_and_names_its_lines_as_run_does() -> None:
    for row, fault in (
        ({"answer": "x", "tools": ["wrte"]}, "tools: unknown tool 'wrte' (did you mean 'write'?)"),
        ({"answr": "x"}, "answr: unknown key (did you mean 'answer'?)"),
    ):
        file = tasks({"prompt": "1?", "answer": "x"}, {"prompt": "2?", **row})
        for command in (("check-env", "--json"), ("run", "--engine", "none", "--out", "out")):
            assert refusal(command[0], "--tasks", file, *command[1:]) == [f"tasks.jsonl: line 2: {fault}"]


def test_a_task_whose_checks_hold_from_the_start_fails_unless_more_is_asked_or_checks_earn_nothing() -> None:
    held = {"setup": [WRITE], "check": [READ]}
    file = tasks({"prompt": "1?", "answer": "x", **held}, {"prompt": "2?", **held}, {"prompt": "3?", "check": [READ]})
    report = json.loads(called("check-env", "--tasks", file, "--json", status=1).stdout)
    clauses = {clause["clause"]: clause for clause in report["clauses"]}
    said = "all checks hold before any turn, so that doing nothing is rewarded: tasks.jsonl: line 2"
    assert report["failed"] == ["score"] and clauses["score"]["said"] == said
    assert clauses["score"]["remedy"].startswith("change `check` so that it is false at the start")
    made = {"servers": "servers.json", "tasks": {"file": "tasks.jsonl"}}
    for weights, status in (({"exact_match": 1}, 0), ({"checks": 1}, 1), ({"checks": 1, "solved": 0}, 1)):
        Path("own.yaml").write_text(json.dumps(made | {"reward": {"weights": weights}}))
        tasks({"prompt": "1?", "answer": "x", **held}, {"prompt": "2?", "answer": "x", "check": [READ]})
        done = CliRunner().invoke(app, ["check-env", "own.yaml", "--json"])
        assert done.exit_code == status, (weights, done.output)


def test_every_tasks_setup_and_checks_are_tried_without_a_turn_and_not_only_those_of_tasks_to_play() -> None:
    held, sound = {"setup": [WRITE], "check": [READ]}, {"check": [READ]}
    file = tasks(
        {"prompt": "1?", **sound}, {"prompt": "2?", **held}, {"prompt": "3?", **sound}, {"prompt": "4?", **held}
    )
    report = json.loads(called("check-env", "--tasks", file, "-n", 1, "--json", status=1).stdout)
    (said,) = (clause["said"] for clause in report["clauses"] if clause["outcome"] == "fails")
    assert said.endswith("doing nothing is rewarded: tasks.jsonl: line 2; tasks.jsonl: line 4")
    table = called("run", "--tasks", file, "--engine", "none", "--out", "out").stdout
    assert "servers: checks that hold before any turn: 2 of 4, rows 1, 3\n" in table
    again = json.loads(called("run", "--tasks", file, "--engine", "none", "--out", "json", "--json").stdout)
    assert again["hold_before_any_turn"] == {"servers": {"of": 4, "rows": [1, 3], "left": 0}}
    file = tasks({"prompt": "1?", **sound}, {"prompt": "2?", "answer": "x", "setup": [READ]})
    report = json.loads(called("check-env", "--tasks", file, "-n", 1, "--json", status=1).stdout)
    assert report["failed"] == ["tasks"]
    table = called("run", "--tasks", file, "--engine", "none", "--out", "failed", status=1).stdout
    assert "tasks.jsonl: line 2: setup.0: read answers with an error" in " ".join(table.split())


def test_no_world_that_all_trajectories_share_is_written_to_for_a_count() -> None:
    Path("servers.json").write_text(json.dumps({"mcpServers": {"notes": {"factory": "notes:notes_server"}}}))
    file = tasks({"prompt": "1?", "setup": [WRITE], "check": [READ]}, {"prompt": "2?", "check": [READ]})
    report = json.loads(called("run", "--tasks", file, "--engine", "none", "--out", "out", "--json").stdout)
    assert report["hold_before_any_turn"]["servers"]["left"] == 1  # of the second, the call only reads


def test_a_path_that_does_not_exist_is_told_from_an_unknown_environment() -> None:
    for name, said in (
        ("servers.jsn", "servers.jsn: no such file, and no environment has this name (check the path: an mcpServers"),
        (
            "no/where",
            "no/where: no such file, and no environment has this name (check the path: an mcpServers file, or",
        ),
        ("sevrers.json", "sevrers.json: no such file (correct the path)"),
        ("retial", "unknown environment 'retial' (did you mean 'retail'?)"),
    ):
        for command in (["run", name, "--engine", "none", "--out", "out"], ["check-env", name], ["tools", name]):
            error = CliRunner().invoke(app, command).exception
            assert isinstance(error, ConfigError) and said in str(error), (command, error)


def test_check_env_says_once_with_its_line_that_a_setup_fails() -> None:
    file = tasks(
        {"prompt": "1?", "answer": "x"}, {"prompt": "2?", "answer": "x", "setup": [WRITE, {**READ, "returns": "2"}]}
    )
    report = json.loads(called("check-env", "--tasks", file, "--json", status=1).stdout)
    clauses = {clause["clause"]: clause for clause in report["clauses"]}
    said = "tasks.jsonl: line 2: setup.1: read answers with what is not '2': one"
    assert report["failed"] == ["tasks"] and clauses["tasks"]["said"] == said
    assert "correct that `setup`" in clauses["tasks"]["remedy"]
    untried = [clauses[clause]["said"] for clause in ("reset", "isolation")]
    assert untried == ["because tasks fails: a task to play has no world"] * 2
    assert clauses["release"]["said"] == "no server has a reset or release tool"  # not for lack of the second task
    many = tasks(*({"prompt": f"{number}?", "answer": "x", "setup": [READ]} for number in range(7)))
    report = json.loads(called("check-env", "--tasks", many, "-n", 7, "--json", status=1).stdout)
    (said,) = (clause["said"] for clause in report["clauses"] if clause["outcome"] == "fails")
    assert said.count("setup.0: read answers with an error") == 5 and said.endswith("\nand 2 more")


def test_rows_for_a_trainer_have_everything_that_the_file_has() -> None:
    file = tasks({**GSM8K, "setup": [WRITE], "check": [READ], "tools": ["read"]}, {**GSM8K, "id": "b", "seed": 3})
    called("data", "--tasks", file, "-o", "rows.parquet")
    one, two = read_rows(Path("rows.parquet"))
    assert one["data_source"] == "openai/gsm8k" and one["agent_name"] == "mcp_agent"
    assert (
        one["extra_info"]["split"] == "dev"
        and one["extra_info"]["question"] == "2 + 2?"
        and one["extra_info"]["steps"] == [1, 2]
    )
    mcp = one["extra_info"]["mcp"]
    assert json.loads(mcp["setup"]) == [WRITE] and mcp["environment"] == "servers" and mcp["tools"] == ["read"]
    assert two["extra_info"]["mcp"]["task"] == "b" and two["extra_info"]["mcp"]["setup"] is None
    rows, problems = read_task_rows(Path("rows.parquet"))
    assert not problems and [row.index for row in rows] == [0, 1]
    task = rows[0].task
    assert [call.model_dump(exclude_defaults=True) for call in task.setup] == [WRITE] and task.check[
        0
    ].expected == "one"
    assert task.answer == "4" and task.verl is not None and task.verl.ground_truth == "4"
    assert task.verl.extra_info == {**GSM8K["extra_info"], "index": 0}
    called("data", "--tasks", "rows.parquet", "-o", "again.parquet")  # rows are tasks as well
    assert list(read_rows(Path("again.parquet"))) == [one, two]


def test_a_ground_truth_of_another_type_stays_one_and_mixed_types_are_refused() -> None:
    given = {"target": 24, "numbers": [1, 2]}
    row = {**GSM8K, "reward_model": {"ground_truth": given}}
    made = {"servers": "servers.json", "reward": {"weights": {"checks": 1}}}  # compares no answer
    Path("servers.yaml").write_text(json.dumps(made))
    invoked = CliRunner().invoke(app, ["data", "servers.yaml", "--tasks", tasks(row), "-o", "rows.parquet"])
    assert invoked.exit_code == 0, invoked.output
    (written,) = read_rows(Path("rows.parquet"))
    assert written["reward_model"]["ground_truth"] == given
    read = Task.from_row(written)
    assert read.verl is not None and read.verl.ground_truth == given and json.loads(read.answer or "") == given
    mixed = [{**GSM8K, "extra_info": {"level": level}} for level in (1, "hard")]
    (fault,) = refusal("data", "--tasks", tasks(*mixed), "-o", "rows.parquet")
    assert "extra_info.level: has several types" in fault and "give it one type" in fault


@pytest.mark.parametrize("truth", [{"target": 24}, ["4"]])
def test_a_ground_truth_that_no_text_equals_is_refused_by_line_and_by_row_and_compared_as_json(truth: Any) -> None:
    row = {"prompt": "1?", "reward_model": {"ground_truth": truth}}
    said = "is an object or a list, and reward.match of servers is text"
    (fault,) = refusal("run", "--tasks", tasks(row), "--engine", "none", "--out", "out")
    assert fault.startswith(f"tasks.jsonl: line 1: reward_model.ground_truth: {said} (set reward.match: json, or write")
    made = {"servers": "servers.json", "reward": {"weights": {"solved": 1}, "match": "json"}}
    Path("json.yaml").write_text(json.dumps({**made, "name": "servers"}))
    done = CliRunner().invoke(app, ["data", "json.yaml", "--tasks", "tasks.jsonl", "-o", "rows.parquet"])
    assert done.exit_code == 0, done.output
    ((row,), _) = read_task_rows(Path("rows.parquet"))
    (problem,) = row_problems(row, load_environment("servers", Path()), {}, ())
    assert (problem.row, problem.key, problem.problem) == (0, "reward_model.ground_truth", said)


def test_a_reward_function_gets_the_same_ground_truth_of_rows_for_training_as_of_the_file() -> None:
    seen = "def compute_score(data_source, solution_str, ground_truth, extra_info):\n"
    seen += "    return {None: 1, '4': 2}.get(ground_truth, 0)\n"
    Path("seen.py").write_text(seen)
    made = {
        "servers": "servers.json",
        "reward": {"weights": {"seen": 1}, "functions": {"seen": "seen.py:compute_score"}},
    }
    Path("own.yaml").write_text(json.dumps(made))
    file = tasks({"prompt": "1?"}, {"prompt": "2?", "answer": 4}, {"prompt": "3?", "data_source": "own"})
    invoked = CliRunner().invoke(app, ["data", "own.yaml", "--tasks", file, "-o", "rows.parquet"])
    assert invoked.exit_code == 0, invoked.output
    truths = [row["reward_model"]["ground_truth"] for row in read_rows(Path("rows.parquet"))]
    assert truths == [None, "4", None]
    for given in (file, "rows.parquet"):
        run = ["run", "own.yaml", "--tasks", given, "--engine", "none", "--out", f"out-{given}"]
        CliRunner().invoke(app, run, catch_exceptions=False)
        traces = sorted(read_traces(Path(f"out-{given}")), key=lambda trace: trace.origin.row)
        assert [trace.reward and trace.reward.score for trace in traces] == [1.0, 2.0, 1.0]


def test_the_splits_of_a_file_are_parts_of_it_and_share_no_prompt() -> None:
    file = tasks(*[{"prompt": f"{number}?", "answer": number} for number in range(40)])
    for split in ("train", "test", "all"):
        called("data", "--tasks", file, "--split", split, "-o", f"{split}.parquet")
    train, test, whole = (
        {row["prompt"][0]["content"] for row in read_rows(Path(f"{split}.parquet"))}
        for split in ("train", "test", "all")
    )
    assert train and test and not train & test and train | test == whole


def test_a_servers_file_is_an_environment_of_its_name() -> None:
    Path("package.json").write_text('{"name": "other"}')
    assert list(environment_names(".")) == ["servers"]
    found = load_environment("servers", ".")
    assert found.reward.weights == {"solved": 1.0} and found.servers["notes"].required
    assert found.file == "servers.json" and found.tasks is None
    with pytest.raises(ConfigError, match="no servers here"):
        load_environment("package", ".")


def test_files_that_an_environment_names_are_beside_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "made").mkdir()
    made = {
        "servers": {"notes": {"factory": "notes:notes_server"}},
        "tasks": {"file": "tasks.jsonl", "test_share": 1.0},
        "reward": {"functions": {"own": "own_reward.py:compute_score"}, "weights": {"own": 1.0}},
    }
    (tmp_path / "made" / "own.yaml").write_text(json.dumps(made))
    tasks(GSM8K, name="made/tasks.jsonl")
    (tmp_path / "made" / "own_reward.py").write_text(
        "from pathlib import Path\n"
        "with Path(__file__).with_name('imports').open('a') as file: file.write('x')\n"
        "def compute_score(data_source, solution_str, ground_truth, extra_info):\n"
        "    trace = extra_info['mcp_trajectory']['trace']\n"
        "    assert trace.task.task and extra_info['question'] == '2 + 2?'\n"
        "    return {'score': 0.25 if (data_source, solution_str, ground_truth) == ('openai/gsm8k', '', '4') else 0}\n"
    )
    monkeypatch.chdir("/")
    out = tmp_path / "out"
    done = CliRunner().invoke(app, ["run", str(tmp_path / "made" / "own.yaml"), "--engine", "none", "--out", str(out)])
    assert done.exit_code == 0, done.output
    (trace,) = read_traces(out)
    assert trace.reward is not None and trace.reward.score == 0.25
    assert (tmp_path / "made" / "imports").read_text() == "x"


def test_a_file_of_tasks_is_for_one_environment_and_splits_are_train_test_or_all() -> None:
    file = tasks({"prompt": "1?", "answer": "x"})
    (fault,) = refusal("run", "servers.json", "--tasks", file, "--engine", "none", "--out", "out")
    assert "--tasks: is for one environment" in fault
    (fault,) = refusal("run", "--tasks", file, "--split", "dev", "--engine", "none", "--out", "out")
    assert "unknown split 'dev'" in fault
    (fault,) = refusal("run", "--engine", "none", "--out", "out")
    assert "--tasks FILE" in fault


def test_parquet_tasks_are_evaluated_too() -> None:
    pq.write_table(pa.Table.from_pylist([{"prompt": "1?", "answer": "x"}]), "tasks.parquet")
    called("run", "--tasks", "tasks.parquet", "--engine", "none", "--out", "out")
    assert len(list(read_traces(Path("out")))) == 1
