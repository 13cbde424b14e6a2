"""`python -m mcp_servers.user_simulator [KIND] ...`: the command line of every simulated user."""

from __future__ import annotations

import argparse
import os
import socket
import sys
from collections.abc import Callable, Sequence

import anyio
from mcp.server.mcpserver import MCPServer
from pydantic import SecretStr, ValidationError

from mcp_servers.kit import parser, serve
from mcp_servers.user_simulator.desk import Desk, opened
from mcp_servers.user_simulator.endpoint import Endpoint, EndpointConfig
from mcp_servers.user_simulator.live import LiveUser
from mcp_servers.user_simulator.load import load_by_task, load_scenarios
from mcp_servers.user_simulator.modelled import ModelledUser
from mcp_servers.user_simulator.persona import Persona
from mcp_servers.user_simulator.replayed import ReplayedUser, load_recordings
from mcp_servers.user_simulator.server import create_server, simulator
from mcp_servers.user_simulator.terminal import answer_questions

PROGRAM = "mcp_servers.user_simulator"
URL, MODEL, KEY = "USER_MODEL_URL", "USER_MODEL", "USER_MODEL_API_KEY"
_PERSONAS = "a function (task, seed) -> Persona, or a JSON object of personas by task ('*' serves every other task)"
_SCENARIOS = "a function (task, seed) -> Scenario, or a JSON object of scenarios by task ('*' serves every other task)"


def main(arguments: Sequence[str] | None = None) -> None:
    given = list(sys.argv[1:] if arguments is None else arguments)
    # Without a kind it is the scripted user.
    kind = given.pop(0) if given and given[0] in _KINDS else "scripted"
    _KINDS[kind](given)


def _scripted(given: Sequence[str]) -> None:
    options = parser(f"{PROGRAM} [scripted]", "A scripted user over several turns. Other kinds: model, replay, live.")
    options.add_argument("--scenarios", required=True, metavar="MODULE:FUNCTION|FILE.json", help=_SCENARIOS)
    read = options.parse_args(given)
    serve(_made(options, lambda: create_server(load_scenarios(read.scenarios))), read.http)


def _model(given: Sequence[str]) -> None:
    options = parser(
        f"{PROGRAM} model",
        f"A user whom a model plays, behind an OpenAI-compatible endpoint: {URL}, {MODEL} and, if it wants a key, "
        f"{KEY} in the environment.",
    )
    options.add_argument("--personas", required=True, metavar="MODULE:FUNCTION|FILE.json", help=_PERSONAS)
    options.add_argument("--temperature", type=float, default=0.7)
    options.add_argument("--max-tokens", type=int, default=512, help="of one message (default: %(default)s)")
    options.add_argument("--timeout-s", type=float, default=45, help="for one message (default: %(default)s)")
    options.add_argument("--max-concurrent", type=int, default=64, help="requests at once (default: %(default)s)")
    read = options.parse_args(given)

    def made() -> MCPServer:
        personas = load_by_task(read.personas, Persona, option="--personas")
        endpoint = Endpoint(_endpoint_config(read))
        return simulator(lambda task, seed: ModelledUser(personas(task, seed), endpoint, task=task, seed=seed))

    serve(_made(options, made), read.http)


def _replay(given: Sequence[str]) -> None:
    options = parser(f"{PROGRAM} replay", "A user who says again what a user said, by task and seed.")
    options.add_argument("--recording", required=True, metavar="DIR|FILE.jsonl", help="traces, or recordings")
    read = options.parse_args(given)

    def made() -> MCPServer:
        recorded = load_recordings(read.recording)
        return simulator(lambda task, seed: ReplayedUser(recorded(task, seed)))

    serve(_made(options, made), read.http)


def _live(given: Sequence[str]) -> None:
    options = parser(f"{PROGRAM} live", "A user whom a person plays: in a browser, or with the kind `answer`.")
    options.add_argument("--personas", required=True, metavar="MODULE:FUNCTION|FILE.json", help=_PERSONAS)
    options.add_argument("--desk", default="127.0.0.1:8020", metavar="HOST:PORT", help="default: %(default)s")
    options.add_argument("--wait-s", type=float, default=600, help="for one answer (default: %(default)s)")
    read = options.parse_args(given)
    host, _, port = read.desk.rpartition(":")
    if not host or not port.isdigit() or int(port) > 65535:
        options.error(f"--desk {read.desk!r} is not HOST:PORT, for example 127.0.0.1:8020")
    if not read.wait_s > 0:
        options.error("--wait-s: seconds, more than 0")
    desk = Desk(wait_s=read.wait_s)

    def made() -> MCPServer:
        personas = load_by_task(read.personas, Persona, option="--personas")
        return simulator(lambda task, seed: LiveUser(personas(task, seed), desk, task=task))

    server = _made(options, made)
    try:
        listening = socket.create_server((host, int(port)))
    except OSError as error:
        options.error(f"--desk {read.desk}: {error.strerror}")
    anyio.run(_serve_beside, server, read.http, desk, listening)


async def _serve_beside(server: MCPServer, http: tuple[str, int] | None, desk: Desk, listening: socket.socket) -> None:
    async with opened(desk, listening) as address:
        sys.stderr.write(f"the user's desk is at {address}\n")
        if http is None:
            await server.run_stdio_async()
        else:
            await server.run_streamable_http_async(host=http[0], port=http[1])


def _answer(given: Sequence[str]) -> None:
    options = argparse.ArgumentParser(prog=f"python -m {PROGRAM} answer", description="The live user's desk, here.")
    options.add_argument("url", help="where the desk is, for example http://127.0.0.1:8020")
    options.add_argument("--wait-s", type=float, default=3600, help="for a question (default: %(default)s)")
    read = options.parse_args(given)
    sys.exit(answer_questions(read.url, wait_s=read.wait_s, given=sys.stdin, shown=sys.stdout))


_KINDS: dict[str, Callable[[Sequence[str]], None]] = {
    "scripted": _scripted,
    "model": _model,
    "replay": _replay,
    "live": _live,
    "answer": _answer,
}


def _endpoint_config(read: argparse.Namespace) -> EndpointConfig:
    for variable in (URL, MODEL):
        if not os.environ.get(variable):
            raise ValueError(f"{variable} is not set in the environment")
    key = os.environ.get(KEY)
    try:
        return EndpointConfig(
            url=os.environ[URL],
            model=os.environ[MODEL],
            api_key=SecretStr(key) if key else None,
            temperature=read.temperature,
            max_tokens=read.max_tokens,
            timeout_s=read.timeout_s,
            max_concurrent=read.max_concurrent,
        )
    except ValidationError as error:
        fault = error.errors(include_url=False, include_input=False)[0]
        raise ValueError(f"{fault['loc'][0]}: {fault['msg']}") from None


def _made(options: argparse.ArgumentParser, make: Callable[[], MCPServer]) -> MCPServer:
    """The server, or one message and exit status 2."""
    try:
        return make()
    except ValueError as error:
        options.error(str(error))


if __name__ == "__main__":
    main()
