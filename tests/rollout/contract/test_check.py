"""check-env names the clause that an environment breaks, and none that it keeps."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import anyio
import pytest
import yaml
from third_party import NODE
from typer.testing import CliRunner

from mcp_rollout.gateway.errors import ConfigError
from mcp_rollout.rollout.cli.app import app
from mcp_rollout.rollout.contract import Clause, Options, Outcome, Report, check_environment
from mcp_rollout.rollout.contract.clauses import ClauseUntested
from mcp_rollout.rollout.contract.functions import functions
from mcp_rollout.rollout.contract.play import CheckSetup, difference
from mcp_rollout.rollout.environment.config import Environment
from mcp_rollout.rollout.environment.harness import ListedTask
from mcp_rollout.rollout.environment.startup import opened_environment

ROOT = Path(__file__).parents[3]


def environment(fault: str, **fields: Any) -> Environment:
    made: dict[str, Any] = {
        "name": fault,
        "system": "Be polite.",
        "servers": {"faulty": {"factory": f"faulty:{fault}", "required": True}},
        "user": {"server": "faulty"},
        "reward": {"server": "faulty", "parts": ["right", "polite"]},
        "tasks": {"server": "faulty"},
        "elicitation": {"server": "faulty"},
    }
    return Environment.model_validate(made | fields)


def examined(made: Environment, **options: Any) -> Report:
    async def examine() -> Report:
        with anyio.fail_after(280):  # a bound for hangs: each lease of the slowest starts a process
            return await check_environment(made, Options(**{"tasks": 1, **options}))

    return anyio.run(examine)


def said(report: Report, clause: Clause) -> str:
    return next(result.said for result in report.results if result.clause is clause)


REWARDS = """
def share(trace, world):
    return world.score / len(trace.turns)


def compute_score(data_source, solution_str, ground_truth, extra_info):
    return {"score": float(solution_str.split()[0] == "Hello.")}  # empty turns have no words
