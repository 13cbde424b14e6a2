"""Worlds of a served gateway: what a session sees of them, and when their places are free again."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from itertools import cycle
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import anyio
import pytest
from anyio.abc import TaskStatus
from clock import Clock, made
from dropping import dropping
from served import OTHER_TOKEN, TOKEN, RawClient, at, remote, served, until_free
from structlog.testing import capture_logs

from mcp_rollout import Gateway, GatewayConfig, GatewayError
from mcp_rollout.gateway.cassette.reading import SUFFIX, Cassette
from mcp_rollout.gateway.cassette.recording import Recorder
from mcp_rollout.gateway.cassette.replaying import Replay
from mcp_rollout.gateway.errors import (
    CallTimeout,
    ConfigError,
    HostRefused,
    LeaseTimeout,
    ServerUnavailable,
    ServesWorlds,
    ToolsChanged,
    WorldLost,
)
from mcp_rollout.gateway.remote.hosts import HostConfig, HostList
from mcp_rollout.gateway.serve.app import serving
from mcp_rollout.gateway.serve.config import ServeConfig
from mcp_rollout.gateway.types import CallFault, ToolResult

Entries = Callable[..., dict[str, Any]]
Config = Callable[..., GatewayConfig]
pytestmark = pytest.mark.anyio


async def test_each_lease_has_a_world_of_its_own_under_each_scope(mini: Entries, config: Config) -> None:
    for scope in ("session", "process"):
        async with remote(config(store=mini("put", "get", "pid", scope=scope))) as (gateway, running):
            async with (
                gateway.lease(trajectory="one", task=None, seed=1) as one,
                gateway.lease(trajectory="two", task=None, seed=1) as two,
            ):
                assert not (await one.call("put", {"text": "plum"})).is_error
                assert (await one.call("get", {})).text == "plum"
                assert (await two.call("get", {})).text != "plum"
                assert (await one.call("pid", {})).text != (await two.call("pid", {})).text
            await until_free(running)


async def test_a_replay_is_leased_like_its_servers(mini: Entries, config: Config, tmp_path: Path) -> None:
    made, path = config(store=mini("put", "get")), tmp_path / f"a{SUFFIX}"

    async def conversation(gateway: Gateway, trajectory: str) -> list[str]:
        async with gateway.lease(trajectory=trajectory, task=None, seed=1) as session:
            return [(await session.call(*call)).text for call in (("put", {"text": "plum"}), ("get", {}))]

    recorder = Recorder(path)
    async with Gateway(made, name="shop", record=recorder) as gateway:
        recorded = await conversation(gateway, "one")
    recorder.close()
    replay = Gateway(made, name="shop", replay=Replay(Cassette.read(path)))
    async with replay, serving(replay, ServeConfig()) as running, Gateway(made, hosts=at(running.url)) as gateway:
        assert await conversation(gateway, "one") == recorded == ["stored", "plum"]


async def test_catalogue_faults_and_coercions_are_those_of_a_local_gateway(mini: Entries, config: Config) -> None:
    made = config(store=mini("echo", "refuse", "reward", trusted=True))
    async with Gateway(made) as local, remote(made) as (gateway, _):
        assert gateway.catalogue == local.catalogue
        assert gateway.instructions == local.instructions and gateway.identities == local.identities
        outcomes: list[list[ToolResult]] = []
        for each in (local, gateway):
            async with each.lease(trajectory="t", task=None, seed=7) as session:
                calls = [("echo", {"text": "x"}), ("echo", {"txt": 1}), ("nothing", {}), ("refuse", {}), ("reward", {})]
                outcomes.append([await session.call(name, arguments) for name, arguments in calls])
        for here, there in zip(*outcomes, strict=True):
            assert (here.content, here.structured, here.is_error, here.fault, here.coerced, here.reward, here.meta) == (
                there.content, there.structured, there.is_error, there.fault, there.coerced, there.reward, there.meta
            )  # fmt: skip
        assert outcomes[1][1].fault is CallFault.INVALID_ARGUMENTS
        assert outcomes[1][4].reward is not None


async def test_requests_carry_the_trajectory_and_the_seed(mini: Entries, config: Config) -> None:
    async with remote(config(store=mini("meta"))) as (gateway, _):
        async with gateway.lease(trajectory="the one", task=None, seed=41) as session:
            said = (await session.call("meta", {})).text
    assert "the one" in said and "41" in said


async def test_bearers_that_choose_the_same_trajectory_share_no_state(mini: Entries, config: Config) -> None:
    made = config(store=mini("put", "get"))  # keeps what ended trajectories left
    async with served(made, tokens=(TOKEN, OTHER_TOKEN)) as running:
        gateways = [Gateway(made, hosts=at(running.url, token)) for token in (TOKEN, OTHER_TOKEN)]
        async with gateways[0] as one, gateways[1] as other:
            async with one.lease(trajectory="t", task=None, seed=1) as session:
                await session.call("put", {"text": "plum"})
                async with other.lease(trajectory="t", task=None, seed=1) as beside:
                    assert (await beside.call("get", {})).text == "nothing"
            for trajectory in ("t", "t@0"):
                async with other.lease(trajectory=trajectory, task=None, seed=1) as session:
                    assert (await session.call("get", {})).text == "nothing"
            async with one.lease(trajectory="t", task=None, seed=1) as session:
                assert (await session.call("get", {})).text == "plum"


async def test_errors_cross_as_themselves(
    mini: Entries, config: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock, hung = Clock(monkeypatch), tmp_path / "hung"
    bounds = {"call_timeout_s": 10, "env": {"HANGS": str(hung)}}
    servers = config(store=mini("die", "hang", "echo", scope="process", **bounds))
    async with remote(servers) as (gateway, _):
        async with gateway.lease(trajectory="a", task=None, seed=1) as session:
            with pytest.raises(GatewayError) as caught:
                await session.call("die", {})
            assert caught.value.code == "delivery_unknown"
            assert (caught.value.server, caught.value.tool) == ("store", "die")
        async with gateway.lease(trajectory="b", task=None, seed=1) as session:
            async with clock.passing(10, whenever=made(hung)):
                result = await session.call("hang", {})  # in its own process: the host says that the policy caused it
            assert result.fault is CallFault.TIMED_OUT and "hang timed out: no answer within 10 s" in result.text
    async with remote(config(store=mini("hang", **bounds))) as (gateway, _):
        async with gateway.lease(trajectory="c", task=None, seed=1) as session:
            async with clock.passing(10, whenever=made(hung)):
                with pytest.raises(CallTimeout):
                    await session.call("hang", {})


async def test_places_are_the_hosts_and_leases_wait_for_them(mini: Entries, config: Config) -> None:
    made = config(store=mini("pid", scope="process", max_processes=1), lease_timeout_s=4)
    async with remote(made) as (gateway, running):
        async with gateway.lease(trajectory="a", task=None, seed=1):
            with pytest.raises(LeaseTimeout):
                async with gateway.lease(trajectory="b", task=None, seed=1):
                    pass
        async with gateway.lease(trajectory="c", task=None, seed=1) as session:
            assert (await session.call("pid", {})).text
        await until_free(running)


async def test_hosts_hold_as_many_sessions_together_as_each_may_have(mini: Entries, config: Config) -> None:
    made = config(store=mini("pid", scope="process"), max_sessions=1, lease_timeout_s=4)
    async with served(made) as one, served(made) as other:
        hosts = HostList([HostConfig.model_validate({"url": each.url}) for each in (one, other)])
        async with (
            Gateway(made, hosts=hosts) as gateway,
            gateway.lease(trajectory="a", task=None, seed=1),
            gateway.lease(trajectory="b", task=None, seed=1),
        ):
            assert (one.leases, other.leases) == (1, 1)
            with pytest.raises(LeaseTimeout):
                async with gateway.lease(trajectory="c", task=None, seed=1):
                    pass


async def test_sessions_that_meet_at_a_host_that_is_gone_wait_for_one_connection_together(
    mini: Entries, config: Config
) -> None:
    arrived, leased, over = 0, 0, anyio.Event()

    async def serve_nothing(stream: anyio.abc.SocketStream) -> None:
        nonlocal arrived
        arrived += 1
        await over.wait()
        await stream.aclose()

    async def lease(gateway: Gateway, number: int) -> None:
        nonlocal leased
        async with gateway.lease(trajectory=str(number), task=None, seed=1):
            leased += 1
            if leased == 4:  # of eight, those that met at the other host
                over.set()
            with anyio.fail_after(60):
                await over.wait()

    made = config(store=mini("pid"))
    gone = await anyio.create_tcp_listener(local_host="127.0.0.1")
    port = gone.extra(anyio.abc.SocketAttribute.local_port)
    async with gone, served(made) as running, anyio.create_task_group() as serving:
        serving.start_soon(gone.serve, serve_nothing)
        found = [{"url": running.url}, {"url": f"http://127.0.0.1:{port}/mcp", "lost_after_s": 0.01}]
        async with Gateway(made, hosts=HostList([HostConfig.model_validate(each) for each in found])) as gateway:
            async with anyio.create_task_group() as tasks:
                for number in range(8):
                    tasks.start_soon(lease, gateway, number)
        assert leased == 8
        assert arrived == 1
        serving.cancel_scope.cancel()


async def test_a_vanished_clients_lease_is_freed(mini: Entries, config: Config) -> None:
    async with served(config(store=mini("pid", scope="process", max_processes=1)), idle_s=2) as running:
        client = RawClient(running.url)
        gone = await client.open("gone")
        with anyio.fail_after(60):
            await client.open("next")  # the only process is free again
        answer = await client.ask("tools/call", {"name": "pid", "arguments": {}}, lease=gone, call="1", server="store")
        assert answer["error"]["data"]["mcp-rollout/failure"]["code"] == "world_lost"


async def test_a_gateway_renews_the_leases_of_trajectories_that_think_for_long(mini: Entries, config: Config) -> None:
    made = config(store=mini("put", "get", scope="process"))
    async with remote(made, idle_s=2) as (gateway, running):
        async with gateway.lease(trajectory="a", task=None, seed=1) as session:
            await session.call("put", {"text": "plum"})
            client = RawClient(running.url)
            await client.open("short")  # it vanishes, after which at least an idle bound has passed
            with anyio.fail_after(60):
                while running.leases > 1:
                    await anyio.lowlevel.checkpoint()
            assert (await session.call("get", {})).text == "plum"


async def host_until(
    config: GatewayConfig, end: anyio.Event, gone: anyio.Event, *, task_status: TaskStatus[str]
) -> None:
    async with served(config) as running:
        task_status.started(running.url)
        await end.wait()
    gone.set()


async def test_a_host_that_ends_loses_its_worlds_and_says_so(mini: Entries, config: Config) -> None:
    made = config(store=mini("echo", scope="process"))
    ended, gone = anyio.Event(), anyio.Event()
    async with anyio.create_task_group() as tasks:
        url = await tasks.start(host_until, made, ended, gone)
        async with Gateway(made, hosts=at(url, lost_after_s=0.5)) as gateway:
            async with gateway.lease(trajectory="a", task=None, seed=1) as session:
                assert (await session.call("echo", {"text": "x"})).text == "x"
                ended.set()
                await gone.wait()
                with pytest.raises(WorldLost):
                    await session.call("echo", {"text": "x"})
                with pytest.raises(WorldLost):
                    await session.wait_for_tool_changes()


async def test_changed_tools_are_reported_to_the_client(mini: Entries, config: Config) -> None:
    async with remote(config(store=mini("echo", "turn_coat"))) as (gateway, _):
        async with gateway.lease(trajectory="a", task=None, seed=1) as session:
            await session.call("turn_coat", {"text": "change"})
            with pytest.raises(ToolsChanged):
                await session.wait_for_tool_changes()


async def test_a_cancelled_call_is_cancelled_on_the_host(mini: Entries, config: Config) -> None:
    async with remote(config(store=mini("hang", scope="process", max_processes=1))) as (gateway, running):
        async with gateway.lease(trajectory="a", task=None, seed=1) as session:
            with anyio.move_on_after(0.2):
                await session.call("hang", {})
        with anyio.fail_after(60):
            async with gateway.lease(trajectory="b", task=None, seed=1):
                pass
        await until_free(running)


async def test_a_lease_that_outlives_its_gateway_is_refused_and_leaves_no_place_there(
    mini: Entries, config: Config
) -> None:
    made = config(store=mini("get", scope="process", max_processes=1))

    async def lease(gateway: Gateway) -> None:
        with pytest.raises(ServerUnavailable, match="the gateway is closing"):
            async with gateway.lease(trajectory="late", task=None, seed=1):
                pass

    with anyio.fail_after(60):
        async with served(made) as running, anyio.create_task_group() as tasks:
            other = RawClient(running.url)
            handle = await other.open("first")
            gateway = Gateway(made, hosts=at(running.url))
            async with gateway:
                tasks.start_soon(lease, gateway)
                while running.leases < 2:  # it waits for the only process
                    await anyio.lowlevel.checkpoint()
            await other.ask("mcp-rollout/leases/close", {}, lease=handle)
            await until_free(running)
            await lease(gateway)
            assert not running.leases


async def test_a_lease_that_is_given_up_before_the_host_has_answered_leaves_no_place_there(
    mini: Entries, config: Config
) -> None:
    made = config(store=mini("echo", scope="process", max_processes=1))
    # Long enough that nothing but the client frees the place within the test.
    async with remote(made, idle_s=600) as (gateway, running), Gateway(made, hosts=at(running.url)) as other:

        async def wait_for_a_place() -> None:
            async with other.lease(trajectory="b", task=None, seed=1):
                raise AssertionError("there is one place, and it is taken")

        async with gateway.lease(trajectory="a", task=None, seed=1):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(wait_for_a_place)
                with anyio.fail_after(60):
                    while running.leases < 2:
                        await anyio.lowlevel.checkpoint()
                tasks.cancel_scope.cancel()
            with anyio.fail_after(60):
                while running.leases > 1:
                    await anyio.lowlevel.checkpoint()
        await until_free(running)


async def test_a_lease_that_waits_keeps_its_place_where_the_path_to_the_host_was_cut(
    mini: Entries, config: Config
) -> None:
    """The host has not noticed: under another key it would refuse the trajectory's second lease."""
    made = config(store=mini("echo", scope="process", max_processes=1), lease_timeout_s=60)
    async with (
        served(made, idle_s=600) as running,
        dropping(urlsplit(running.url).port or 0, share=0.0, seed=1) as relay,
        Gateway(made, hosts=at(f"{relay.url}/mcp", lost_after_s=0.01)) as gateway,
        anyio.create_task_group() as tasks,
    ):
        other = RawClient(running.url)
        handle = await other.open("first")
        said: list[str] = []

        async def play() -> None:
            async with gateway.lease(trajectory="late", task=None, seed=1) as session:
                said.append((await session.call("echo", {"text": "x"})).text)

        with capture_logs() as logs, anyio.fail_after(60):
            tasks.start_soon(play)
            while running.leases < 2:
                await anyio.lowlevel.checkpoint()
            relay.cut()
            while not logs:
                await anyio.lowlevel.checkpoint()
        assert logs[0]["event"] == "host.lost"
        relay.share = 0.0
        await other.ask("mcp-rollout/leases/close", {}, lease=handle)
    assert said == ["x"]


