"""What a process that waits for its first lease does of it before, and what it must not do."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import mcp_types as mcp
import pytest
from structlog.testing import capture_logs

from mcp_rollout import Gateway, GatewayConfig, Session
from mcp_rollout.gateway.errors import ServerUnavailable
from mcp_rollout.gateway.leases.pool import BundlePool
from mcp_rollout.gateway.leases.taking import Bundle
from mcp_rollout.gateway.transport.tool_definitions import read_tools

pytestmark = pytest.mark.anyio

SHOP = """
import json

from mcp.server.mcpserver import Context, MCPServer

from mcp_rollout.mcp_servers.kit import Harness, main

BEGUN = []


def begin(task, seed):
    if task == "refused":
        raise LookupError("there is no such task")
    BEGUN.append(task)
    return [task, seed]


server = MCPServer("shop")
harness = Harness(server, begin, rehearsal=REHEARSAL)


@server.tool()
async def begun(ctx: Context) -> str:
    return json.dumps([BEGUN, harness.world(ctx), len(harness)])


if __name__ == "__main__":
    main(server)
"""


def shop(path: Path, rehearsal: object, **entry: Any) -> GatewayConfig:
    """A stock of one process beside the one that a first lease takes."""
    (path / "shop.py").write_text(SHOP.replace("REHEARSAL", repr(rehearsal)))
    whole = {"command": sys.executable, "args": [str(path / "shop.py")], "scope": "process", **entry}
    return GatewayConfig.model_validate({"servers": {"shop": {"required": True, "min_ready": 2, **whole}}})


async def begun(session: Session) -> list[Any]:
    return json.loads((await session.call("begun", {})).text)


@pytest.mark.parametrize("start", ["spawn", "fork"])
async def test_a_process_of_the_stock_has_made_and_released_the_declared_world(start: str, tmp_path: Path) -> None:
    config = shop(tmp_path, ("first", 7), start=start, max_processes=2)
    async with (
        Gateway(config) as gateway,
        gateway.lease(trajectory="a", task="mine", seed=1) as of_the_start,
        gateway.lease(trajectory="b", task="mine", seed=2) as of_the_stock,  # waits until it is ready
    ):
        assert not gateway.spawned
        assert (await begun(of_the_start)) == [["mine"], ["mine", 1], 1]
        assert (await begun(of_the_stock)) == [["first", "mine"], ["mine", 2], 1]


async def test_a_process_that_a_lease_starts_is_not_rehearsed(tmp_path: Path) -> None:
    async with (
        Gateway(shop(tmp_path, ("first", 7), min_ready=0)) as gateway,
        gateway.lease(trajectory="a", task="mine", seed=1),
        gateway.lease(trajectory="b", task="mine", seed=2) as started,
    ):
        assert (await begun(started))[0] == ["mine"]


@pytest.mark.parametrize(("rehearsal", "said"), [(None, []), (("refused", 0), ["rehearsal.refused"])])
async def test_a_server_that_declares_nothing_or_refuses_its_own_task_is_leased_as_it_is(
    rehearsal: object, said: list[str], tmp_path: Path
) -> None:
    with capture_logs() as lines:
        async with (
            Gateway(shop(tmp_path, rehearsal, start="fork", max_processes=2)) as gateway,
            gateway.lease(trajectory="a", task="mine", seed=1),
            gateway.lease(trajectory="b", task="mine", seed=2) as of_the_stock,
        ):
            assert (await begun(of_the_stock)) == [["mine"], ["mine", 2], 1]
    assert [line["event"] for line in lines if line["log_level"] == "warning"] == said


@pytest.mark.parametrize("name", ["retail"])
@pytest.mark.skipif(sys.platform != "linux", reason="forks and their page faults are Linux's")
async def test_the_first_reset_of_a_rehearsed_fork_copies_few_pages(name: str) -> None:
    """A tenth of them, counted: the others were copied while it waited."""
    faults: list[int] = []
    for stock in ({"min_ready": 2, "max_processes": 2}, {}):
        entry = {
            "command": sys.executable,
            "args": ["-m", f"mcp_rollout.mcp_servers.{name}"],
            "scope": "process",
            "start": "fork",
        }
        config = GatewayConfig.model_validate({"servers": {"shop": {"required": True, **entry, **stock}}})
        async with (
            Gateway(config) as gateway,
            gateway.lease(trajectory="a", task=None, seed=1),
            gateway.lease(trajectory="b", task=None, seed=2) as session,
        ):
            assert not gateway.spawned
            task = f"{name}-train-0007"
            pid = session.connection("shop").pid
            before = minor_faults(pid)
            await session.reset(task)
            faults.append(minor_faults(pid) - before)
    rehearsed, unprepared = faults
    assert rehearsed * 3 < unprepared, faults


def minor_faults(pid: int | None) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[7])


async def test_a_lease_from_the_stock_takes_no_turn_of_the_event_loop(mini: Any, config: Any) -> None:
    async with Gateway(config(world=mini("pid", scope="process"))) as gateway:
        turned = anyio.Event()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(set_soon, turned)
            async with gateway.lease(trajectory="a", task=None, seed=0):  # the process of the start
                assert not turned.is_set()
            await turned.wait()


async def set_soon(event: anyio.Event) -> None:
    event.set()


async def test_a_bundle_whose_rehearsal_breaks_is_not_given_out() -> None:
    discarded: list[Bundle] = []
    broken: list[Bundle] = []

    async def open_bundle(bundle: Bundle) -> None:
        await anyio.lowlevel.checkpoint()

    async def discard(bundle: Bundle) -> None:
        discarded.append(bundle)

    async def rehearse(bundle: Bundle) -> None:
        await anyio.lowlevel.checkpoint()
        if not broken:
            broken.append(bundle)
            raise ServerUnavailable("it died", server="world")

    async with anyio.create_task_group() as tasks:
        pool = BundlePool(
            ("world",), open_bundle=open_bundle, discard=discard, rehearse=rehearse, first=Bundle(), tasks=tasks,
            min_ready=2, most=2,
        )  # fmt: skip
        first = await pool.take(reset=True)
        with anyio.fail_after(20):
            second = await pool.take(reset=True)  # after the backoff
        assert discarded == broken and second not in (first, *broken)
        pool.close()


def test_a_rehearsal_that_is_no_object_is_a_fault_of_its_tool() -> None:
    meta = {"mcp-rollout/role": "reset", "mcp-rollout/rehearsal": "first"}
    tools, faults = read_tools("s", [mcp.Tool(name="reset", input_schema={"type": "object"}, _meta=meta)], {})
    assert not tools and faults == ["reset: _meta['mcp-rollout/rehearsal'] is not an object of arguments"]
