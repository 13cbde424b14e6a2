"""`python -m mcp_rollout.mcp_servers.user_simulator [KIND] ...`: the command line of every simulated user."""

from __future__ import annotations

import argparse
import json
import os
import socket
import sys
from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeVar
from urllib.parse import urlsplit

import anyio
from mcp.server.mcpserver import MCPServer
from pydantic import SecretStr, ValidationError

from mcp_rollout.mcp_servers.kit import parser, serve
from mcp_rollout.mcp_servers.kit.direct.http import serve_http
from mcp_rollout.mcp_servers.kit.serve import address, door
from mcp_rollout.mcp_servers.user_simulator.live import AnswerPage, LiveUser, address_file, answer_questions, kept
from mcp_rollout.mcp_servers.user_simulator.modelled import Endpoint, EndpointConfig, ModelledUser, Persona
from mcp_rollout.mcp_servers.user_simulator.recordings import ReplayedUser, load_recordings
from mcp_rollout.mcp_servers.user_simulator.scripted import Scenario
from mcp_rollout.mcp_servers.user_simulator.server import create_server, load_by_task, simulator

T = TypeVar("T")

PROGRAM = "mcp_rollout.mcp_servers.user_simulator"
URL, MODEL, KEY = "USER_MODEL_URL", "USER_MODEL", "USER_MODEL_API_KEY"
_BY_TASK = "a function (task, seed) -> {0}, or a JSON object of {0}s by task ('*' serves every other task)"


def main(arguments: Sequence[str] | None = None) -> None:
    given = list(sys.argv[1:] if arguments is None else arguments)
    kind = given.pop(0) if given and given[0] in _KINDS else "scripted"
    _KINDS[kind](given)


def _scripted(given: Sequence[str]) -> None:
    options = parser(f"{PROGRAM} [scripted]", "A scripted user over several turns. Other kinds: model, replay, live.")
    _add_by_task(options, "--scenarios", Scenario)
    read = options.parse_args(given)
    serve(create_server(read.scenarios), read.http)


def _model(given: Sequence[str]) -> None:
    options = parser(
        f"{PROGRAM} model",
        f"A user whom a model plays, behind an OpenAI-compatible endpoint: {URL}, {MODEL} and, if it wants a key, "
        f"{KEY} in the environment.",
    )
    _add_by_task(options, "--personas", Persona)
    options.add_argument("--temperature", type=float, help="by default the API's own")
    options.add_argument("--body", type=json.loads, default={}, metavar="JSON", help="further keys of each request")
    options.add_argument("--max-tokens", type=int, default=512, help="of one message (default: %(default)s)")
    options.add_argument("--timeout-s", type=float, default=45, help="for one message (default: %(default)s)")
    options.add_argument("--max-concurrent", type=int, default=256, help="requests at once (default: %(default)s)")
    read = options.parse_args(given)
    endpoint = Endpoint(_endpoint_config(options, read))

    def begin(task: str, seed: int) -> ModelledUser:
        return ModelledUser(read.personas(task, seed), endpoint, task=task, seed=seed)

    serve(simulator(begin), read.http)


def _replay(given: Sequence[str]) -> None:
    options = parser(f"{PROGRAM} replay", "A user who repeats recorded messages, by task and seed.")
    options.add_argument(
        "--recording",
        required=True,
        type=_reporting(load_recordings),
        metavar="DIR|FILE.jsonl",
        help="traces, or recordings",
    )
    read = options.parse_args(given)
    serve(simulator(lambda task, seed: ReplayedUser(read.recording(task, seed))), read.http)


