"""From what `--engine` says to an engine that is ready to play."""

from __future__ import annotations

import copy
from collections.abc import AsyncGenerator, Callable, Generator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import anyio

from gateway.errors import ConfigError
from gateway.leases.session import Session
from rollout.engines.engine import Engine
from rollout.engines.http import EngineHttp
from rollout.engines.logprobs import LogprobSemantics, detect_logprob_semantics
from rollout.engines.parameters import SamplingParameters, Waits
from rollout.engines.without_model import WITHOUT_MODEL, WithoutModel
from rollout.environment.config import Environment
from rollout.environment.task import Origin, Task
from rollout.environment.validation import selected
from rollout.errors import EngineError
from rollout.formats import FORMATS
from rollout.types import Policy, TokenBuilder

if TYPE_CHECKING:
    from rollout.tokens.verl_builder import ContinuousTokens

PROBED_TEXT = "Once upon a time there was"
"""Its token ids are the prompts, one each, by which a server shows what it does."""
PROBES = 3


@dataclass(frozen=True, kw_only=True, slots=True)
class EngineOptions:
    """What a run says about its engine."""

    engine: str
    """`expert`, `random`, `none`, a model directory, or the address of a server."""
    tokenizer: str | None = None
    """A directory; where not given, the model's own."""
    tool_format: str = "hermes"
    """How the model writes thinking and calls: a name in `rollout.formats.FORMATS`."""
    sampling: SamplingParameters = field(default_factory=SamplingParameters)
    waits: Waits = field(default_factory=Waits)
    api_key: str | None = field(default=None, repr=False)
    device: str | None = None
    dtype: str | None = None
    max_sequences: int = 8
    """Generations at a time, in process."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelEngine:
    """A model behind any of the three interfaces."""

    name: str
    context_tokens: int | None
    notes: list[str]
    make_policy: Callable[[Origin], Policy]
    own_tokens: ContinuousTokens

    def tokens(self) -> TokenBuilder:
        return copy.copy(self.own_tokens)  # the tokenizer is shared, what a trajectory is at is not

    async def policy(self, session: Session, environment: Environment, task: Task, origin: Origin) -> Policy:
        return self.make_policy(origin)

    def check_template(self, task: Task, tools: Sequence[dict[str, Any]], *, has_user: bool) -> None:
        """Raises ConfigError where the model's template does not render a conversation of such a task."""
        from rollout.tokens.template_check import check_template

        check_template(copy.copy(self.own_tokens), task.prompt, selected(tools, task), has_user=has_user, key="--engine")


@asynccontextmanager
async def opened_engine(options: EngineOptions) -> AsyncGenerator[Engine]:
    """Raises ConfigError: there is no such engine, or it cannot play; the message names the remedy."""
    name = options.engine
    if name in WITHOUT_MODEL:
        yield WithoutModel(name, seed=options.sampling.seed)
    elif name.startswith(("http://", "https://")):
        async with _over_http(options) as engine:
            yield engine
    elif _is_directory(name):
        async with _in_process(options) as engine:
            yield engine
    else:
        remedy = f"one of {', '.join(WITHOUT_MODEL)}, a model's directory, or the http:// address of a server"
        problem = f"no such directory: {name}" if "/" in name else f"unknown engine {name!r}"
        raise ConfigError(problem, key="--engine", remedy=remedy)


def _is_directory(path: object) -> bool:
    return isinstance(path, str) and Path(path).is_dir()


@asynccontextmanager
async def _in_process(options: EngineOptions) -> AsyncGenerator[Engine]:
    path, key = (options.tokenizer, "--tokenizer") if options.tokenizer else (options.engine, "--engine")
    tokens = _load_tokens(options, path, model=options.engine, key=key)
    try:
        from rollout.engines.in_process import InProcessPolicy, decoding, end_ids, load_model
    except ImportError as error:
        raise _not_installed(error) from error
    model = load_model(options.engine, device=options.device, dtype=options.dtype)
    async with decoding(model, max_sequences=options.max_sequences) as engine:
        yield ModelEngine(
            name=f"transformers:{options.engine}",
            context_tokens=getattr(model.config, "max_position_embeddings", None),
            notes=[],
            own_tokens=tokens,
            make_policy=partial(
                InProcessPolicy,
                engine,
                options.sampling,
                stop_token_ids=[*_stops(tokens), *end_ids(model)],
                waits=options.waits,
            ),
        )


@asynccontextmanager
async def _over_http(options: EngineOptions) -> AsyncGenerator[Engine]:
    url = options.engine.rstrip("/").removesuffix("/v1")
    async with AsyncExitStack() as stack:
        http = EngineHttp(url, options.waits, api_key=options.api_key)
        stack.push_async_callback(http.aclose)
        info = await http.look_up("/model_info") or await http.look_up("/get_model_info")
        if info is not None and "model_path" in info:
            with _asked(http):
                engine = await _sglang(http, info, options)
            yield engine
            return
        models = await http.look_up("/v1/models")
        if models is None or not models.get("data"):
            problem = f"{url} is neither an SGLang server (/model_info) nor an OpenAI-compatible one (/v1/models)"
            raise ConfigError(problem, key="--engine", remedy="give the address that the server was started with")
        with _asked(http):
            engine = await _openai(http, cast("dict[str, Any]", models["data"][0]), options)
        yield engine


