"""The MCP project's own servers, from npm and PyPI: time, fetch and git speak 2026-07-28, the others the handshake."""

import json
import subprocess
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
from third_party import npm, python, sqlite
from web import serving

from mcp_rollout import Gateway, GatewayConfig, Session
from mcp_rollout.gateway.types import ContentKind, canonical_json

pytestmark = pytest.mark.anyio

MODERN = {"time", "fetch", "git"}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with a repository of one commit in it; what the servers may touch."""
    place = tmp_path_factory.mktemp("place")
    git = ["git", "-C", str(place / "repository"), "-c", "user.name=Ada", "-c", "user.email=ada@example.org"]
    subprocess.run(["git", "init", "-q", str(place / "repository")], check=True)
    (place / "repository" / "poem.txt").write_text("so much depends\n")
    subprocess.run([*git, "add", "."], check=True)
    subprocess.run([*git, "commit", "-q", "-m", "A poem"], check=True)
    return place


@pytest.fixture(scope="module")
def entries(place: Path) -> dict[str, dict[str, Any]]:
    return {
        "everything": npm("server-everything"),
        "filesystem": npm("server-filesystem", str(place)),
        "memory": npm("server-memory", env={"MEMORY_FILE_PATH": str(place / "memory.jsonl")}),
        "thinking": npm("server-sequential-thinking"),
        "time": python("mcp_server_time"),
        # Without a node on its path: where it finds one, it asks npm for a parser of its own.
        "fetch": python("mcp_server_fetch", "--allow-private-ips", env={"PATH": str(place)}),
        "git": python("mcp_server_git", "--repository", str(place / "repository")),
        "sqlite": sqlite(str(place / "data.db")),
    }


@pytest.fixture(scope="module")
async def gateway(entries: dict[str, dict[str, Any]]) -> AsyncIterator[Gateway]:
    async with Gateway(GatewayConfig.model_validate({"servers": entries})) as gateway:
        yield gateway


@pytest.fixture
async def session(gateway: Gateway) -> AsyncIterator[Session]:
    async with gateway.lease(trajectory="t", task=None, seed=1) as session:
        yield session


def as_sent(entry: dict[str, Any]) -> dict[str, Any]:
    """A server's tools by name, read off its pipe without any library."""
    hello = {
        "protocolVersion": "2025-06-18",
        "capabilities": {},
        "clientInfo": {"name": "test", "version": "1"},
    }
    requests: list[dict[str, Any]] = [
        {"id": 0, "method": "initialize", "params": hello},
        {"method": "notifications/initialized"},
        {"id": 1, "method": "tools/list", "params": {}},
    ]
    argv = [entry["command"], *entry["args"]]
    with subprocess.Popen(
        argv, env=entry.get("env"), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    ) as process:
        assert process.stdin is not None and process.stdout is not None
        for request in requests:
            process.stdin.write(json.dumps({"jsonrpc": "2.0", **request}).encode() + b"\n")
            process.stdin.flush()
            while "id" in request:
                answer = json.loads(process.stdout.readline())
                if answer.get("id") == request["id"]:
                    break
        process.kill()
    assert "nextCursor" not in answer["result"]
    return {tool["name"]: tool for tool in answer["result"]["tools"]}


@pytest.mark.parametrize("server", ["everything", "filesystem", "memory", "thinking", "time", "fetch", "git", "sqlite"])
async def test_every_tool_is_listed_with_the_schema_that_its_server_sent(
    gateway: Gateway, entries: dict[str, dict[str, Any]], server: str
) -> None:
    sent = as_sent(entries[server])
    # `everything` has more for clients that take its requests; neither client here declares that it does.
    listed = {tool.name: tool for tool in gateway.catalogue[server]}
    assert list(listed) == list(sent) and gateway.malformed[server] == ()
    for name, tool in listed.items():
        assert canonical_json(tool.input_schema) == canonical_json(sent[name]["inputSchema"])
        assert tool.openai_schema()["function"]["parameters"] == sent[name]["inputSchema"]
        assert tool.description == sent[name]["description"]
        assert tool.output_schema == sent[name].get("outputSchema")


async def test_the_servers_are_of_both_eras(gateway: Gateway) -> None:
    modes = {server: protocol.mode for server, protocol in gateway._openings.protocols.items()}
    assert modes == {server: "2026-07-28" if server in MODERN else "legacy" for server in modes}


CALLS: list[tuple[str, dict[str, Any], str]] = [
    ("echo", {"message": "plum 🎲"}, "Echo: plum 🎲"),
    ("get-sum", {"a": 2, "b": 40}, "The sum of 2 and 40 is 42."),
    ("trigger-long-running-operation", {"duration": 0.1, "steps": 5}, "completed. Duration: 0.1 seconds, Steps: 5"),
    ("list_directory", {"path": "{place}"}, "[DIR] repository"),
    ("read_text_file", {"path": "{place}/repository/poem.txt"}, "so much depends"),
    ("search_files", {"path": "{place}", "pattern": "**/*.txt"}, "poem.txt"),
    ("create_entities", {"entities": [{"name": "Ada", "entityType": "person", "observations": ["counts"]}]}, "counts"),
    ("search_nodes", {"query": "Ada"}, "Ada"),
    (
        "sequentialthinking",
        {"thought": "First.", "nextThoughtNeeded": True, "thoughtNumber": 1, "totalThoughts": 2},
        '"totalThoughts": 2',
    ),
    ("get_current_time", {"timezone": "Asia/Tokyo"}, "+09:00"),
    (
        "convert_time",
        {"source_timezone": "Asia/Tokyo", "time": "12:00", "target_timezone": "Asia/Kolkata"},
        "T08:30:00+05:30",
    ),
    ("git_log", {"repo_path": "{place}/repository"}, "A poem"),
    ("git_show", {"repo_path": "{place}/repository", "revision": "HEAD"}, "+so much depends"),
    ("create_table", {"query": "CREATE TABLE fruit (name TEXT, n INT)"}, "Table created"),
    ("write_query", {"query": "INSERT INTO fruit VALUES ('plum', 3)"}, "{'affected_rows': 1}"),
    ("read_query", {"query": "SELECT n FROM fruit"}, "[{'n': 3}]"),
]


