"""Where environments are looked up, and the short forms of their keys."""

from __future__ import annotations

from pathlib import Path

import pytest

from mcp_rollout.gateway.errors import ConfigError, faults_of
from mcp_rollout.rollout.environment.config import environment_names, load_environment

TEXT = "servers: {{echo: {{command: '${{python}}', args: [server.py]}}}}\nsystem: {system}\n"


def write(file: Path, system: str = "Be brief.") -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(TEXT.format(system=system))


def test_environments_side_by_side_each_in_a_directory_of_its_own(tmp_path: Path) -> None:
    for name in ("alpha", "beta"):
        write(tmp_path / name / f"{name}.yaml")
    write(tmp_path / "gamma.yaml")
    write(tmp_path / "alpha" / "notes.yaml")
    assert list(environment_names(tmp_path)) == ["alpha", "beta", "gamma"]
    assert load_environment("beta", tmp_path).file == str(tmp_path / "beta" / "beta.yaml")
    assert load_environment("gamma", tmp_path).name == "gamma"
    with pytest.raises(ConfigError, match="alpha"):
        load_environment("alpa", tmp_path)


@pytest.mark.parametrize(
    ("written", "texts"),
    [("Be brief.", ["Be brief."]), ("[One., {text: Two.}]", ["One.", "Two."]), ("{text: Three.}", ["Three."])],
)
def test_a_part_of_the_system_message_may_be_a_plain_text(written: str, texts: list[str], tmp_path: Path) -> None:
    write(tmp_path / "own.yaml", written)
    assert [part.text for part in load_environment("own", tmp_path).system] == texts


@pytest.mark.parametrize(
    ("strategy", "key", "used"),
    [
        ("{tree: {roots: 3}}", "tree", "chain"),
        ("{use: chain, tree: {roots: 3}}", "tree", "chain"),
        ("{use: tree, single_turn: {history_tokens: 99}}", "single_turn", "tree"),
    ],
)
def test_options_of_a_strategy_that_is_not_used_are_refused(strategy: str, key: str, used: str, tmp_path: Path) -> None:
    write(tmp_path / "own.yaml")
    (tmp_path / "own.yaml").write_text((tmp_path / "own.yaml").read_text() + f"strategy: {strategy}\n")
    with pytest.raises(ConfigError) as caught:
        load_environment("own", tmp_path)
    (fault,) = faults_of(caught.value)
    assert (str(fault.file), fault.key) == (str(tmp_path / "own.yaml"), f"strategy.{key}")
    assert f"the strategy is {used}" in fault.problem and f"add use: {key}" in fault.remedy


def test_an_unknown_strategy_with_options_of_another_is_one_fault(tmp_path: Path) -> None:
    write(tmp_path / "own.yaml")
    (tmp_path / "own.yaml").write_text((tmp_path / "own.yaml").read_text() + "strategy: {use: tre, tree: {roots: 3}}\n")
    with pytest.raises(ConfigError) as caught:
        load_environment("own", tmp_path)
    assert [fault.key for fault in faults_of(caught.value)] == ["strategy.use"]


def test_a_file_of_tasks_in_the_wrong_place_is_refused(tmp_path: Path) -> None:
    write(tmp_path / "own.yaml")
    (tmp_path / "own.yaml").write_text((tmp_path / "own.yaml").read_text() + "file: tasks.jsonl\n")
    with pytest.raises(ConfigError, match=r"own.yaml: file: unknown key 'file' \(a file of tasks is tasks: \{file"):
        load_environment("own", tmp_path)


@pytest.mark.parametrize("strategy", ["tree", "{use: tree}", "{tree: {roots: 3}, use: tree}", "{use: single_turn}"])
def test_options_of_the_strategy_that_is_used_are_accepted(strategy: str, tmp_path: Path) -> None:
    write(tmp_path / "own.yaml")
    (tmp_path / "own.yaml").write_text((tmp_path / "own.yaml").read_text() + f"strategy: {strategy}\n")
    assert load_environment("own", tmp_path).strategy.use in strategy


WRONG = """
servers:
  echo: {command: x, comand: y}
  shop: {command: "${NO_SUCH_VARIABLE}"}
  plain: {command: x}
user: {server: shopp}
reward: {server: ecko}
tasks: {server: echo}
limits: LIMITS
"""


def test_the_faults_of_servers_and_of_what_refers_to_them_are_reported_together(tmp_path: Path) -> None:
    def faults(limits: str) -> list[str]:
        (tmp_path / "own.yaml").write_text(WRONG.replace("LIMITS", limits))
        with pytest.raises(ConfigError) as caught:
            load_environment("own", tmp_path)
        return [f"{fault.key}: {fault.problem} ({fault.remedy})" for fault in faults_of(caught.value)]

    servers = [
        "servers.echo.comand: unknown key 'comand' (did you mean 'command'?)",
        "servers.shop.command: environment variable NO_SUCH_VARIABLE is not set "
        "(set NO_SUCH_VARIABLE, or write ${NO_SUCH_VARIABLE:-default})",
    ]
    assert faults("{}") == [
        *servers,
        "None: user.server names 'shopp', which is not one of the servers (did you mean 'shop'?)",
        "None: reward.server names 'ecko', which is not one of the servers (did you mean 'echo'?)",
    ]
    assert [fault.split(":")[0] for fault in faults("{assistant_turns: 0, user_turns: x}")] == [
        "servers.echo.comand",
        "servers.shop.command",
        "limits.assistant_turns",
        "limits.user_turns",
    ]
