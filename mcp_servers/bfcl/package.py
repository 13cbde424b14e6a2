# pyright: basic
# bfcl_eval ships no types.
"""Data, API classes and checkers of `bfcl_eval`. No other module here imports the package."""

from __future__ import annotations

import copy
import importlib
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from decimal import getcontext
from functools import cache
from pathlib import Path
from typing import Any, Literal, TypeGuard

INSTALL = "pip install --no-deps bfcl-eval==2026.3.23 mpmath==1.3.0"
"""As in constraints/bfcl.txt."""

try:
    import bfcl_eval
    from bfcl_eval.constants.default_prompts import DEFAULT_USER_PROMPT_FOR_ADDITIONAL_FUNCTION_PROMPTING
    from bfcl_eval.constants.executable_backend_config import (
        CLASS_FILE_PATH_MAPPING,
        MULTI_TURN_FUNC_DOC_FILE_MAPPING,
        STATELESS_CLASSES,
    )
    from bfcl_eval.eval_checker.multi_turn_eval import multi_turn_checker as checker
    from bfcl_eval.eval_checker.multi_turn_eval.func_source_code import long_context as extensions
    from bfcl_eval.eval_checker.multi_turn_eval.func_source_code import math_api
    from bfcl_eval.eval_checker.multi_turn_eval.multi_turn_utils import _process_method_calls
except ImportError as error:
    raise ImportError(f"mcp_rollout.mcp_servers.bfcl needs bfcl-eval and mpmath ({error}): {INSTALL}") from error

Category = Literal["base", "miss_func", "miss_param", "long_context"]
CATEGORIES: tuple[Category, ...] = ("base", "miss_func", "miss_param", "long_context")
CLASSES = (
    "GorillaFileSystem",
    "MathAPI",
    "MessageAPI",
    "TwitterAPI",
    "TicketAPI",
    "TradingBot",
    "TravelAPI",
    "VehicleControlAPI",
)
"""The API classes of the multi-turn tasks, in the package's order."""
FUNCTIONS_ADDED = DEFAULT_USER_PROMPT_FOR_ADDITIONAL_FUNCTION_PROMPTING
"""The user's message that reveals functions; `{functions}` is replaced by their documents."""

MOST_DIGITS = 10_000
"""Digits of the largest power and of the highest precision that a call may ask for."""

_DATA = Path(bfcl_eval.__file__).parent / "data"


@cache
def function_documents(class_name: str) -> Sequence[dict[str, Any]]:
    """The documents of a class's methods: `name`, `description`, `parameters`, `response`."""
    return _lines(_DATA / "multi_turn_func_doc" / MULTI_TURN_FUNC_DOC_FILE_MAPPING[class_name])


@cache
def task_entries(category: Category) -> Sequence[dict[str, Any]]:
    return _lines(_DATA / f"BFCL_v4_multi_turn_{category}.json")


@cache
def ground_truths(category: Category) -> Mapping[str, list[list[str]]]:
    """By task, the calls of each user turn as Python text."""
    answers = _lines(_DATA / "possible_answer" / f"BFCL_v4_multi_turn_{category}.json")
    return {answer["id"]: answer["ground_truth"] for answer in answers}


def new_instance(class_name: str, config: Mapping[str, Any], *, long_context: bool) -> Any:
    """An instance in its initial state, as `execute_multi_turn_func_call` makes it.

    Under `long_context` its state refers to objects of the package's modules.
    """
    instance = api_class(class_name)()
    if class_name not in STATELESS_CLASSES:
        instance._load_scenario(copy.deepcopy(config.get(class_name, {})), long_context=long_context)
    return instance


@cache
def api_class(class_name: str) -> Any:
    return getattr(importlib.import_module(CLASS_FILE_PATH_MAPPING[class_name]), class_name)


def with_instance_names(call: str, instance_of: Mapping[str, str]) -> str:
    """The text of a call as the package evaluates it.

    Each `name(` of a method gets its instance's name in front, inside strings too. Each `name (` loses the white space.
    """
    return _process_method_calls(call, dict(instance_of))


def same_state(model: Mapping[str, Any], truth: Mapping[str, Any]) -> bool:
    """Whether the public attributes of all instances are equal. Raises what comparing them raises."""
    return bool(checker.state_checker(dict(model), dict(truth))["valid"])


def has_responses(model: Sequence[str], truth: Sequence[str], turn: int) -> bool:
    """Whether `model`, the results so far, contains the results `truth` in any order, each as often."""
    return bool(checker.response_checker(list(model), list(truth), turn)["valid"])


@contextmanager
def unchanged_globals() -> Iterator[None]:
    """Restore what methods change outside their instance.

    `logarithm` and `square_root` set a precision, and a thermometer of the long context writes into a constant. Each
    sets what it reads itself, so the results do not depend on it.
    """
    digits, decimals, weather = math_api.mpmath.mp.prec, getcontext().prec, dict(extensions.LONG_WEATHER_EXTENSION)
    try:
        yield
    finally:
        math_api.mpmath.mp.prec, getcontext().prec = digits, decimals
        extensions.LONG_WEATHER_EXTENSION.clear()
        extensions.LONG_WEATHER_EXTENSION.update(weather)


def check_work(method: str, arguments: Mapping[str, Any]) -> None:
    """Refuse calls of `MathAPI` that would occupy the server for minutes or fill its memory.

    Raises:
        ValueError: The result has more than `MOST_DIGITS` digits. The package shows no integer of more than 4,300
            (Python's limit for text).
    """
    first, second = arguments.get("base"), arguments.get("exponent")
    match method:
        case "power" if _is_integer(first) and _is_integer(second):
            digits = abs(second) * math.log10(max(2, abs(first)))
        case "logarithm" | "square_root":
            digits = arguments.get("precision")
        case "round_number":
            digits = arguments.get("decimal_places")
        case _:
            return
    if isinstance(digits, int | float) and abs(digits) > MOST_DIGITS:
        raise ValueError(f"{method}: more than {MOST_DIGITS} digits")


def _is_integer(value: object) -> TypeGuard[int]:
    return isinstance(value, int)


def _lines(path: Path) -> list[dict[str, Any]]:
    with path.open(encoding="utf-8") as file:
        return [json.loads(line) for line in file]
