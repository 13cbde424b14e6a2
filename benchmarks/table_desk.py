"""The desk's questions over `mcp-server-sqlite`, by others: the model writes the query. After `make third-party`:

    python -m benchmarks.table_desk outputs/table

It writes `table.yaml`, tasks for it of the desk's three parts (`train.jsonl`, `validation.jsonl`, `test.jsonl`), and
`expert.jsonl`: conversations of an expert that asks for the fitting column half the time, for
`pretrained_experiment.warm_up`.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path
from random import Random
from typing import Any

import yaml

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT / "examples" / "desk"), str(ROOT / "tests" / "support")]

from third_party import sqlite  # noqa: E402
from words import PARTS, SHOP, Part  # noqa: E402

from gateway.catalogue.tool_config import read_lock  # noqa: E402

SYSTEM = (
    "You answer customers of a shop. Look it up with one query in the table items(name, price, stock, shelf), then say "
    "the result."
)
TASKS = 90
EXPERT_ROWS = 240
_ANSWER = r"([A-Z]?\d+(?:\.\d+)?)"


def tasks(part: Part, count: int) -> list[dict[str, Any]]:
    """Questions as of the desk, each over a table of three articles, of which one is meant."""
    rows, columns = [], list(SHOP.tools)
    for index in range(count):
        rng = Random(f"{part}/{index}")
        wish = columns[index % len(columns)]
        wordings = SHOP.tools[wish].wordings[part]
        shelf = rng.sample(SHOP.items[part], 3)
        table = {
            item: {name: tool.value(rng, PARTS.index(part)) for name, tool in SHOP.tools.items()} for item in shelf
        }
        values = ", ".join(
            f"('{item}', {', '.join(repr(value) for value in each.values())})" for item, each in table.items()
        )
        question = wordings[index // len(columns) % len(wordings)].format(shelf[0])
        created = "CREATE TABLE items (name TEXT, price TEXT, stock TEXT, shelf TEXT)"
        rows.append(
            {
                "id": f"{part}-{index:03d}",
                "prompt": [{"role": "system", "content": SYSTEM}, {"role": "user", "content": question}],
                "answer": table[shelf[0]][wish],
                "setup": [
                    {"name": "create_table", "arguments": {"query": created}},
                    {"name": "write_query", "arguments": {"query": f"INSERT INTO items VALUES {values}"}},
                ],
                "tools": ["read_query"],
                # Of the expert, not of the task.
                "wish": wish,
                "item": shelf[0],
                "values": table[shelf[0]],
            }
        )
    return rows


def conversation(row: dict[str, Any], tools: list[dict[str, Any]], rng: Random) -> dict[str, Any]:
    others = [name for name in SHOP.tools if name != row["wish"]]
    column = row["wish"] if rng.random() < 1 / 2 else rng.choice(others)
    value = row["values"][column]
    call = {"name": "read_query", "arguments": {"query": f"SELECT {column} FROM items WHERE name = '{row['item']}'"}}
    messages = [
        *row["prompt"],
        {"role": "assistant", "content": "", "tool_calls": [{"type": "function", "function": call}]},
        # As the server writes it.
        {"role": "tool", "name": "read_query", "content": str([{column: value}])},
        {"role": "assistant", "content": SHOP.tools[column].answer.format(value)},
    ]
    return {"messages": messages, "tools": tools}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    out: Path = parser.parse_args().out
    out.mkdir(parents=True, exist_ok=True)
    environment = {
        "servers": {"sqlite": sqlite("${lease.dir}/data.db") | {"scope": "process"}},
        "reward": {"weights": {"exact_match": 1.0, "valid_calls": 0.0}, "answer_pattern": _ANSWER},
        "limits": {"assistant_turns": 3, "parallel_calls": 1, "wall_clock_s": 900},
    }
    (out / "table.yaml").write_text(yaml.safe_dump(environment))
    lock = out / "lock.yaml"
    program = [sys.executable, "-m", "rollout.cli", "tool-config", str(out / "table.yaml"), "-o", str(lock)]
    subprocess.run(program, check=True, cwd=ROOT)
    found = [entry.definition for entry in read_lock(lock)]
    tools = [each.openai_schema() for each in found if each.name == "read_query"]
    for part, count in (("train", EXPERT_ROWS), ("validation", TASKS), ("test", TASKS)):
        _write(out / f"{part}.jsonl", tasks(part, count))
    rng = Random(0)
    _write(out / "expert.jsonl", [conversation(row, tools, rng) for row in tasks("train", EXPERT_ROWS)])


def _write(path: Path, rows: list[dict[str, Any]]) -> None:
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows), encoding="utf-8")


if __name__ == "__main__":
    main()