"""


def with_functions(directory: Path, fault: str = "sound", **functions: str) -> Environment:
    (directory / "rewards.py").write_text(REWARDS)
    named = {name: f"{directory / 'rewards.py'}:{function}" for name, function in functions.items()}
    reward = {"server": "faulty", "parts": ["right", "polite"], "functions": named}
    limits = {"wall_clock_s": 1} if fault == "start_hangs" else {}
    return environment(fault, reward=reward, limits=limits)


def test_an_environment_that_keeps_the_contract_passes_every_clause(tmp_path: Path) -> None:
    report = examined(with_functions(tmp_path, share="share"))
    assert {result.outcome for result in report.results} == {Outcome.HOLDS}, report.results
    assert said(report, Clause.FUNCTIONS).startswith("share from 0 to ")


def test_a_reward_function_that_silence_breaks_is_a_clause_of_its_own(tmp_path: Path) -> None:
    report = examined(with_functions(tmp_path, share="share", first="compute_score"))
    assert report.failed == [Clause.FUNCTIONS], report.results
    seen = said(report, Clause.FUNCTIONS)
    assert "compute_score raised IndexError: list index out of range (" in seen and ", empty turns: " in seen


def test_tasks_of_which_no_row_can_be_made_are_named_as_by_run() -> None:
    report = examined(environment("sound", system=None))
    assert report.failed == [Clause.TASKS], report.results
    assert said(report, Clause.TASKS).startswith("train: task 'train-0' has no prompt, and the environment no system")


def test_no_function_is_asked_about_a_trajectory_without_a_turn(tmp_path: Path) -> None:
    async def examine() -> None:
        made = with_functions(tmp_path, "start_hangs", share="share")
        async with opened_environment(made) as gateway:
            setup = CheckSetup(
                environment=made, gateway=gateway, elsewhere=gateway, items=[ListedTask(task="x", seed=3)]
            )
            with pytest.raises(ClauseUntested, match="no turn"):
                await functions(setup)

    anyio.run(examine)


FAULTS: dict[str, tuple[Clause, str]] = {
    "tasks_twice": (Clause.TASKS, "twice, the second time at 5"),
    "tasks_in_both_splits": (Clause.TASKS, "5 tasks are in both splits"),
    "tasks_without_end": (Clause.TASKS, "limit 1"),
    "tasks_none": (Clause.TASKS, "train lists no task"),
    "tasks_shuffled": (Clause.TASKS, "train"),
    "reset_raises": (Clause.RESET, "reset was refused"),
    "unseeded": (Clause.RESET, "differs at faulty: start"),
    "other_opening": (Clause.OPENING, "asked again"),
    "prompt_of_its_own": (Clause.OPENING, "its row says 'Add.'"),
    "reply_advances": (Clause.REPLY, "asked again 'I heard you 2 times.'"),
    "reply_skips": (Clause.REPLY, "reply 2 before reply 1"),
    "reply_endless": (Clause.REPLY, "the user never ends: no `done` in 15 replies"),
    "reply_without_done": (Clause.REPLY, "done: Field required"),
    "elicit_shrugs": (Clause.ELICIT, "action: Input should be 'accept', 'decline' or 'cancel'"),
    "elicit_wavers": (Clause.ELICIT, "asked again"),
    "score_above_one": (Clause.SCORE, "less than or equal to 1"),
    "score_nan": (Clause.SCORE, "score: Input should be"),
    "score_without_part": (Clause.SCORE, "['polite'] of reward.parts are missing"),
    "score_with_unknown_part": (Clause.SCORE, "['pretty'] are not in the environment's reward.parts"),
    "score_wavers": (Clause.SCORE, "asked twice"),
    "score_raises": (Clause.SCORE, "score was refused"),
    "score_is_text": (Clause.SCORE, "score: Input should be a valid number"),
    "expert_errs": (Clause.EXPERT, "the expert scores 0"),
    "expert_calls_what_is_not_there": (Clause.EXPERT, "Unknown tool 'sum'"),
    "expert_without_turns": (Clause.EXPERT, "turns: Input should be a valid list"),
    "leaks": (Clause.ISOLATION, "differs at"),
    "release_once": (Clause.RELEASE, "nothing to release"),
    "restore_does_nothing": (Clause.SNAPSHOT, "differs at"),
    "restore_restarts": (Clause.SNAPSHOT, "restored after 1 replies, reply 2 was not answered"),
    "unmarked_score": (Clause.HIDDEN, "takes the arguments of score"),
    "unmarked_start": (Clause.ROLES, "no tool with the role start"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_the_broken_clause_is_named_with_what_was_seen(fault: str) -> None:
    clause, seen = FAULTS[fault]
    report = examined(environment(fault))
    assert clause in report.failed, report.results
    assert seen in said(report, clause), said(report, clause)


def test_a_reward_for_each_call_passes_what_does_not_do_the_task() -> None:
    paid = {"faulty": {"factory": "faulty:pays_by_the_call", "required": True, "trusted": True}}
    report = examined(environment("pays_by_the_call", servers=paid))
    assert report.failed == [Clause.FALSE_PASSES]
    assert "the expert earns 1.2, and changed (doubled) 1.3" in said(report, Clause.FALSE_PASSES)
    unpaid = environment(
        "pays_by_the_call",
        servers=paid,
        reward={"server": "faulty", "parts": ["right", "polite"], "weights": {"turns": 0, "score": 1}},
    )
    assert examined(unpaid).failed == []


def test_a_changed_trajectory_that_keeps_the_reward_is_counted_and_no_fault() -> None:
    told = said(examined(environment("sound"), tasks=2), Clause.FALSE_PASSES)
    assert told.startswith("still the whole reward: dropped 0 of 2, doubled 0 of 2, swapped 1 of 1, ")
    assert told.endswith("mute 2 of 2")


def test_a_reward_that_no_dropped_call_costs_is_doubtful_and_no_failure() -> None:
    unpaid = {"server": "faulty", "parts": ["right", "polite"], "weights": {"score": 0, "polite": 1}}
    doing = list[str]()

    async def examine() -> Report:
        return await check_environment(environment("sound", reward=unpaid), Options(tasks=1), progress=doing.append)

    report = anyio.run(examine)
    (result,) = [each for each in report.results if each.outcome is Outcome.DOUBTFUL]
    assert result.clause is Clause.FALSE_PASSES and "dropped 1 of 1" in result.said and not report.failed
    assert result.said.endswith("changed nothing") and "harmless if the ones changed only read" in result.remedy
    assert {*doing} >= {*Clause} - {Clause.STARTS}


@pytest.mark.parametrize("clause", [Clause.SCORE, pytest.param(Clause.REPLY, marks=pytest.mark.full)])
def test_a_server_that_ends_gets_no_remedy_of_the_clause(clause: Clause, tmp_path: Path) -> None:
    (tmp_path / "ends.py").write_text(f"import faulty\nfaulty.create('{clause}_exits').run('stdio')\n")
    env = {"PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "tests/support")])}
    program = {"command": sys.executable, "args": [str(tmp_path / "ends.py")], "env": env}
    entry = {**program, "scope": "process", "start": "fork"}  # each lease has a process, which costs a second without
    report = examined(environment(f"{clause}_exits", servers={"faulty": {**entry, "required": True}}))
    found = next(result for result in report.results if result.clause is clause)
    assert "exited with status 9" in found.said and "the server ended" in found.remedy, report.results


KIT = """
import sys
from mcp_rollout.mcp_servers.kit import Harness, Reply, main
from mcp.server.mcpserver import MCPServer

server = MCPServer("kit", log_level="ERROR")
harness = Harness(server, lambda task, seed: object())
harness.start(lambda world: "Hello.")