async def test_a_call_of_each_server_answers_what_its_documentation_says(session: Session, place: Path) -> None:
    for tool, arguments, expected in CALLS:
        result = await session.call(tool, placed(arguments, place))
        assert not result.is_error and expected in result.text, f"{tool}: {result.text}"
    assert {session.tools[tool].server for tool, _, _ in CALLS} == {*session._sending.connections} - {"fetch"}


async def test_fetch_reads_a_page_as_text(session: Session) -> None:
    async with serving("<html><body><article><h1>Plums</h1><p>They were in the icebox.</p></article></body>") as url:
        result = await session.call("fetch", {"url": url})
    assert not result.is_error and "They were in the icebox." in result.text and "<p>" not in result.text


async def test_pictures_resources_and_structured_content_arrive(session: Session) -> None:
    picture = (await session.call("get-tiny-image", {})).content[1]
    assert picture.kind is ContentKind.IMAGE and picture.data.startswith(b"\x89PNG")
    blob = (await session.call("get-resource-reference", {"resourceType": "Blob"})).content[1]
    assert blob.kind is ContentKind.RESOURCE and blob.data and str(blob.uri).startswith("demo://")
    links = (await session.call("get-resource-links", {"count": 2})).content[1:]
    assert [link.kind for link in links] == [ContentKind.RESOURCE] * 2 and all(link.uri for link in links)
    weather = await session.call("get-structured-content", {"location": "Chicago"})
    assert weather.structured == json.loads(weather.text)


REFUSED: list[tuple[str, dict[str, Any], str]] = [
    ("read_text_file", {"path": "/etc/passwd"}, "Access denied"),
    ("add_observations", {"observations": [{"entityName": "Nobody", "contents": ["x"]}]}, "Nobody not found"),
    ("get_current_time", {"timezone": "Mars/Base"}, "Invalid timezone"),
    ("git_status", {"repo_path": "/etc"}, "outside the allowed repository"),
    ("fetch", {"url": "http://127.0.0.1:9/"}, "127.0.0.1:9"),
    ("simulate-research-query", {"topic": "plums"}, "requires task augmentation"),
]


@pytest.mark.parametrize(("tool", "arguments", "expected"), REFUSED, ids=[case[0] for case in REFUSED])
async def test_what_a_tool_refuses_is_for_the_policy_to_read(
    session: Session, tool: str, arguments: dict[str, Any], expected: str
) -> None:
    result = await session.call(tool, arguments)
    assert result.is_error and expected in result.text


async def test_sqlite_words_its_refusals_as_answers(session: Session) -> None:
    # It predates `isError`; what it says reaches the policy all the same.
    refused = await session.call("read_query", {"query": "DROP TABLE fruit"})
    assert not refused.is_error and refused.text == "Error: Only SELECT queries are allowed for read_query"


WRONG: list[tuple[str, dict[str, Any], str]] = [
    ("get-sum", {"a": 1}, "missing required 'b'"),
    ("get-structured-content", {"location": "Rome"}, "location: expected one of"),
    ("edit_file", {"path": "x", "edits": [{"oldText": "a"}]}, "edits[0]: missing required 'newText'"),
    (
        "create_entities",
        {"entities": [{"name": "Ada"}]},
        "entities[0]: missing required 'entityType'",
    ),
    (
        "sequentialthinking",
        {"thought": "?", "nextThoughtNeeded": True, "thoughtNumber": 0, "totalThoughts": 2},
        "thoughtNumber: 0 is less than the minimum of 1",
    ),
    ("convert_time", {"source_timezone": "UTC"}, "missing required 'time'; missing required 'target_timezone'"),
    ("fetch", {"url": "http://127.0.0.1/", "max_length": 0}, "max_length: 0 is less than the minimum of 1"),
    ("git_add", {"repo_path": ".", "files": []}, "files: "),
    ("read_query", {}, "missing required 'query'"),
]


@pytest.mark.parametrize(("tool", "arguments", "expected"), WRONG, ids=[case[0] for case in WRONG])
async def test_wrong_arguments_are_told_by_the_schema_of_the_server(
    session: Session, tool: str, arguments: dict[str, Any], expected: str
) -> None:
    result = await session.call(tool, arguments)
    assert result.is_error and expected in result.text and result.text.startswith(f"Invalid arguments for {tool}")


async def test_no_server_was_given_the_secrets_of_its_parent(
    entries: dict[str, dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WANDB_API_KEY", "hunter2")
    config = GatewayConfig.model_validate({"servers": {"everything": entries["everything"]}})
    async with AsyncExitStack() as stack:
        gateway = await stack.enter_async_context(Gateway(config))
        session = await stack.enter_async_context(gateway.lease(trajectory="t", task=None, seed=1))
        environment = (await session.call("get-env", {})).text
    assert '"PATH"' in environment and "hunter2" not in environment


def placed(arguments: dict[str, Any], place: Path) -> dict[str, Any]:
    return json.loads(json.dumps(arguments).replace("{place}", str(place)))
