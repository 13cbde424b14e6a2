"""Stdio servers that do not start: the error says what the server did, not how the gateway ended its process."""

import re
import sys
from pathlib import Path
from typing import Any

import anyio
import pytest

from mcp_rollout import Gateway, GatewayConfig
from mcp_rollout.gateway.errors import NotAnMCPServer, ServerUnavailable, WorldLost

pytestmark = pytest.mark.anyio
SERVER = """
import json, os, signal, sys

how = sys.argv[1]
if how == "import error":
    sys.exit("No module named 'shop'")
for number, line in enumerate(sys.stdin):
    message = json.loads(line)
    answer = {"jsonrpc": "2.0", "id": message.get("id")}
    if number == 0 and "SEEN" in os.environ:
        with open(os.environ["SEEN"], "a") as file:
            print(message["method"], file=file)
    match message["method"]:
        case "server/discover" if how == "ends":
            sys.exit("ExpectedInitializeRequest")
        case "server/discover" if how == "answers, then ends":
            answer["error"] = {"code": -32600, "message": "initialize first"}
            print(json.dumps(answer), flush=True)
            sys.exit(1)
        case "server/discover" if how == "aborts":
            os.abort()
        case "tools/list" if "SEEN" in os.environ:
            answer["result"] = {"tools": [{"name": "die", "inputSchema": {"type": "object"}}]}
        case "tools/call":
            os.abort()
        case "initialize" if how == "license":
            answer["error"] = {"code": -32000, "message": "LICENSE EXPIRED"}
        case "initialize" if how == "license, then exit":
            answer["error"] = {"code": -32000, "message": "LICENSE EXPIRED"}
            print(json.dumps(answer), flush=True)
            sys.exit(4)
        case "initialize" if how == "lines":
            answer["error"] = {"code": -32000, "message": "no\\n" * 10_000}
        case "tools/list" if how == "length":
            answer["error"] = {"code": -32000, "message": "x" * 3970 + os.environ["API_TOKEN"] + "x" * 1_000_000}
        case "initialize" if how == "crash":
            os.kill(os.getpid(), signal.SIGSEGV)
        case "initialize" if how == "exit":
            sys.exit("no such table: licenses")
        case "initialize" if how != "not mcp":
            version = "1999-01-01" if how == "version" else "2025-06-18"
            server = {"name": "bad", "version": "1"}
            answer["result"] = {"protocolVersion": version, "capabilities": {"tools": {}}, "serverInfo": server}
        case "tools/list" if how == "list":
            answer["error"] = {"code": -32000, "message": "DATABASE LOCKED"}
        case "tools/list" if how == "no list":
            answer["result"] = {"tools": "none"}
        case "tools/list" if how == "large list":
            tool = {"name": "x", "description": "x" * 3000, "inputSchema": {"type": "object"}}
            answer["result"] = {"tools": [tool]}
        case _:
            answer["error"] = {"code": -32601, "message": "Method not found"}
    if "id" in message:
        print(json.dumps(answer), flush=True)
"""


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ("license", "MCPError: LICENSE EXPIRED"),
        ("license, then exit", "MCPError: LICENSE EXPIRED(; the server exited with status 4)?"),
        ("version", "RuntimeError: Unsupported protocol version from the server: 1999-01-01"),
        ("list", "MCPError: DATABASE LOCKED"),
        ("no list", "MCPError: the result of tools/list has no list of tools"),
        ("large list", r"MCPError: the result has \d+ bytes, max_message_bytes is 2000"),
        ("crash", "the server was killed by SIGSEGV"),
        ("exit", "the server exited with status 1; stderr ends: no such table: licenses"),
        ("not mcp", "MCPError: Method not found"),
        ("import error", "the server exited with status 1; stderr ends: No module named 'shop'"),
    ],
)
async def test_a_start_that_failed_is_explained_by_what_the_server_did(tmp_path: Path, how: str, said: str) -> None:
    (tmp_path / "server.py").write_text(SERVER)
    entry: dict[str, Any] = {
        "command": sys.executable,
        "args": ["-I", "-S", str(tmp_path / "server.py"), how],
        "max_message_bytes": 2000,
        "required": True,
    }
    with anyio.fail_after(10), pytest.raises(ServerUnavailable) as caught:
        async with Gateway(GatewayConfig.model_validate({"servers": {"bad": entry}})):
            pass
    assert re.fullmatch(rf"bad: '{sys.executable}' is not available: {said}", str(caught.value)), caught.value
    assert isinstance(caught.value, NotAnMCPServer) is (how == "not mcp")


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ("lines", r"MCPError: no\n(no\n){19}…\[9980 lines cut\]"),
        ("length", r"MCPError: x{3970}.{1,20}…\[\d+ characters cut\]"),
    ],
)
async def test_what_a_server_says_instead_of_starting_is_bounded_and_half_a_secret_is_not_left_by_it(
    tmp_path: Path, how: str, said: str
) -> None:
    (tmp_path / "server.py").write_text(SERVER)
    args = ["-I", "-S", str(tmp_path / "server.py"), how]
    secret = "swordfish-0123456789-swordfish"
    entry = {"command": sys.executable, "args": args, "required": True, "env": {"API_TOKEN": secret}}
    with anyio.fail_after(10), pytest.raises(ServerUnavailable) as caught:
        async with Gateway(GatewayConfig.model_validate({"servers": {"bad": entry}})):
            pass
    assert re.fullmatch(rf"bad: '{sys.executable}' is not available: {said}", str(caught.value)), str(caught.value)
    assert "sword" not in str(caught.value)


@pytest.mark.parametrize("how", ["ends", "answers, then ends", "aborts"])
async def test_a_program_that_does_not_survive_the_newer_era_is_started_again_in_the_older_one_and_once_only(
    tmp_path: Path, how: str
) -> None:
    entry = _entry(tmp_path, how, scope="process", start_timeout_s=5)
    async with Gateway(GatewayConfig.model_validate({"servers": {"old": entry}})) as gateway:
        for trajectory in ("a", "b", "c"):
            async with gateway.lease(trajectory=trajectory, task=None, seed=1) as session:
                with pytest.raises(WorldLost):
                    await session.call("die", {})
            # Neither a process that dies nor a start that fails makes the gateway forget.
            program = (tmp_path / "server.py").rename(tmp_path / "away.py")
            with pytest.raises(ServerUnavailable):
                async with gateway.lease(trajectory=f"not {trajectory}", task=None, seed=1):
                    pass
            program.rename(tmp_path / "server.py")
    assert (tmp_path / "seen").read_text().split() == ["server/discover", *["initialize"] * 3]


@pytest.mark.parametrize(("era", "first"), [("handshake", "initialize"), ("modern", "server/discover")])
async def test_an_entry_chooses_the_era_of_its_server(tmp_path: Path, era: str, first: str) -> None:
    config = GatewayConfig.model_validate({"servers": {"old": _entry(tmp_path, "serves", era=era)}})
    if era == "handshake":
        async with Gateway(config) as gateway:
            assert gateway.identities["old"].protocol == "2025-06-18"
    else:
        with pytest.raises(ServerUnavailable, match="era: modern"):
            await Gateway(config).__aenter__()
    assert (tmp_path / "seen").read_text().split() == [first]


def _entry(tmp_path: Path, how: str, **more: Any) -> dict[str, Any]:
    (tmp_path / "server.py").write_text(SERVER)
    args, seen = ["-I", "-S", str(tmp_path / "server.py"), how], {"SEEN": str(tmp_path / "seen")}
    return {"command": sys.executable, "args": args, "env": seen, "required": True, **more}