class Alternating:
    """Two configurations of one address, as when a host comes back with another token."""

    def __init__(self, url: str) -> None:
        self._configs = cycle(HostConfig.model_validate({"url": url, "connect_timeout_s": each}) for each in (4, 5))

    count = 1

    async def take(self) -> HostConfig:
        return next(self._configs)

    def give_back(self, host: HostConfig, *, lost: bool) -> None:
        assert not lost


def renewing() -> int:
    return sum("renew_leases" in task.get_name() for task in asyncio.all_tasks())


async def test_a_host_whose_configuration_has_changed_is_renewed_no_longer_than_it_has_leases(
    mini: Entries, config: Config
) -> None:
    made = config(store=mini("echo"))
    async with served(made, idle_s=4) as running, Gateway(made, hosts=Alternating(running.url)) as gateway:
        for trajectory in "abcd":
            async with gateway.lease(trajectory=trajectory, task=None, seed=1) as session:
                assert (await session.call("echo", {"text": "x"})).text == "x"
        with anyio.fail_after(60):
            while renewing() > 1:
                await anyio.lowlevel.checkpoint()


@pytest.mark.parametrize("is_missed", [True, False], ids=["while it was away", "after it"])
async def test_what_is_started_at_a_hosts_address_after_it_has_to_offer_the_same(
    is_missed: bool, mini: Entries, config: Config
) -> None:
    made, other = config(store=mini("echo")), config(store=mini("write_file"))
    ended, gone, over = anyio.Event(), anyio.Event(), anyio.Event()
    problems: list[str] = []

    async def lease(gateway: Gateway) -> None:
        try:
            async with gateway.lease(trajectory="a", task=None, seed=1):
                pass
        except HostRefused as error:
            problems.append(str(error))
        over.set()

    async with anyio.create_task_group() as tasks:
        url = await tasks.start(host_until, made, ended, gone)
        async with Gateway(made, hosts=at(url, lost_after_s=0.2)) as gateway:
            ended.set()
            await gone.wait()
            with anyio.fail_after(60), capture_logs() as logs:
                if is_missed:
                    tasks.start_soon(lease, gateway)
                    while "host.lost" not in [each["event"] for each in logs]:
                        await anyio.lowlevel.checkpoint()
                async with served(other, port=urlsplit(url).port):
                    if not is_missed:
                        tasks.start_soon(lease, gateway)
                    await over.wait()
    assert len(problems) == 1 and "serves other tools" in problems[0]