def reply(world, message):
    if sys.argv[1] == "misspelt":
        return Reply(mesage="Well?", done=True)
    print("looking at", message)
    return Reply(message="Bye.", done=True)

harness.reply(reply)
main(server, arguments=[])
"""


def kit_report(tmp_path: Path, what: str) -> Report:
    (tmp_path / "shop.py").write_text(KIT)
    env = {"PYTHONPATH": str(ROOT)}
    entry = {"command": sys.executable, "args": [str(tmp_path / "shop.py"), what], "env": env, "required": True}
    return examined(Environment.model_validate({"name": "kit", "servers": {"shop": entry}, "user": {"server": "shop"}}))


def test_a_misspelt_field_is_named_with_the_right_one_and_the_servers_own_line(tmp_path: Path) -> None:
    report = kit_report(tmp_path, "misspelt")
    assert report.failed == [Clause.REPLY]
    found = said(report, Clause.REPLY)
    assert "TypeError: Reply has no field 'mesage'; did you mean 'message'? (shop.py, line 12)" in found
    (result,) = [each for each in report.results if each.clause is Clause.REPLY]
    assert result.remedy == "the tool itself raised this error: correct it there"


def test_what_a_server_prints_is_a_clause_of_its_own(tmp_path: Path) -> None:
    report = kit_report(tmp_path, "prints")
    assert report.failed == [Clause.OUTPUT]
    assert "shop wrote to its standard output, and not a message: 'looking at Hello.'" in said(report, Clause.OUTPUT)


def test_an_expert_that_cannot_have_1_is_held_to_what_the_environment_says() -> None:
    wrong = environment("expert_errs")
    assert wrong.tasks is not None
    lower = wrong.model_copy(update={"tasks": wrong.tasks.model_copy(update={"expert_reward": 0.0})})
    assert Clause.EXPERT not in examined(lower).failed


def test_a_fault_that_concerns_one_clause_is_not_laid_at_another_door() -> None:
    for fault in ("tasks_twice", "prompt_of_its_own", "elicit_wavers", "release_once", "score_above_one"):
        failed = examined(environment(fault)).failed
        assert failed == [FAULTS[fault][0]], (fault, failed)


@pytest.mark.parametrize("fault", ["score_raises", "score_above_one", "reply_without_done", "unmarked_start"])
def test_one_fault_is_told_once_with_one_remedy(fault: str) -> None:
    report = examined(environment(fault))
    assert report.failed == [FAULTS[fault][0]], report.results
    because = [result.said for result in report.results if result.said.startswith("because ")]
    assert because and all(said.startswith(f"because {FAULTS[fault][0]} fails: ") for said in because)


@pytest.mark.parametrize(
    ("limits", "said_of_expert"),
    [
        ({"assistant_turns": 1}, "the expert needs 3, limits.assistant_turns allows 1"),
        ({"tool_calls": 1}, "limits.tool_calls allows 1"),
        ({"assistant_turns": 3}, None),
    ],
)
def test_an_expert_has_to_keep_the_environments_own_limits(limits: dict[str, int], said_of_expert: str | None) -> None:
    report = examined(environment("sound", limits=limits))
    assert (Clause.EXPERT in report.failed) is (said_of_expert is not None), report.results
    assert said_of_expert is None or said_of_expert in said(report, Clause.EXPERT)


def test_without_tasks_or_a_user_the_rest_is_examined_all_the_same() -> None:
    report = examined(environment("sound", tasks=None, user=None, elicitation=None), task=ListedTask(task="x", seed=3))
    untested = {result.clause for result in report.results if result.outcome is Outcome.UNTESTED}
    assert untested == {
        *(Clause.TASKS, Clause.REPLY, Clause.ELICIT),
        *(Clause.FUNCTIONS, Clause.EXPERT, Clause.FALSE_PASSES),
    }
    assert not report.failed


def check_env(*arguments: str | Path, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "mcp_rollout", "check-env", *map(str, arguments)]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=100, check=False, env=env)


def test_a_server_file_that_is_broken_is_a_failed_clause_and_exit_status_one(tmp_path: Path) -> None:
    (tmp_path / "server.py").write_text("def broken(:\n")
    entry = {"command": "${python}", "args": ["${here}/server.py"]}
    (tmp_path / "broken.yaml").write_text(yaml.safe_dump({"servers": {"broken": entry}}))
    done = check_env(tmp_path / "broken.yaml")
    assert done.returncode == 1 and "Traceback" not in done.stderr
    assert "servers.broken" in done.stdout and "start the server by hand" in done.stdout
    assert "broken breaks starts" in done.stdout


def test_an_environment_file_that_is_wrong_is_bad_use_and_no_result() -> None:
    error = CliRunner().invoke(app, ["check-env", "no-such-environment"]).exception
    assert isinstance(error, ConfigError) and "unknown environment" in str(error)
    error = CliRunner().invoke(app, ["check-env", "retail", "--seed", "1"]).exception
    assert isinstance(error, ConfigError) and "a seed without a task" in str(error)


def test_a_server_in_another_language_keeps_every_clause_that_it_has_tools_for() -> None:
    done = check_env("examples/node/bar.yaml", "--json", env=os.environ | {"NODE": NODE})
    found = json.loads(done.stdout)
    assert done.returncode == 0 and found["failed"] == []
    outcomes = {clause["clause"]: clause["outcome"] for clause in found["clauses"]}
    assert [clause for clause, outcome in outcomes.items() if outcome == "untested"] == ["elicit", "functions"]


def test_a_tool_may_say_no_to_an_expert_that_scores_1() -> None:
    report = examined(environment("expert_tries"))
    assert report.failed == [], report.results


def test_foreign_tools_keep_the_contract_once_the_yaml_gives_them_roles() -> None:
    roles = "reset start reply elicit score release snapshot restore tasks expert".split()
    entry: dict[str, Any] = {"factory": "faulty:foreign", "required": True}
    bare = environment("foreign", servers={"faulty": entry}, elicitation=None)
    given = environment("foreign", servers={"faulty": entry | {"roles": {role: f"do_{role}" for role in roles}}})
    assert examined(bare).failed[:1] == [Clause.ROLES]
    assert examined(given).failed == []


def foreign(directory: Path, program: str) -> dict[str, Any]:
    """The entry of a server that is no harness, with a process for each trajectory."""
    (directory / "foreign.py").write_text(program + "\nasyncio.run(forking_server.serve())\n")
    env = {"PYTHONPATH": str(ROOT / "tests" / "gateway")}
    return {"command": sys.executable, "args": [str(directory / "foreign.py")], "env": env, "scope": "process"}


STAMPS = """
import asyncio
from pathlib import Path
from uuid import uuid4
import forking_server

