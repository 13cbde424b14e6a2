"""Reference servers under training's conditions: trajectories at the same time, each with files of its own."""

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import anyio
import pytest
from third_party import apart, npm, python, sqlite

from mcp_rollout import Gateway, GatewayConfig, Session

pytestmark = pytest.mark.anyio

Play = Callable[[Session, int], Awaitable[str]]


async def say(session: Session, tool: str, **arguments: Any) -> str:
    result = await session.call(tool, arguments)
    assert not result.is_error, f"{tool}: {result.text}"
    return result.text


async def write_files(session: Session, number: int) -> str:
    for turn in range(3):
        await say(session, "write_file", path=f"{number}-{turn}.txt", content=f"{number}")
    await say(session, "move_file", source=f"{number}-0.txt", destination="first.txt")
    return await say(session, "directory_tree", path=".")


async def remember(session: Session, number: int) -> str:
    entity = {"name": f"Ada {number}", "entityType": "person", "observations": [f"likes {number}"]}
    await say(session, "create_entities", entities=[entity])
    await say(session, "add_observations", observations=[{"entityName": entity["name"], "contents": ["counts"]}])
    return await say(session, "read_graph")


async def commit(session: Session, number: int) -> str:
    for turn in range(2):
        await say(session, "git_create_branch", repo_path=".", branch_name=f"branch-{number}-{turn}")
        await say(session, "git_checkout", repo_path=".", branch_name=f"branch-{number}-{turn}")
        await say(session, "git_add", repo_path=".", files=["poem.txt"])
    return await say(session, "git_branch", repo_path=".", branch_type="local")


async def fill_tables(session: Session, number: int) -> str:
    await say(session, "create_table", query="CREATE TABLE fruit (name TEXT)")
    for turn in range(3):
        await say(session, "write_query", query=f"INSERT INTO fruit VALUES ('{number}-{turn}')")
    return await say(session, "read_query", query="SELECT name FROM fruit")


GIT = (
    "git init -q . && echo so much depends > poem.txt && git add . && "
    "git -c user.name=Ada -c user.email=ada@example.org commit -q -m poem"
)
WORLDS: dict[str, tuple[Callable[[Path], dict[str, Any]], Play, str]] = {
    "filesystem": (lambda place: apart(npm("server-filesystem", "."), place), write_files, "{n}-1.txt"),
    "memory": (
        lambda place: apart(npm("server-memory"), place, before='export MEMORY_FILE_PATH="$PWD/graph.jsonl"'),
        remember,
        "Ada {n}",
    ),
    "git": (
        lambda place: apart(python("mcp_server_git", "--repository", "."), place, before=GIT),
        commit,
        "branch-{n}-1",
    ),
    "sqlite": (lambda place: apart(sqlite("data.db"), place), fill_tables, "{n}-2"),
}


async def together(entry: dict[str, Any], play: Play, count: int) -> list[str]:
    """What each of `count` trajectories saw at its end, all of them alive until the last has played."""
    config = GatewayConfig.model_validate({"servers": {"world": entry}})
    seen: dict[int, str] = {}
    everybody = anyio.Event()

    async def trajectory(gateway: Gateway, number: int) -> None:
        async with gateway.lease(trajectory=f"t{number}", task=None, seed=number) as session:
            seen[number] = await play(session, number)
            if len(seen) == count:
                everybody.set()
            await everybody.wait()

    with anyio.fail_after(60):
        async with Gateway(config) as gateway, anyio.create_task_group() as tasks:
            for number in range(1, count + 1):
                tasks.start_soon(trajectory, gateway, number)
    return [seen[number] for number in sorted(seen)]


@pytest.mark.parametrize("world", WORLDS)
async def test_trajectories_with_a_process_each_see_their_own_files_alone(world: str, tmp_path: Path) -> None:
    entry, play, mark = WORLDS[world]
    first, second = await together(entry(tmp_path), play, 2)
    assert mark.format(n=1) in first and mark.format(n=2) not in first
    assert mark.format(n=2) in second and mark.format(n=1) not in second


async def test_trajectories_that_share_the_process_see_each_others_memory(tmp_path: Path) -> None:
    # The reason for scopes: nothing in this server keeps trajectories apart.
    entry = npm("server-memory", env={"MEMORY_FILE_PATH": str(tmp_path / "graph.jsonl")}, scope="shared")
    config = GatewayConfig.model_validate({"servers": {"world": entry}})
    async with Gateway(config) as gateway:
        for number in (1, 2):
            async with gateway.lease(trajectory=f"t{number}", task=None, seed=number) as session:
                seen = await remember(session, number)
    assert "Ada 1" in seen and "Ada 2" in seen


async def test_a_lease_of_several_servers_is_one_world(tmp_path: Path) -> None:
    servers = {
        "memory": apart(npm("server-memory"), tmp_path, before='export MEMORY_FILE_PATH="$PWD/graph.jsonl"'),
        "files": apart(npm("server-filesystem", "."), tmp_path),
        "time": python("mcp_server_time"),
    }
    async with Gateway(GatewayConfig.model_validate({"servers": servers})) as gateway:
        for number in (1, 2):
            async with gateway.lease(trajectory=f"t{number}", task=None, seed=number) as session:
                now = await say(session, "get_current_time", timezone="UTC")
                graph = await remember(session, number)
                await say(session, "write_file", path="notes.txt", content=graph)
                tree = await write_files(session, number)
                assert '"timezone": "UTC"' in now
                assert await say(session, "read_text_file", path="notes.txt") == graph
                assert f"Ada {3 - number}" not in graph and f"{3 - number}-1.txt" not in tree
