"""A failed start is diagnosed by the class of its error, whatever the words of its message are."""

from __future__ import annotations

import pytest

from mcp_rollout.gateway.config.models import ServerConfig
from mcp_rollout.gateway.errors import (
    ConnectTimeout,
    GatewayError,
    NotAnMCPServer,
    NothingListens,
    ProgramNotFound,
    ServerUnavailable,
    Unauthorized,
)
from mcp_rollout.rollout.environment.diagnosis import diagnose

URL, COMMAND = ServerConfig(url="http://localhost/mcp"), ServerConfig(command="npx")


@pytest.mark.parametrize(
    ("error", "entry", "remedy"),
    [
        (NothingListens("x", server="s"), URL, "nothing answers there"),
        (Unauthorized("x", server="s"), URL, "give it a token"),
        (ServerUnavailable("HTTP 401, ConnectError", server="s"), URL, "check url"),
        (ProgramNotFound("x", server="s"), COMMAND, "install Node.js"),
        (NotAnMCPServer("x", server="s"), COMMAND, "name the program that serves"),
        (ConnectTimeout("x", server="s", remedy="wait longer"), COMMAND, "a server waits for input"),
        (ServerUnavailable("x", server="s"), ServerConfig(command="npx", cwd="~/shop"), "write ${HOME} for ~"),
        (ServerUnavailable("x", server="s"), ServerConfig(command="npx", args=("--root=~/x",)), "write ${HOME} for ~"),
        (ServerUnavailable("x", server="s"), ServerConfig(command="npx", args=("a~/b", "~x")), "start it by hand"),
        (ServerUnavailable("no such program", server="s"), COMMAND, "start it by hand to see why"),
    ],
)
def test_the_class_of_the_error_decides_the_remedy(error: GatewayError, entry: ServerConfig, remedy: str) -> None:
    assert remedy in diagnose(error, entry).remedy


def test_the_problem_is_the_message_without_server_and_remedy() -> None:
    error = ConnectTimeout("did not finish", server="s", remedy="wait longer")
    assert str(error) == "s: did not finish; wait longer"
    found = diagnose(error, COMMAND, file="f.yaml", key="servers.s")
    assert (found.problem, found.file, found.key) == ("did not finish", "f.yaml", "servers.s")