def call(name, arguments):
    return f"{uuid4()} {COUNTED}" if name == "stamp" else count()

def count():
    with Path(__file__).with_name("count").open("a") as file:
        file.write("x")
        return file.tell()

forking_server.TOOLS, forking_server.call = [{"name": "stamp"}, {"name": "count"}], call
"""


@pytest.mark.parametrize(("counted", "failed"), [("1", False), pytest.param("count()", True, marks=pytest.mark.full)])
def test_of_a_foreign_server_ids_count_as_equal_and_only_the_tasks_tools_are_called(
    tmp_path: Path, counted: str, failed: bool
) -> None:
    entry = foreign(tmp_path, STAMPS.replace("COUNTED", counted))
    made = Environment.model_validate({"name": "stamps", "servers": {"stamps": entry}, "reward": {"weights": {}}})
    report = examined(made, task=ListedTask(task="x", seed=3, tools=["stamp"]))
    assert (Clause.RESET in report.failed) is failed, report.results
    assert not failed or "(stamp)].content" in said(report, Clause.RESET)


THOUGHTS = """
import asyncio
import forking_server

thoughts = []

def call(name, arguments):
    thoughts.append(arguments["thought"])
    return len(thoughts)

schema = {"type": "object", "properties": {"thought": {"type": "string"}}, "required": ["thought"]}
forking_server.TOOLS = [{"name": "think", "inputSchema": schema, "annotations": {"readOnlyHint": True}}]
forking_server.call = call
"""


def test_a_server_without_a_reset_may_change_within_a_trajectory_where_it_says_that_it_only_reads(
    tmp_path: Path,
) -> None:
    entry = foreign(tmp_path, THOUGHTS)
    made = Environment.model_validate({"name": "thoughts", "servers": {"t": entry}, "reward": {"weights": {}}})
    report = examined(made, task=ListedTask(task="x", seed=3))
    assert report.failed == [], report.results
    assert said(report, Clause.RELEASE) == "no server has a reset or release tool"


def test_a_setup_that_only_a_first_world_takes_breaks_reset() -> None:
    setup = ({"name": "add", "arguments": {"number": 1}, "returns": "0"},)
    once = ListedTask.model_validate({"task": "x", "seed": 3, "setup": setup})
    report = examined(environment("adds_on"), task=once)
    assert report.failed == [Clause.RESET], report.results
    assert said(report, Clause.RESET) == "task 'x': setup.0: add answers with what is not '0': 1"
    assert said(report, Clause.ISOLATION).startswith("because reset fails: ")


def test_two_long_texts_are_shown_where_they_part() -> None:
    one, other = "x" * 500 + "left" + "y" * 500, "x" * 500 + "right" + "y" * 500
    found = difference({"a": one}, {"a": other})
    assert found is not None and "xleft" in found and "xright" in found and len(found) < 300
