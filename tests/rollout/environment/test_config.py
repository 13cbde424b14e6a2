"""Where environments are looked up, and the short forms of their keys."""

from __future__ import annotations

from pathlib import Path

import pytest

from mcp_rollout.gateway.errors import ConfigError, faults_of
from mcp_rollout.rollout.environment.config import environment_names, load_environment, load_for_row

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


PARAMETERS = """
description: The tasks of ${parameters.split}, ${parameters.size} of them.
parameters: {split: {default: easy, choices: [easy, hard]}, size: {default: "2", choices: ["2", "4"]}}
servers: {echo: {command: "${python}", args: [--split, "${parameters.split}", "${lease.dir}"], scope: process}}
limits: {assistant_turns: "${parameters.size}"}
"""


def test_a_name_gives_values_to_parameters_and_the_full_name_reads_the_same_environment_again(tmp_path: Path) -> None:
    (tmp_path / "own.yaml").write_text(PARAMETERS)
    found = load_environment("own:size=4", tmp_path)
    assert (found.name, found.source) == ("own:split=easy,size=4", f"{tmp_path / 'own.yaml'}:split=easy,size=4")
    assert found.description == "The tasks of easy, 4 of them." and found.limits.assistant_turns == 4
    assert found.servers["echo"].args == ("--split", "easy", "${lease.dir}")
    assert load_for_row(found.name, tmp_path) == load_environment(found.source) == found
    assert load_environment("own", tmp_path).name == "own:split=easy,size=2"


@pytest.mark.parametrize(
    ("name", "change", "error"),
    [
        ("own:siz=4", "", "own.yaml: parameters: no parameter 'siz' (did you mean 'size'?)"),
        ("own:size=3", "", "own.yaml: parameters.size: no value '3' (choices: 2, 4)"),
        ("own:size", "", "own:size: 'size' is not PARAMETER=VALUE,... (write own:PARAMETER=VALUE)"),
        ("own:size=2", "", "own.yaml: parameters: the full name of this environment ends with :split=easy,size=2"),
        ("own", 'parts: ["${parameters.split}"]', "own.yaml: reward: depends on a parameter"),
        ("own", 'parts: ["${parameters.spilt}"]', "own.yaml: reward.parts: ${parameters.spilt} is not declared"),
    ],
)
def test_a_wrong_value_of_a_parameter_is_one_error(name: str, change: str, error: str, tmp_path: Path) -> None:
    (tmp_path / "own.yaml").write_text(PARAMETERS + (f"reward: {{server: echo, {change}}}\n" if change else ""))
    with pytest.raises(ConfigError) as caught:
        load_for_row(name, tmp_path)
    assert error in str(caught.value)
