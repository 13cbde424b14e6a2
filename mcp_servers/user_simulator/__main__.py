"""`python -m mcp_rollout.mcp_servers.user_simulator [KIND] ...`: the command line of both simulated users."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable, Sequence
from typing import Any

from pydantic import SecretStr, ValidationError

from mcp_rollout.mcp_servers.kit import parser, serve
from mcp_rollout.mcp_servers.user_simulator.modelled import Endpoint, EndpointConfig, ModelledUser, Persona
from mcp_rollout.mcp_servers.user_simulator.scripted import Scenario
from mcp_rollout.mcp_servers.user_simulator.server import create_server, load_by_task, simulator

PROGRAM = "mcp_rollout.mcp_servers.user_simulator"
URL, MODEL, KEY = "USER_MODEL_URL", "USER_MODEL", "USER_MODEL_API_KEY"
_BY_TASK = "a function (task, seed) -> {0}, or a JSON object of {0}s by task ('*' serves every other task)"


def main(arguments: Sequence[str] | None = None) -> None:
    given = list(sys.argv[1:] if arguments is None else arguments)
    kind = given.pop(0) if given and given[0] in _KINDS else "scripted"
    _KINDS[kind](given)


def _scripted(given: Sequence[str]) -> None:
    options = parser(f"{PROGRAM} [scripted]", "A scripted user over several turns. The other kind is: model.")
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


_KINDS: dict[str, Callable[[Sequence[str]], None]] = {"scripted": _scripted, "model": _model}


def _add_by_task(options: argparse.ArgumentParser, option: str, model: type[Scenario] | type[Persona]) -> None:
    def read(source: str) -> Any:
        try:
            return load_by_task(source, model)
        except ValueError as error:  # argparse gives the message of this one only
            raise argparse.ArgumentTypeError(str(error)) from error

    options.add_argument(
        option, required=True, type=read, metavar="MODULE:FUNCTION|FILE.json", help=_BY_TASK.format(model.__name__)
    )


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