def _live(given: Sequence[str]) -> None:
    options = parser(f"{PROGRAM} live", "A user whom a person plays: in a browser, or with the kind `answer`.")
    _add_by_task(options, "--personas", Persona)
    options.add_argument(
        "--page",
        type=address,
        default="127.0.0.1:8020",
        metavar="HOST:PORT",
        help="where the page for the person's answers is served (default: %(default)s)",
    )
    options.add_argument(
        "--wait-s", type=float, default=600, help="without an answer to any question (default: %(default)s)"
    )
    read = options.parse_args(given)
    if not read.wait_s > 0:
        options.error("--wait-s: seconds, more than 0")
    # One for all conversations: a person answers them in turn.
    page = AnswerPage(wait_s=read.wait_s)
    server = simulator(lambda task, seed: LiveUser(read.personas(task, seed), page, task=task))
    try:
        # Bound here, so that a port in use is an error of the command line.
        listening = socket.create_server(read.page)
    except OSError as error:
        options.error(f"--page {read.page[0]}:{read.page[1]}: {error.strerror}")
    anyio.run(_serve_with_page, server, read.http, page, listening)


async def _serve_with_page(
    server: MCPServer, http: tuple[str, int] | None, page: AnswerPage, listening: socket.socket
) -> None:
    # Not by the kit's `serve`, which begins an event loop of its own: the page has to be in the server's.
    async with page.served(listening) as url:
        # Standard output carries the protocol, and a gateway may log standard error: the address is in a file.
        with kept(url, listening.getsockname()[1]) as file:
            sys.stderr.write(f"the address of the page for the user's answers is in {file}\n")
            if http is None:
                await server.run_stdio_async()
            else:
                await serve_http(server, None, door(server, http[0]), *http)


def _answer(given: Sequence[str]) -> None:
    options = argparse.ArgumentParser(prog=f"python -m {PROGRAM} answer", description="The live user's page, here.")
    options.add_argument("url", help="where the page is, for example http://127.0.0.1:8020, or its whole address")
    options.add_argument("--wait-s", type=float, default=3600, help="for a question (default: %(default)s)")
    read = options.parse_args(given)
    url: str = read.url
    try:
        # Not of the command line, which every user of the machine can read.
        url = url if "token=" in url else address_file(urlsplit(url).port or 80).read_text()
    except (OSError, ValueError) as error:
        options.error(f"no page of yours at {url}: {error}")
    sys.exit(answer_questions(url, wait_s=read.wait_s, given=sys.stdin, shown=sys.stdout))


_KINDS: dict[str, Callable[[Sequence[str]], None]] = {
    "scripted": _scripted,
    "model": _model,
    "replay": _replay,
    "live": _live,
    "answer": _answer,
}


def _add_by_task(options: argparse.ArgumentParser, option: str, model: type[Scenario] | type[Persona]) -> None:
    options.add_argument(
        option,
        required=True,
        type=_reporting(partial(load_by_task, model=model)),
        metavar="MODULE:FUNCTION|FILE.json",
        help=_BY_TASK.format(model.__name__),
    )


def _reporting(load: Callable[[str], T]) -> Callable[[str], T]:
    """An argparse type that reports the ValueError of `load` with its message."""

    def read(source: str) -> T:
        try:
            return load(source)
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from error

    return read


def _endpoint_config(options: argparse.ArgumentParser, read: argparse.Namespace) -> EndpointConfig:
    for variable in (URL, MODEL):
        if not os.environ.get(variable):
            options.error(f"{variable} is not set in the environment")
    # Not an option: every user of the machine can read a process's command line.
    key = os.environ.get(KEY)
    try:
        return EndpointConfig(
            url=os.environ[URL],
            model=os.environ[MODEL],
            api_key=SecretStr(key) if key else None,
            temperature=read.temperature,
            max_tokens=read.max_tokens,
            body=read.body,
            timeout_s=read.timeout_s,
            max_concurrent=read.max_concurrent,
        )
    except ValidationError as error:
        # Not pydantic's own text, which would show the values and so the key.
        fault = error.errors(include_url=False, include_input=False)[0]
        options.error(f"{fault['loc'][0]}: {fault['msg']}")


if __name__ == "__main__":
    main()
