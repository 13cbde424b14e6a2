"""Load an engine from a user's Python code: `--engine MODULE:FACTORY`."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, cast

from gateway.errors import ConfigError
from rollout.engines.engine import Engine, EngineOptions
from rollout.environment.user_code import import_function

_NEEDED = ("name", "context_tokens", "notes", "token_ids", "tokens", "policy")


@asynccontextmanager
async def opened_factory(options: EngineOptions) -> AsyncGenerator[Engine]:
    """The engine that a factory returns: a function that takes `EngineOptions`, named as `MODULE:FACTORY`.

    It returns an `Engine`, or an async context manager that yields one and closes what it opened.

    Raises:
        ConfigError: there is no such factory, it raises, or what it returns is no engine.
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
        remedy = "return a rollout.engines.engine.Engine, for example a rollout.engines.chat.ChatEngine"
        raise ConfigError(problem, key="--engine", remedy=remedy)
    return engine