@contextmanager
def _asked(http: EngineHttp) -> Generator[None]:
    """Around what a server is asked before the run: it ends in time, and a refusal is bad input."""
    seconds = http.waits.generate_timeout_s
    try:
        with anyio.fail_after(seconds):
            yield
    except TimeoutError as error:
        problem = f"{http.url} generates nothing within {seconds:g} s"
        raise ConfigError(problem, key="--engine", remedy="see whether the server is paused or overloaded") from error
    except EngineError as error:
        problem = f"{http.url} does not generate: {error}"
        raise ConfigError(problem, key="--engine", remedy="see the server's own log") from error


async def _sglang(http: EngineHttp, info: dict[str, Any], options: EngineOptions) -> Engine:
    from rollout.engines.sglang import SGLangPolicy, greedy_logprob, renormalises

    if info.get("is_generation") is False:
        raise ConfigError(f"{http.url} serves a model that does not generate", key="--engine", remedy="serve another")
    tokens = _remote_tokens(options, [info.get("tokenizer_path"), info.get("model_path")])
    server = await http.look_up("/server_info") or await http.look_up("/get_server_info") or {}
    probed = _probed(tokens)
    meaning = await detect_logprob_semantics(partial(greedy_logprob, http), probed)
    sampling = options.sampling
    fits = await renormalises(http, probed[0], sampling) if sampling.is_truncated else meaning.fits(sampling)
    remedy = "use a newer SGLang" if sampling.is_truncated else "start SGLang without SGLANG_RETURN_ORIGINAL_LOGPROB"
    return ModelEngine(
        name=f"sglang:{info['model_path']}",
        context_tokens=server.get("max_req_input_len"),
        notes=[] if fits else [_left_out(meaning, sampling, remedy)],
        own_tokens=tokens,
        make_policy=partial(SGLangPolicy, http, options.sampling, meaning=meaning, stop_token_ids=_stops(tokens)),
    )


async def _openai(http: EngineHttp, served: dict[str, Any], options: EngineOptions) -> Engine:
    from rollout.engines.openai import OpenAIPolicy, check_token_ids, greedy_logprob

    model = str(served["id"])
    tokens = _remote_tokens(options, [served.get("root"), model])
    probed = _probed(tokens)
    await check_token_ids(http, model, probed[0])
    meaning = await detect_logprob_semantics(partial(greedy_logprob, http, model), probed)
    remedy = "start vLLM with --logprobs-mode processed_logprobs"
    return ModelEngine(
        name=f"openai:{model}",
        context_tokens=served.get("max_model_len"),
        notes=[] if meaning.fits(options.sampling) else [_left_out(meaning, options.sampling, remedy)],
        own_tokens=tokens,
        make_policy=partial(
            OpenAIPolicy, http, model, options.sampling, meaning=meaning, stop_token_ids=_stops(tokens)
        ),
    )


def _left_out(meaning: LogprobSemantics, sampling: SamplingParameters, remedy: str) -> str:
    what = f"temperature {sampling.temperature:g}, top_p {sampling.top_p:g}, top_k {sampling.top_k}"
    return f"logprobs are left out: the server's are {meaning}, which cannot be converted at {what} ({remedy})"


def _remote_tokens(options: EngineOptions, paths: list[object]) -> ContinuousTokens:
    """The tokenizer given, or else the server's own where its directory is here too."""
    if options.tokenizer is not None:
        return _load_tokens(options, options.tokenizer, model=options.tokenizer, key="--tokenizer")
    for path in paths:
        if _is_directory(path):
            return _load_tokens(options, str(path), model=str(path), key="--engine")
    named = next((path for path in paths if path), "a model")
    problem = f"the server's tokenizer ({named}) is not on this machine"
    raise ConfigError(problem, key="--tokenizer", remedy="give a directory with the model's tokenizer and config.json")


def _load_tokens(options: EngineOptions, path: str, *, model: str, key: str) -> ContinuousTokens:
    if options.tool_format not in FORMATS:
        remedy = f"one of {', '.join(sorted(FORMATS))}"
        raise ConfigError(f"no tool format {options.tool_format!r}", key="--tool-format", remedy=remedy)
    if not Path(path).is_dir():
        raise ConfigError(f"no such directory: {path}", key=key, remedy="give a model directory with its tokenizer")
    try:
        from rollout.tokens.verl_builder import load_tokens
    except ImportError as error:
        raise _not_installed(error) from error
    return load_tokens(model, tokenizer_path=path, tool_format=options.tool_format, key=key)


def _not_installed(error: ImportError) -> ConfigError:
    problem = f"an engine with a model needs {error.name}, which is not installed"
    return ConfigError(problem, key="--engine", remedy="pip install 'mcp-rollout[verl]'")


def _stops(tokens: ContinuousTokens) -> list[int]:
    """Ids after which a turn is over: the template's end of turn, which is not every model's end of text."""
    return sorted({*tokens.stop_token_ids, *tokens.encode_completion("")})


def _probed(tokens: ContinuousTokens) -> list[int]:
    return list(dict.fromkeys(tokens.encode(PROBED_TEXT)))[:PROBES]
