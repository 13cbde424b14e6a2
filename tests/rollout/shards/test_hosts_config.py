"""Where worlds are: the forms of `hosts`, the trainer's section over the environment's, and the cluster for KubeRay."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any, ClassVar

import pytest
import yaml
from pydantic import ValidationError

from mcp_rollout.gateway.errors import ConfigError
from mcp_rollout.gateway.remote.hosts import HostList
from mcp_rollout.rollout.cli.worlds import TOKEN, opened_hosts, with_hosts
from mcp_rollout.rollout.environment.config import Environment
from mcp_rollout.rollout.environment.hosts_config import SHARD_RESOURCE, HostsConfig
from mcp_rollout.rollout.shards.hosts import RayHosts, hosts_of
from mcp_rollout.rollout.training.settings import TrainingSettings

ROOT = Path(__file__).parents[3]
URL = "http://10.0.0.1:9000/mcp"


def environment(**fields: Any) -> Environment:
    entry = {"command": "python", "scope": "process", "max_processes": 9}
    return Environment.model_validate({"name": "test", "servers": {"world": entry}, "max_sessions": 10, **fields})


@pytest.mark.parametrize(
    ("given", "kind"),
    [
        (None, type(None)),
        (URL, HostList),
        ([URL, {"url": "https://b/mcp", "token": "x" * 32}], HostList),
        ("ray", RayHosts),
        ({"ray": {"min": 2, "max": 3}}, RayHosts),
    ],
)
def test_each_form_of_hosts_is_accepted(given: Any, kind: type) -> None:
    assert type(hosts_of(environment(hosts=given))) is kind


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ([], "neither addresses nor ray"),
        ({"addresses": [URL], "ray": {}}, "or both"),
        ({"ray": {"min": 3, "max": 2}}, "less than min"),
        (["ftp://a"], "http:// or https://"),
        (["http://us:hush@a/mcp"], "no password"),
        (["http://:hush@a/mcp"], "no password"),
        (["http://a/mcp?key=hush"], "no query"),
    ],
)
def test_a_wrong_form_is_refused_with_its_problem(given: Any, problem: str) -> None:
    with pytest.raises(ValidationError, match=problem):
        environment(hosts=given)


def test_the_trainers_hosts_come_before_the_environments_and_bound_sessions_for_all_workers(tmp_path: Path) -> None:
    class Section(TrainingSettings):
        key: ClassVar[str] = "mcp"

    def settings(**fields: Any) -> TrainingSettings:
        return Section.model_validate({"environments_dir": tmp_path, "trace_dir": tmp_path, **fields})

    here = settings().apply(environment(), workers_per_node=3)
    assert (here.hosts, here.max_sessions, here.servers["world"].max_processes) == (None, 3, 3)
    there = settings(environment={"hosts": "ray"}).apply(environment(hosts=[URL]), workers_per_node=3)
    assert there.hosts is not None and there.hosts.ray is not None
    assert (there.max_sessions, there.servers["world"].max_processes) == (10, 9)
    own = settings().apply(environment(hosts=[URL]), workers_per_node=3)
    assert own.hosts is not None and [host.url for host in own.hosts.addresses] == [URL]


def test_the_commands_option_names_addresses_with_the_token_of_the_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(TOKEN, "y" * 32)
    (made,) = with_hosts([environment()], f"{URL}, http://b/mcp")
    assert made.hosts is not None and [host.url for host in made.hosts.addresses] == [URL, "http://b/mcp"]
    assert {host.token.get_secret_value() for host in made.hosts.addresses if host.token} == {"y" * 32}
    (ray,) = with_hosts([environment()], "ray")
    assert ray.hosts == HostsConfig.model_validate("ray")


def test_the_kuberay_manifest_keeps_trainers_and_shards_apart() -> None:
    """Against KubeRay's own schema it was validated by hand, see docs/scale.md; no package has that schema."""
    spec = yaml.safe_load((ROOT / "configs" / "kuberay.yaml").read_text())["spec"]
    groups = {group["groupName"]: group for group in spec["workerGroupSpecs"]}
    # KubeRay puts the value on a shell's command line, hence the quotes within.
    resources = {name: json.loads(json.loads(group["rayStartParams"]["resources"])) for name, group in groups.items()}
    assert resources == {"trainers": {"tq_storage": 1}, "shards": {SHARD_RESOURCE: 1}}
    assert groups["shards"]["rayStartParams"]["num-cpus"] == "0"
    for group in (spec["headGroupSpec"], *groups.values()):
        (container,) = group["template"]["spec"]["containers"]
        assert container["image"] == "IMAGE" and container["resources"]["requests"]["memory"]


@pytest.mark.anyio
async def test_worlds_on_ray_without_ray_are_one_message(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    monkeypatch.delitem(sys.modules, "mcp_rollout.rollout.shards.director", raising=False)
    with pytest.raises(ConfigError, match=r"hosts\.ray: shards on Ray need ray.*not installed.*pip install"):
        async with opened_hosts([environment(hosts="ray")]):
            pass
