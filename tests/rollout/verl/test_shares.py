"""Maxima are per node and divided among its workers, under `mcp_agent` and verl's `tool_agent` alike."""

import pytest

from mcp_rollout import GatewayConfig
from mcp_rollout.gateway.errors import ConfigError

pytestmark = [pytest.mark.verl, pytest.mark.usefixtures("imported_verl")]
PROCESS = {"command": "server", "scope": "process", "max_processes": 8}


@pytest.mark.parametrize(("workers", "sessions", "processes"), [(1, 64, 8), (4, 16, 2), (8, 8, 1)])
def test_a_worker_has_its_part_of_sessions_and_processes(workers: int, sessions: int, processes: int) -> None:
    from mcp_rollout.rollout.training.settings import share

    servers = {"world": PROCESS, "other": {"command": "server"}}
    part = share(GatewayConfig.model_validate({"servers": servers, "max_sessions": 64}), workers)
    assert part.max_sessions == sessions
    assert part.servers["world"].max_processes == processes and part.servers["other"].max_processes is None


@pytest.mark.parametrize(("workers", "ready"), [(1, 3), (2, 2), (4, 1)])
def test_the_workers_keep_as_many_processes_warm_as_the_node_is_to_have(workers: int, ready: int) -> None:
    from mcp_rollout.rollout.training.settings import share

    servers = {"world": PROCESS | {"min_ready": 3}, "other": PROCESS}
    part = share(GatewayConfig.model_validate({"servers": servers}), workers)
    assert (part.servers["world"].min_ready, part.servers["other"].min_ready) == (ready, 0)


@pytest.mark.parametrize(("workers", "key"), [(9, "servers.world.max_processes"), (65, "max_sessions")])
def test_a_worker_without_a_part_is_refused(workers: int, key: str) -> None:
    from mcp_rollout.rollout.training.settings import share

    with pytest.raises(ConfigError, match=f"environment.yaml: {key}: .* {workers} workers") as refused:
        share(GatewayConfig.model_validate({"servers": {"world": PROCESS}}), workers, file="environment.yaml")
    assert f"at least {workers}" in refused.value.remedy


@pytest.mark.full
def test_the_stock_loops_tools_find_out_how_many_workers_share_the_node(monkeypatch: pytest.MonkeyPatch) -> None:
    import ray

    from mcp_rollout.rollout.verl.tool_agent_sessions import workers_per_node

    assert workers_per_node() == 1
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    ray.init(num_cpus=1, include_dashboard=False, logging_level="ERROR", namespace="job")
    try:

        @ray.remote(num_cpus=0)
        class Worker:
            def workers(self) -> int:
                return workers_per_node()

        # Named as verl names them.
        workers = [Worker.options(name=f"agent_loop_worker_{n}_0a1b2c3d").remote() for n in range(3)]
        assert ray.get([worker.workers.remote() for worker in workers]) == [3, 3, 3]
    finally:
        ray.shutdown()
