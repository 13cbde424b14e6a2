"""The server answers its own page on this machine only, and writes nothing but the index."""

from __future__ import annotations

import http.client
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

import pytest
from browsing import viewing
from viewed_traces import training

from mcp_rollout.rollout.viewer.assets import PAGE
from mcp_rollout.rollout.viewer.server import listen


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("traces")
    training(directory)
    return directory


@pytest.fixture(scope="module")
def server(directory: Path) -> Iterator[Server]:
    with viewing(directory) as address:
        server = Server.at(address)
        while json.loads(ask(server, "/api/state")[2])["indexing"]:
            pass  # the page opens before the directory is read whole
        yield server


class Server(NamedTuple):
    port: int
    token: str

    @classmethod
    def at(cls, address: str) -> Server:
        found = urlsplit(address)
        assert found.port is not None
        return cls(found.port, found.query.removeprefix("token="))


def ask(server: Server, path: str, method: str = "GET", **headers: str) -> tuple[int, http.client.HTTPMessage, bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=30)
    try:
        sent = {"Host": f"localhost:{server.port}", "Cookie": f"mcp-rollout-{server.port}={server.token}"}
        sent |= {name.replace("_", "-"): value for name, value in headers.items()}
        connection.request(method, path, headers=sent)
        answer = connection.getresponse()
        return answer.status, answer.headers, answer.read()
    finally:
        connection.close()


def test_the_page_its_files_and_its_values_are_served(server: Server) -> None:
    status, headers, body = ask(server, "/")
    assert status == 200 and body == PAGE.encode()
    policy = headers["content-security-policy"]
    assert "default-src 'none'" in policy and "unsafe" not in policy and "script-src 'self'" in policy
    for name in re.findall(r"assets/([\w.]+)", PAGE):
        status, headers, body = ask(server, f"/assets/{name}")
        assert status == 200 and headers["x-content-type-options"] == "nosniff" and body
    status, _, body = ask(server, "/api/list?split=train&step_from=4")
    assert status == 200 and json.loads(body)["total"] == 8


@pytest.mark.parametrize(
    ("path", "method", "headers", "status"),
    [
        ("/", "GET", {"Host": "evil.example"}, 403),
        ("/", "GET", {"Host": "localhost.evil.example:80"}, 403),
        ("/", "GET", {"Host": ""}, 403),
        ("/", "GET", {"Host": "localhost:80:evil"}, 403),
        ("/", "GET", {"Host": "[::1]:80"}, 200),
        ("/api/state", "GET", {"Origin": "http://evil.example"}, 403),
        ("/api/state", "GET", {"Origin": "null"}, 403),
        ("/api/state", "GET", {"Origin": "http://localhost:1"}, 403),
        ("/api/state", "GET", {"Sec_Fetch_Site": "cross-site"}, 403),
        ("/api/state", "GET", {"Sec_Fetch_Site": "same-site"}, 403),
        ("/api/state", "GET", {"Sec_Fetch_Site": "same-origin"}, 200),
        ("/api/state", "POST", {}, 405),
        ("/api/state", "OPTIONS", {}, 405),
        ("/assets/../server.py", "GET", {}, 404),
        ("/assets/%2e%2e%2fserver.py", "GET", {}, 404),
        ("/api/nothing", "GET", {}, 400),
        ("/api/list?where=x", "GET", {}, 400),
        ("/api/list?where=1;DROP+TABLE+files", "GET", {}, 400),
        ("/api/tokens?id=nothing", "GET", {}, 404),
    ],
)
def test_other_requests_are_refused(
    server: Server, path: str, method: str, headers: dict[str, str], status: int
) -> None:
    assert ask(server, path, method, **headers)[0] == status


@pytest.mark.parametrize("path", ["/", "/assets/viewer.js", "/api/state", "/api/trajectory?id=train-1-0-0", "/no"])
def test_every_resource_needs_the_token(server: Server, path: str) -> None:
    for cookie in (
        "",
        f"mcp-rollout-{server.port}=",
        f"mcp-rollout-{server.port}=guess",
        f"mcp-rollout={server.token}",
    ):
        status, headers, body = ask(server, path, Cookie=cookie)
        assert status == 403 and b"address" in body and "set-cookie" not in headers
    assert ask(server, "/?token=guess", Cookie="")[0] == 403


def test_the_printed_address_gives_a_browser_the_token_and_shows_it_no_longer(server: Server) -> None:
    status, headers, _ = ask(server, f"/?token={server.token}", Cookie="")
    assert (status, headers["location"]) == (303, "/")
    cookie, *attributes = headers["set-cookie"].split("; ")
    assert {"HttpOnly", "Path=/", "SameSite=lax"} <= set(attributes)
    assert ask(server, "/", Cookie=cookie)[0] == 200


def test_it_listens_on_the_loopback_interface_only() -> None:
    listening = listen(0)
    assert listening.getsockname()[0] == "127.0.0.1"
    listening.close()


def test_only_the_index_is_written(directory: Path, server: Server) -> None:
    def files() -> dict[str, bytes]:
        paths = (path for path in directory.rglob("*") if path.is_file() and ".index." not in path.name)
        return {str(path): path.read_bytes() for path in paths}

    before = files()
    for path in ("/api/state", "/api/runs", "/api/list", "/api/trajectory?id=train-1-0-0", "/api/explain"):
        assert ask(server, path)[0] == 200
    assert files() == before


def test_a_query_without_end_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from mcp_rollout.gateway.errors import ConfigError
    from mcp_rollout.rollout.trace.reader import Traces

    training(tmp_path, steps=1)
    endless = "(WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT max(i) FROM n)"
    with Traces(tmp_path) as traces:
        other = traces.beside(query_timeout_s=1)
        with pytest.raises(ConfigError, match="interrupted"):
            other.count(endless)
        assert other.count("TRUE") == traces.count()
        other.close()
