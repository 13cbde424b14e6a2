"""Option models: a dataclass of options of one concern, which commands take as one parameter.

The command line and other callers give a command the fields of its models, each by its own name.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import is_dataclass
from functools import wraps
from typing import Any, TypeVar

Result = TypeVar("Result")


def with_option_models(command: Callable[..., Result]) -> Callable[..., Result]:
    """The command with the fields of the dataclasses among its parameters in their place, as typer reads them."""
    signature = inspect.signature(command, eval_str=True)
    parameters = signature.parameters.values()
    models: dict[str, Any] = {each.name: each.annotation for each in parameters if is_dataclass(each.annotation)}
    fields = {name: inspect.signature(model, eval_str=True).parameters for name, model in models.items()}
    shown = [option for each in parameters for option in fields.get(each.name, {each.name: each}).values()]

    @wraps(command)
    def with_fields(*values: Any, **given: Any) -> Result:
        given |= zip((each.name for each in shown), values, strict=False)
        own = {name: {key: given.pop(key) for key in keys if key in given} for name, keys in fields.items()}
        return command(**given, **{name: model(**own[name]) for name, model in models.items()})

    options = [each.replace(kind=inspect.Parameter.KEYWORD_ONLY) for each in shown]
    vars(with_fields)["__signature__"] = signature.replace(parameters=options)
    return with_fields
