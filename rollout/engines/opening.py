"""Open the engine that `--engine` names: without a model, in process, over HTTP, or a user's own."""

from __future__ import annotations

import copy
import re
from collections.abc import AsyncGenerator, Callable, Generator, Sequence
from contextlib import AbstractAsyncContextManager, aclosing, asynccontextmanager, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, cast

import anyio

from mcp_rollout.gateway.config.user_code import import_function
from mcp_rollout.gateway.errors import ConfigError
from mcp_rollout.rollout.engines.chat_endpoints import CHAT_API, MODELS_SHOWN, opened_endpoint
from mcp_rollout.rollout.engines.engine import Engine, EngineOptions, ModelEngine
from mcp_rollout.rollout.engines.http import EngineHttp
from mcp_rollout.rollout.engines.recorded import PREFIX, RecordedEngine, RecordedTraces
from mcp_rollout.rollout.engines.sampling import SamplingParameters
from mcp_rollout.rollout.engines.scripted import WITHOUT_MODEL, WithoutModel
from mcp_rollout.rollout.errors import EngineError
from mcp_rollout.rollout.extras import needed
from mcp_rollout.rollout.formats import find_format
from mcp_rollout.rollout.tokens.chatml import ByteTokens
from mcp_rollout.rollout.trace.reader import Traces
from mcp_rollout.rollout.trace.run_record import TokenIds, read_run_records
from mcp_rollout.rollout.types import ModelTokens, TokenBuilder

PROBE_TEXT = "Once upon a time there was"
"""Its first token is the prompt with which a server is tried at the start."""
_FACTORY = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")
_NEEDED = ("name", "context_tokens", "notes", "token_ids", "tokens", "policy")


@asynccontextmanager
async def opened_engine(options: EngineOptions) -> AsyncGenerator[Engine]:
    """The engine, ready to play. Raises ConfigError: there is no such engine, or it cannot play."""
    name = options.engine
    if options.chat_template is not None and (name in WITHOUT_MODEL or name.startswith(CHAT_API)):
        raise ConfigError(f"{name} renders no template", key="--chat-template", remedy="leave it out")
    if options.max_requests is not None and not name.startswith((CHAT_API, "http://", "https://")):
        raise ConfigError(f"{name} is asked for nothing over a network", key="--max-requests", remedy="leave it out")
    if name in WITHOUT_MODEL:
        _refuse_unread(options, model=options.model, body=options.body)
        yield WithoutModel(name, seed=options.sampling.seed)
    elif name.startswith(CHAT_API):
        async with opened_endpoint(options) as engine:
            yield engine
    elif name.startswith(PREFIX):
        _refuse_unread(options, model=options.model, body=options.body)
        with _recorded(options) as engine:
            yield engine
    elif name.startswith(("http://", "https://")):
        _refuse_unread(options, body=options.body)
        async with _over_http(options) as engine:
            yield engine
    # After the prefixes: `recorded:eval` and `chat:local` have the form of MODULE:FACTORY, too.
    elif _FACTORY.fullmatch(name):
        async with opened_factory(options) as engine:
            yield engine
    elif _is_directory(name):
        _refuse_unread(options, model=options.model, body=options.body)
        async with _in_process(options) as engine:
            yield engine
    else:
        remedy = (
            f"one of {', '.join(WITHOUT_MODEL)}, recorded:DIR, a model's directory, the http:// address of a server, "
            "chat:URL of a chat API, or MODULE:FACTORY"
        )
        problem = f"no such directory: {name}" if "/" in name else f"unknown engine {name!r}"
        raise ConfigError(problem, key="--engine", remedy=remedy)


def _refuse_unread(options: EngineOptions, **given: object) -> None:
    """Raises ConfigError where one of these options, which the engine does not read, has a value."""
    for option, value in given.items():
        if value:
            raise ConfigError(f"{options.engine} does not read it", key=f"--{option}", remedy="leave it out")