async def test_a_lease_has_its_directory_on_the_host(mini: Entries, config: Config) -> None:
    entry = mini("write_file", "list_files", scope="process", cwd="${lease.dir}")
    async with remote(config(store=entry)) as (gateway, _):
        async with (
            gateway.lease(trajectory="a", task=None, seed=1) as one,
            gateway.lease(trajectory="b", task=None, seed=1) as two,
        ):
            await one.call("write_file", {"text": "mine"})
            assert (await one.call("list_files", {})).text != (await two.call("list_files", {})).text


async def test_another_program_or_another_set_of_servers_is_one_clear_error(mini: Entries, config: Config) -> None:
    async with served(config(store=mini("echo"))) as running:
        with pytest.raises(ConfigError, match="has no server 'shop'"):
            async with Gateway(config(shop=mini("echo")), hosts=at(running.url)):
                pass
        with pytest.raises(HostRefused):
            async with Gateway(config(store=mini("echo")), hosts=at(running.url.removesuffix("/mcp"))):
                pass


async def test_an_address_where_no_host_runs_is_named_with_a_remedy(mini: Entries, config: Config) -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))  # bound, and never listened on
        url = f"http://127.0.0.1:{closed.getsockname()[1]}/mcp"
        with pytest.raises(WorldLost, match=rf"{url}: .*is the address right, and mcp-rollout serve running"):
            async with Gateway(config(shop=mini("echo")), hosts=at(url, lost_after_s=0.1)):
                pass


async def test_an_entry_whose_url_is_a_host_is_refused_with_the_remedy(mini: Entries, config: Config) -> None:
    async with served(config(shop=mini("get"))) as running:
        with pytest.raises(ServesWorlds, match="it serves worlds, which are leased: name it under hosts"):
            async with Gateway(config(shop={"url": running.url, "required": True})):
                pass
