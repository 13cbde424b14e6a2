"""Read tasks from a file: JSON Lines or Parquet, in our own form or as rows of verl's datasets.

A row has `prompt` (a text or chat messages) or `messages`, and optionally `id`, `answer`, `tools`, `seed`, `setup` and
`check`. Of a row for verl, `data_source`, `reward_model.ground_truth` and `extra_info` are read as well. What else a
row has is not read, but for a key that looks like a misspelt one, which is an error.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping
from difflib import get_close_matches
from math import isfinite
from pathlib import Path
from typing import Annotated, Any, Literal, Self, cast

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from mcp_rollout.gateway.config.mapping_file import read_json
from mcp_rollout.gateway.config.pydantic_errors import validate
from mcp_rollout.gateway.errors import ConfigError, Faults, InvalidValue, raise_all
from mcp_rollout.gateway.schemas.extent import DEEPEST
from mcp_rollout.gateway.types import canonical_json
from mcp_rollout.rollout.environment.harness import ListedTask
from mcp_rollout.rollout.environment.parquet import read_rows
from mcp_rollout.rollout.environment.task import ALL, Calls, Checks, VerlColumns, as_text, from_json, plain, question

MOST_BYTES = 2**29
MOST_ROWS = 1_000_000
MOST_ROW_BYTES = 2**20
_LIKE_MESSAGES = re.compile(r"""\s*\[?\s*\{(?:\s*['"]content['"]\s*:|[^{}]{0,200}['"]role['"]\s*:)""")
_MOST_FAULTS = 100
"""Faults after which the rest of the file is not read."""


class _Message(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid")

    role: Literal["system", "user", "assistant", "tool"]
    content: str

    @model_validator(mode="before")
    @classmethod
    def _without_empty_keys(cls, value: Any) -> Any:
        """A column of messages has each key of any of them, with null or an empty list where one has none."""
        if not isinstance(value, Mapping):
            return value
        given = cast("Mapping[str, Any]", value)
        return {name: each for name, each in given.items() if name in cls.model_fields or each not in (None, [], {})}


def _messages(value: Any) -> Any:
    if isinstance(value, str):
        if not _LIKE_MESSAGES.match(value):
            return [{"role": "user", "content": value}]
        # A column of texts has messages as JSON; Python's own notation of them is no question, either.
        value = from_json(value, remedy="it looks like messages: write a list of {role, content}, or JSON of one")
        return [value] if isinstance(value, dict) else value
    if value is None or isinstance(value, list):
        return cast(Any, value)
    raise InvalidValue("is neither a text nor a list of messages", "write a text, or a list of {role, content}")


def _whole(value: Any) -> Any:
    """A column of whole numbers in which some are missing has floating-point ones."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


class _RewardModel(BaseModel):
    ground_truth: Any = None


class _Row(BaseModel):
    """A row as it is written."""

    model_config = ConfigDict(strict=True)

    id: Annotated[str | int | None, Field(union_mode="left_to_right"), BeforeValidator(_whole)] = None
    prompt: Annotated[list[_Message] | None, BeforeValidator(_messages)] = None
    messages: Annotated[list[_Message] | None, BeforeValidator(_messages)] = None
    answer: Any = None
    tools: list[str] | None = None
    later_tools: list[str] | None = None
    seed: Annotated[int, BeforeValidator(_whole)] = Field(default=0, ge=0, lt=2**63)
    setup: Calls = ()
    check: Checks = ()
    data_source: str | None = None
    reward_model: _RewardModel | None = None
    extra_info: dict[str, Any] | None = None

    @model_validator(mode="after")
    def _agrees_with_itself(self) -> Self:
        if self.prompt is not None and self.messages is not None:
            raise InvalidValue("has both prompt and messages", "keep one of them")
        if not (self.prompt or self.messages):
            raise InvalidValue("has no prompt", 'add "prompt": a text, or a list of {role, content}')
        if not any(message.content.strip() for message in self.opening):
            raise InvalidValue("has a prompt without a text", "write the question there")
        if self.answer is not None and self.ground_truth is not None and self.answer != self.ground_truth:
            raise InvalidValue("has an answer and another reward_model.ground_truth", "keep one of them")
        if isinstance(self.truth, float) and not isfinite(self.truth):  # pandas has NaN where there is none
            raise InvalidValue(f"has an answer that is {self.truth}", "leave it out, or give one")
        if isinstance(self.id, str) and not 0 < len(self.id) <= 200:
            raise InvalidValue("has an id of no or more than 200 characters", "shorten it, or leave it out")
        return self

    @property
    def opening(self) -> list[_Message]:
        return self.prompt or self.messages or []

    @property
    def ground_truth(self) -> Any:
        return None if self.reward_model is None else self.reward_model.ground_truth

    @property
    def truth(self) -> Any:
        return self.ground_truth if self.answer is None else self.answer

    @property
    def digest(self) -> str:
        """An id from the content."""
        content = self.model_dump(mode="json", exclude_defaults=True, exclude={"id"})
        return hashlib.sha256(canonical_json(content).encode(errors="replace")).hexdigest()[:16]


class FileTask(ListedTask):
    """A task of a file."""

    where: str
    """The file and the line or row."""
    messages: list[dict[str, str]]
    is_json: bool = False
    """Whether the row's answer is an object or a list."""
    verl: VerlColumns | None = None

    def split(self, test_share: float) -> str:
        digest = hashlib.sha256(question(self.messages).encode(errors="replace")).digest()
        return "test" if int.from_bytes(digest[:8]) < test_share * 2**64 else "train"


def read_tasks(
    path: str | Path, *, split: str = ALL, test_share: float = 0.0, most_rows: int = MOST_ROWS
) -> list[FileTask]:
    """The tasks of a split, in the order of the file.

    Args:
        split: `train`, `test` or `ALL`. The content of a prompt decides its row's split, so that the same prompt is
            never in both.
        test_share: the expected share of prompts in the split `test`.

    Raises:
        ConfigError: the file cannot be read, is beyond a bound or has a faulty row; `ConfigErrors` for several faults,
            each with the line (JSON Lines, from 1) or the row (Parquet, from 0).
    """
    path = Path(path)
    faults, tasks, ids = Faults(), list[FileTask](), dict[tuple[str, int], str]()
    for where, given in _rows(path):
        if len(tasks) == most_rows:
            raise ConfigError(f"has more than {most_rows} rows", file=path, remedy="divide it")
        if len(faults) >= _MOST_FAULTS:
            break
        with faults.collected():
            raw = _parsed(given, where) if isinstance(given, bytes) else _of_table(given, where)
            if raw is None:
                continue
            task = _task(raw, where)
            if raw.get("id") is not None and (first := ids.setdefault((task.task, task.seed), where)) != where:
                remedy = "give each row its own, or leave it out"
                raise ConfigError(f"{task.task!r} is also the id of {first}", file=where, key="id", remedy=remedy)
            tasks.append(task)
    raise_all(faults)
    if not tasks:
        raise ConfigError("has no rows", file=path, remedy='write {"prompt": "...", "answer": "..."}, one on each line')
    chosen = [task for task in tasks if split in (ALL, task.split(test_share))]
    if not chosen:
        problem = f"none of its {len(tasks)} rows is in the split {split}"
        remedy = "change tasks.test_share, or use --split all"
        raise ConfigError(problem, file=path, key="tasks.test_share", remedy=remedy)
    return chosen


def _task(raw: Mapping[str, Any], where: str) -> FileTask:
    _refuse_misspelt(raw, where)
    _refuse_deep(raw, where)
    extra: Any = raw.get("extra_info")
    own: Any = cast("Mapping[str, Any]", extra).get("mcp") if isinstance(extra, Mapping) else None
    if isinstance(own, Mapping):  # a row that `data` wrote
        given = {name: value for name, value in cast("Mapping[str, Any]", own).items() if name in _Row.model_fields}
        raw = {**raw, "id": cast("Mapping[str, Any]", own).get("task"), **given}
    row = validate(_Row, {name: value for name, value in raw.items() if value is not None}, file=where)
    task = str(row.id) if row.id is not None else row.digest
    answer = None if row.truth is None or row.truth == "" else as_text(row.truth)
    verl = None
    if row.data_source is not None or row.extra_info or not isinstance(row.ground_truth, str | None):
        info = {name: value for name, value in (row.extra_info or {}).items() if name not in ("mcp", "tools_kwargs")}
        verl = VerlColumns(data_source=row.data_source or "", ground_truth=row.ground_truth, extra_info=info)
    last = row.opening[-1]
    return FileTask(
        where=where,
        task=task,
        seed=row.seed,
        prompt=last.content if last.role == "user" else None,
        messages=[message.model_dump() for message in row.opening],
        answer=answer,
        is_json=isinstance(row.truth, dict | list),
        tools=row.tools,
        later_tools=row.later_tools,
        setup=row.setup,
        check=row.check,
        verl=verl,
    )


def _refuse_misspelt(raw: Mapping[str, Any], where: str) -> None:
    missing = [name for name in _Row.model_fields if name not in raw]
    faults = Faults()
    for name in raw:
        if name not in _Row.model_fields and (meant := get_close_matches(name, missing, n=1, cutoff=0.8)):
            faults.append(ConfigError("unknown key", file=where, key=name, remedy=f"did you mean {meant[0]!r}?"))
    if "prompt" in missing and "messages" in missing:
        keys = ", ".join(list(raw)[:12]) or "none"
        remedy = f"add it: a text, or a list of {{role, content}}; this row has the keys {keys}"
        faults.append(ConfigError("is missing", file=where, key="prompt", remedy=remedy))
    raise_all(faults)


def _refuse_deep(raw: Mapping[str, Any], where: str) -> None:
    """What is nested deeper could neither be sent nor recorded."""
    for name, value in raw.items():
        level: list[Any] = [value]
        for _ in range(DEEPEST + 1):
            level = _below(level)
        if level:
            problem, remedy = f"is nested more than {DEEPEST} deep", "write it flatter, or as JSON text in a string"
            raise ConfigError(problem, file=where, key=name, remedy=remedy)


def _below(values: list[Any]) -> list[Any]:
    """The values within objects and lists, one level down."""
    below: list[Any] = []
    for each in values:
        if isinstance(each, Mapping):
            below += cast("Mapping[str, Any]", each).values()
        elif isinstance(each, list):
            below += cast("list[Any]", each)
    return below


def _rows(path: Path) -> Iterator[tuple[str, bytes | Mapping[str, Any]]]:
    """Where each row is, and the row: a line of JSON, or keys and values."""
    is_parquet = path.suffix == ".parquet"
    if not is_parquet and path.suffix not in (".jsonl", ".ndjson"):
        remedy = "give JSON Lines (.jsonl, one object on each line) or .parquet"
        raise ConfigError(f"is not a file of tasks: {path.suffix or 'no suffix'}", file=path, remedy=remedy)
    try:
        size = path.stat().st_size
    except OSError as error:
        raise ConfigError(f"cannot be read: {error.strerror}", file=path, remedy="check the path") from error
    if size > MOST_BYTES:
        raise ConfigError(f"has {size} bytes, {MOST_BYTES} are allowed", file=path, remedy="divide it")
    if is_parquet:
        for number, row in enumerate(map(plain, read_rows(path))):
            where = f"{path}: row {number}"
            _check_length(where, len(canonical_json(row)))
            yield where, row
        return
    with path.open("rb") as file:
        number = 0
        while line := file.readline(MOST_ROW_BYTES + 1):
            number += 1
            where = f"{path}: line {number}"
            _check_length(where, len(line))
            yield where, line


def _of_table(row: Mapping[str, Any], where: str) -> dict[str, Any]:
    """A row of Parquet without what fills its gaps. Raises ConfigError: within a value, null may be a gap or meant."""
    for key, level in {"answer": 0, "reward_model": 1, "setup": 2, "check": 2}.items():
        values = [row.get(key)]
        for _ in range(level):
            values = _below(values)
        if any(each == each and _without_gaps(each) != each for each in values):
            problem, remedy = "has null within, which Parquet fills in", "write it as JSON text"
            raise ConfigError(problem, file=where, key=key, remedy=remedy)
    own = {**dict.fromkeys(row), **_without_gaps(row)}
    if "answer" in own:
        own["answer"] = _whole(own["answer"])
    if isinstance(row.get("extra_info"), Mapping):
        own["extra_info"] = row["extra_info"]  # handed on to reward functions as it is
    return own


def _without_gaps(value: Any) -> Any:
    """The value without the keys that have null or NaN, at any depth."""
    if isinstance(value, Mapping):
        given = cast("Mapping[str, Any]", value)
        return {name: _without_gaps(each) for name, each in given.items() if each is not None and each == each}
    return [_without_gaps(each) for each in cast("list[Any]", value)] if isinstance(value, list) else value


def _check_length(where: str, length: int) -> None:
    if length > MOST_ROW_BYTES:
        raise ConfigError(f"the row is longer than {MOST_ROW_BYTES} bytes", file=where, remedy="shorten it")


def _parsed(line: bytes, where: str) -> Mapping[str, Any] | None:
    """The object of a line; None if the line is blank."""
    try:
        text = line.decode("utf-8-sig")
        row: Any = read_json(text, where) if text.strip() else None
    except UnicodeDecodeError as error:
        raise ConfigError("is not UTF-8 text", file=where, remedy="save it as UTF-8") from error
    except ConfigError:
        raise
    except (ValueError, RecursionError) as error:
        column = getattr(error, "colno", None)
        problem = f"not valid JSON: {getattr(error, 'msg', None) or error}" + (f", column {column}" if column else "")
        raise ConfigError(problem, file=where, remedy="write one JSON object on each line") from None
    if not isinstance(row, Mapping | None):
        raise ConfigError("is not a JSON object", file=where, remedy='write {"prompt": "..."}')
    row = cast("Mapping[str, Any] | None", row)
    if row and row.get("answer", "") is None:  # in Parquet, a row without a value has null
        raise ConfigError("is null", file=where, key="answer", remedy="leave it out, or give one")
    return row
