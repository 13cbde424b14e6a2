"""Options of an engine: which one takes the turns of a run, how it is reached, and how it samples."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Annotated, Any

import typer
from pydantic import TypeAdapter, ValidationError

from mcp_rollout.gateway.errors import ConfigError
from mcp_rollout.rollout.cli.options import ChatTemplateFile
from mcp_rollout.rollout.engines.engine import EngineOptions
from mcp_rollout.rollout.engines.sampling import SamplingParameters
from mcp_rollout.rollout.engines.scripted import WITHOUT_MODEL
from mcp_rollout.rollout.engines.timeouts import Timeouts
from mcp_rollout.rollout.tokens.chat_template import read_chat_template


@dataclass(frozen=True, kw_only=True, slots=True)
class EngineChoice:
    """The engine of a run."""

    engine: Annotated[
        str,
        typer.Option(
            help="expert, random, none, recorded:DIR (stored traces), a model's directory, the URL of an SGLang or "
            "vLLM server, chat:URL of a chat API, or MODULE:FACTORY."
        ),
    ]
    max_tokens: Annotated[int | None, typer.Option(min=1, help="Token budget of one turn.")] = None
    temperature: Annotated[float, typer.Option(min=0, help="For models; 0 takes the likeliest token.")] = 1.0
    top_p: Annotated[float, typer.Option(min=1e-6, max=1, help="For models; 1 excludes nothing.")] = 1.0
    top_k: Annotated[int, typer.Option(min=-1, help="For models; -1 excludes nothing.")] = -1
    seed: Annotated[int, typer.Option(min=0, help="The seeds of all turns derive from it; random's, too.")] = 0
    tokenizer: Annotated[
        str | None, typer.Option(metavar="PATH", help="A server's tokenizer, where its model is not on this machine.")
    ] = None
    chat_template: ChatTemplateFile = None
    tool_format: Annotated[
        str | None,
        typer.Option(
            help="How the model writes calls, by verl's name for it; hermes by default. A chat API's text is read for "
            "calls only if this is given."
        ),
    ] = None
    connect_timeout: Annotated[float, typer.Option(min=0.1, help="Seconds to wait for a server to answer.")] = 10.0
    generate_timeout: Annotated[float, typer.Option(min=0.1, help="Seconds for one turn's generation.")] = 1800.0
    api_key_env: Annotated[
        str | None, typer.Option(metavar="NAME", help="The environment variable that holds the server's key.")
    ] = None
    model: Annotated[
        str | None,
        typer.Option(help="Of a chat API, or a server that lists several, as vLLM does adapters: the model's name."),
    ] = None
    body: Annotated[
        str | None, typer.Option(metavar="JSON", help="Of a chat API: further keys of its requests; null removes one.")
    ] = None
    max_requests: Annotated[
        int | None,
        typer.Option(min=1, help="Of a server or a chat API: most generations asked for; --resume goes on with more."),
    ] = None
    device: Annotated[str | None, typer.Option(help="Of a model in process: cpu, cuda, cuda:1.")] = None
    dtype: Annotated[
        str | None, typer.Option(help="Of a model in process: float32, bfloat16; as saved by default.")
    ] = None

    @property
    def written_as(self) -> str | None:
        """How the model writes calls; None where there is no model."""
        return None if self.engine in WITHOUT_MODEL else self.tool_format or "hermes"

    def options(self, *, max_sequences: int) -> EngineOptions:
        """What opens the engine. Raises ConfigError: a file, the key's variable or the body cannot be read."""
        return EngineOptions(
            engine=self.engine,
            tokenizer=self.tokenizer,
            chat_template=read_chat_template(self.chat_template, key="--chat-template"),
            tool_format=self.tool_format or "hermes",
            calls_in_text=self.tool_format is not None,
            sampling=SamplingParameters(
                temperature=self.temperature, top_p=self.top_p, top_k=self.top_k, seed=self.seed
            ),
            timeouts=Timeouts(connect_timeout_s=self.connect_timeout, generate_timeout_s=self.generate_timeout),
            api_key=_api_key(self.api_key_env),
            device=self.device,
            dtype=self.dtype,
            max_sequences=max_sequences,
            model=self.model,
            max_tokens=self.max_tokens,
            body=_json_object(self.body),
            max_requests=self.max_requests,
        )


def _json_object(text: str | None) -> dict[str, Any]:
    """Raises ConfigError: the text is not a JSON object."""
    try:
        return TypeAdapter(dict[str, Any]).validate_json(text or "{}")
    except ValidationError as error:
        remedy = """write it as in --body '{"max_completion_tokens": 2000}'"""
        raise ConfigError("is not a JSON object", key="--body", remedy=remedy) from error


def _api_key(variable: str | None) -> str | None:
    """Raises ConfigError: the variable is not set."""
    api_key = os.environ.get(variable) if variable else None
    if variable and not api_key:
        problem = f"the environment variable {variable} is not set"
        raise ConfigError(problem, key="--api-key-env", remedy="set it to the server's key")
    return api_key