@contextmanager
def _recorded(options: EngineOptions) -> Generator[Engine]:
    """The engine of stored traces, with the tokens of the engine that sampled them."""
    with Traces(options.engine.removeprefix(PREFIX)) as traces:
        recorded = RecordedTraces(traces)
        records = read_run_records(traces.directory).values()
        make_tokens: Callable[[], TokenBuilder] = ByteTokens
        is_scripted = set(recorded.engines) <= {*WITHOUT_MODEL}
        is_text = is_scripted or {each.token_ids for each in records} == {TokenIds.BYTES}
        if not is_text:
            given = [options.chat_template, *(record.model.get("custom_chat_template") for record in records)]
            own = _load_tokens(
                replace(options, chat_template=next(filter(None, given), None)),
                [record.model.get("path") for record in records],
            )
            make_tokens = partial(copy.copy, own)
        name = PREFIX + ",".join(recorded.engines)
        yield RecordedEngine(
            name=name,
            context_tokens=None,
            notes=[],
            recorded=recorded,
            token_ids=TokenIds.BYTES if is_text else TokenIds.MODEL,
            is_chat=is_text and not is_scripted,
            make_tokens=make_tokens,
        )


@asynccontextmanager
async def _in_process(options: EngineOptions) -> AsyncGenerator[Engine]:
    tokens = _load_tokens(options, [options.engine], model=options.engine)
    with needed("verl", "an engine with a model", key="--engine"):
        from mcp_rollout.rollout.decoding.sampling import end_ids
        from mcp_rollout.rollout.engines.in_process import InProcessPolicy, decoding, load_model
    model = load_model(options.engine, device=options.device, dtype=options.dtype)
    stops = [*_stop_ids(tokens), *end_ids(model.generation_config)]
    async with decoding(model, max_sequences=options.max_sequences) as decoder:
        yield ModelEngine(
            name=f"transformers:{options.engine}",
            context_tokens=getattr(model.config, "max_position_embeddings", None),
            notes=[],
            own_tokens=tokens,
            make_policy=partial(
                InProcessPolicy, decoder, options.sampling, stop_token_ids=stops, timeouts=options.timeouts
            ),
        )


@asynccontextmanager
async def _over_http(options: EngineOptions) -> AsyncGenerator[Engine]:
    url = options.engine.rstrip("/").removesuffix("/v1")
    opened = EngineHttp(url, options.timeouts, api_key=options.api_key, max_requests=options.max_requests)
    async with aclosing(opened) as http:
        with _startup_probe(http):
            # SGLang first, since it lists its model under /v1/models too; only its own API returns the tokens of an
            # abort.
            engine = await _sglang(http, options) or await _openai(http, options)
        if engine is None:
            problem = f"{url} is neither an SGLang server (/model_info) nor an OpenAI-compatible one (/v1/models)"
            raise ConfigError(problem, key="--engine", remedy="give the address that the server was started with")
        # Outside of the probe, which would bound the run in time as well.
        yield engine


@contextmanager
def _startup_probe(http: EngineHttp) -> Generator[None]:
    """Bound the requests before the run in time, and report a failing server as a ConfigError."""
    seconds = http.timeouts.generate_timeout_s
    try:
        with anyio.fail_after(seconds):
            yield
    except TimeoutError as error:
        problem = f"{http.url} generates nothing within {seconds:g} s"
        raise ConfigError(problem, key="--engine", remedy="check whether the server is paused or overloaded") from error
    except EngineError as error:
        problem = f"{http.url} does not generate: {error}"
        raise ConfigError(problem, key="--engine", remedy="see the server's own log") from error


async def _sglang(http: EngineHttp, options: EngineOptions) -> Engine | None:
    """None where the server is not SGLang."""
    from mcp_rollout.rollout.engines.sglang import SGLangPolicy, check_generates

    info = await http.look_up("/model_info") or await http.look_up("/get_model_info")
    if info is None or "model_path" not in info:
        return None
    if info.get("is_generation") is False:
        raise ConfigError(f"{http.url} serves a model that does not generate", key="--engine", remedy="serve another")
    _refuse_unread(options, model=options.model)
    sampling, tokens = options.sampling, _load_tokens(options, [info.get("tokenizer_path"), info["model_path"]])
    server = await http.look_up("/server_info") or await http.look_up("/get_server_info") or {}
    await check_generates(http, tokens.encode(PROBE_TEXT)[0])
    return ModelEngine(
        name=f"sglang:{info['model_path']}",
        context_tokens=server.get("max_req_input_len"),
        notes=_notes(sampling),
        own_tokens=tokens,
        make_policy=partial(SGLangPolicy, http, sampling, stop_token_ids=_stop_ids(tokens)),
    )


