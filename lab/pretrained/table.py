"""The desk's questions over `mcp-server-sqlite`, which others wrote: the model writes a query, and tasks are a file's.

Each task has a table of its own with three articles, of which one is meant. The wording says which column.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import yaml

from lab.demo.processes import command
from lab.pretrained.settings import EXPERT_ROWS, RIGHT, WarmedUpOn
from lab.worlds.desk.words import PARTS, SHOP, Part
from mcp_rollout.gateway.catalogue.tool_config import read_lock

SERVER = Path(__file__).resolve().parents[2] / ".venv" / "third_party" / "python"
"""Where `make third-party` installs it."""
TRAINING_ROWS = 600
_SYSTEM = (
    "You answer customers of a shop. Look it up with one query in the table items(name, price, stock, shelf), then say "
    "the result."
)
_ANSWER = r"([A-Z]?\d+(?:\.\d+)?)"
_COLUMNS = tuple(SHOP.tools)
_READ = "read_query"


@dataclass(frozen=True)
class Table:
    """As `World`."""

    home: Path
    name: str = "table"

    @property
    def environments(self) -> Path:
        return self.home.absolute() / "environments"

    def prepare(self, held_out: int) -> None:
        if (self.home / "tool_config.yaml").is_file():
            return
        if not SERVER.is_dir():
            raise SystemExit(f"error: {SERVER} is missing: run `make third-party`")
        self.environments.mkdir(exist_ok=True)
        parts: dict[Part, tuple[str, int]] = {
            "train": ("table_train", TRAINING_ROWS),
            "test": ("table", held_out),
            "validation": ("table_validation", held_out),
        }
        for part, (name, count) in parts.items():
            rows = [_row(part, index) for index in range(count)]
            self._write(self.environments / f"{name}.jsonl", rows)
            environment = _environment() | {"tasks": {"file": f"{name}.jsonl"}}
            (self.environments / f"{name}.yaml").write_text(yaml.safe_dump(environment))
            parquet = "train" if part == "train" else name
            command("data", self._file(name), "--split", "all", "-o", self.home / f"{parquet}.parquet")
        command("tool-config", *(self._file(name) for name, _ in parts.values()), "-o", self.home / "tool_config.yaml")

    def played(self, environment: str, held_out: int) -> Sequence[object]:
        return self._file(environment), "--split", "all", "-n", held_out

    def expert(self, kind: WarmedUpOn) -> Path:
        path = self.home / f"expert-{kind}.jsonl"
        if not path.is_file():
            definitions = [entry.definition for entry in read_lock(self.home / "tool_config.yaml")]
            tools = [each.openai_schema() for each in definitions if each.name == _READ][:1]
            rows = [_row("train", TRAINING_ROWS + index) for index in range(EXPERT_ROWS)]
            self._write(path, _conversations(rows, tools, RIGHT[kind]))
        return path

    def _file(self, name: str) -> Path:
        return self.environments / f"{name}.yaml"

    @staticmethod
    def _write(path: Path, rows: Sequence[Mapping[str, Any]] | Iterator[Mapping[str, Any]]) -> None:
        path.write_text("".join(f"{json.dumps(row)}\n" for row in rows), encoding="utf-8")


def _environment() -> dict[str, Any]:
    server = {
        "command": sys.executable,
        "args": [str(SERVER / "bin" / "mcp-server-sqlite"), "--db-path", "${lease.dir}/data.db"],
        "env": {"PYTHONPATH": str(SERVER)},
        "scope": "process",
        "start": "fork",
    }
    return {
        "servers": {"sqlite": server},
        "reward": {"weights": {"exact_match": 1.0, "valid_calls": 0.0}, "answer_pattern": _ANSWER},
        "limits": {"assistant_turns": 3, "parallel_calls": 1, "wall_clock_s": 900},
    }


def _row(part: Part, index: int) -> dict[str, Any]:
    """A question as of the desk, with the table that answers it."""
    rng, wish = Random(f"{part}/{index}"), _COLUMNS[index % len(_COLUMNS)]
    wordings = SHOP.tools[wish].wordings[part]
    shelf = rng.sample(SHOP.items[part], 3)
    table = {item: {name: tool.value(rng, PARTS.index(part)) for name, tool in SHOP.tools.items()} for item in shelf}
    values = ", ".join(f"('{item}', {', '.join(map(repr, each.values()))})" for item, each in table.items())
    question = wordings[index // len(_COLUMNS) % len(wordings)].format(shelf[0])
    return {
        "id": f"{part}-{index:04d}",
        "prompt": [{"role": "system", "content": _SYSTEM}, {"role": "user", "content": question}],
        "answer": table[shelf[0]][wish],
        "setup": [
            {
                "name": "create_table",
                "arguments": {"query": "CREATE TABLE items (name TEXT, price TEXT, stock TEXT, shelf TEXT)"},
            },
            {"name": "write_query", "arguments": {"query": f"INSERT INTO items VALUES {values}"}},
        ],
        "tools": [_READ],
        # What an expert knows, and no environment reads.
        "fitting": wish,
        "item": shelf[0],
        "values": table[shelf[0]],
    }


def _conversations(
    rows: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]], right: float
) -> Iterator[dict[str, Any]]:
    """Those of an expert that asks for the fitting column in a share of them, as the server's answers make them."""
    rng = Random(0)
    for row in rows:
        others = [name for name in _COLUMNS if name != row["fitting"]]
        column = row["fitting"] if rng.random() < right else rng.choice(others)
        value = row["values"][column]
        query = f"SELECT {column} FROM items WHERE name = '{row['item']}'"
        call = {"name": _READ, "arguments": {"query": query}}
        messages = [
            *row["prompt"],
            {"role": "assistant", "content": "", "tool_calls": [{"type": "function", "function": call}]},
            {"role": "tool", "name": _READ, "content": str([{column: value}])},
            {"role": "assistant", "content": SHOP.tools[column].answer.format(value)},
        ]
        yield {"messages": messages, "tools": tools}