async def _openai(http: EngineHttp, options: EngineOptions) -> Engine | None:
    """None where the server is not OpenAI-compatible."""
    from mcp_rollout.rollout.engines.openai import OpenAIPolicy, check_token_ids

    models = await http.look_up("/v1/models")
    if models is None or not models.get("data"):
        return None
    listed: dict[str, dict[str, Any]] = {str(each["id"]): each for each in models["data"]}
    sampling, model = options.sampling, options.model or next(iter(listed))
    if model not in listed:
        remedy = f"one of {', '.join(list(listed)[:MODELS_SHOWN])}"
        raise ConfigError(f"{http.url} lists no {model!r}", key="--model", remedy=remedy)
    # vLLM lists an adapter without a length, and with the directory of its weights only.
    served = listed.get(listed[model].get("parent") or model, listed[model])
    tokens = _load_tokens(options, [served.get("root"), served["id"]])
    await check_token_ids(http, model, tokens.encode(PROBE_TEXT)[0])
    return ModelEngine(
        name=f"openai:{model}",
        context_tokens=served.get("max_model_len"),
        notes=_notes(sampling),
        own_tokens=tokens,
        make_policy=partial(OpenAIPolicy, http, model, sampling, stop_token_ids=_stop_ids(tokens)),
    )


def _notes(sampling: SamplingParameters) -> list[str]:
    if sampling.has_one_logprob:
        return []
    return ["logprobs are left out: a server's mean the same only at temperature 1 or 0 without top-p and top-k"]


def _is_directory(path: object) -> bool:
    return isinstance(path, str) and Path(path).is_dir()


def _load_tokens(options: EngineOptions, paths: Sequence[object], *, model: str | None = None) -> ModelTokens:
    """The `--tokenizer`, or else the model's own from the first of `paths` that is a directory on this machine."""
    find_format(options.tool_format, key="--tool-format")
    key = "--engine" if options.tokenizer is None else "--tokenizer"
    path = options.tokenizer or next((str(path) for path in paths if _is_directory(path)), None)
    if path is None:
        named = next((path for path in paths if path), "a model")
        problem = f"the server's tokenizer ({named}) is not on this machine"
        remedy = (
            "give a directory with the model's tokenizer and config.json, or evaluate a chat API with --engine chat:URL"
        )
        raise ConfigError(problem, key="--tokenizer", remedy=remedy)
    if not _is_directory(path):
        raise ConfigError(f"no such directory: {path}", key=key, remedy="give a model directory with its tokenizer")
    with needed("verl", "an engine with a model", key="--engine"):
        from mcp_rollout.rollout.tokens.verl_builder import load_tokens
    return load_tokens(
        model or path,
        tokenizer_path=path,
        chat_template=options.chat_template,
        tool_format=options.tool_format,
        key=key,
    )


def _stop_ids(tokens: ModelTokens) -> list[int]:
    """Ids that end a turn: those of the template too, which may differ from the model's end of text."""
    return sorted({*tokens.stop_token_ids, *tokens.encode_completion("")})


@asynccontextmanager
async def opened_factory(options: EngineOptions) -> AsyncGenerator[Engine]:
    """The engine that a factory returns: a function that takes `EngineOptions`, named as `MODULE:FACTORY`.

    It returns an `Engine`, or an async context manager that yields one and closes what it opened.

    Raises:
        ConfigError: there is no such factory, it raises, or what it returns is not an engine.
    """
    factory: Any = import_function(options.engine, key="--engine")
    try:
        made = factory(options)
    except Exception as error:  # the boundary of a user's function, which can raise anything
        problem = f"{options.engine} raised {type(error).__name__}: {error}"
        raise ConfigError(problem, key="--engine", remedy="correct it") from error
    if isinstance(made, AbstractAsyncContextManager):
        async with cast("AbstractAsyncContextManager[Any]", made) as engine:
            yield _checked(engine, options.engine)
    else:
        yield _checked(made, options.engine)


def _checked(engine: Any, name: str) -> Engine:
    if missing := [attribute for attribute in _NEEDED if not hasattr(engine, attribute)]:
        problem = f"{name} returned {type(engine).__name__}, which has no {', '.join(missing)}"
        remedy = "return an Engine of mcp_rollout.rollout.engines.engine, for example a ChatEngine"
        raise ConfigError(problem, key="--engine", remedy=remedy)
    return engine
