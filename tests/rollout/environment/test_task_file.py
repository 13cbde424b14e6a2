"""Tasks from files: the forms of rows, what is refused with its line, bounds, and splits by content."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from mcp_rollout.gateway.errors import ConfigError, faults_of
from mcp_rollout.rollout.environment.task_file import MOST_BYTES, MOST_ROW_BYTES, FileTask, read_tasks

CALLS = [{"name": "write", "arguments": {"key": "a", "value": None}}]


def file_of(directory: Path, *rows: Any) -> Path:
    path = directory / "tasks.jsonl"
    path.write_text("".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows))
    return path


def refused(path: Path, **options: Any) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        read_tasks(path, **options)
    return [str(fault).replace(f"{path}: ", "") for fault in faults_of(caught.value)]


def test_a_prompt_is_a_text_or_messages(tmp_path: Path) -> None:
    spoken = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Why?"}]
    one, two, three = read_tasks(file_of(tmp_path, {"prompt": "Why?"}, "", {"prompt": spoken}, {"messages": spoken}))
    assert (
        one.messages == [{"role": "user", "content": "Why?"}] and one.prompt == "Why?" and one.where.endswith("line 1")
    )
    assert two.messages == three.messages == spoken and two.where.endswith("line 3")
    assert one.answer is None and one.tools is None and one.seed == 0 and one.verl is None and not one.setup + one.check


def test_a_row_has_an_answer_tools_a_seed_and_calls(tmp_path: Path) -> None:
    check = {"name": "read", "arguments": {"key": "a"}, "returns": {"b": 1}}
    row = {"id": 7, "prompt": "?", "answer": 4.5, "tools": ["read"], "seed": 3, "setup": CALLS, "check": [check]}
    (task,) = read_tasks(file_of(tmp_path, row))
    assert (task.task, task.answer, task.tools, task.seed) == ("7", "4.5", ["read"], 3)
    assert [call.model_dump(exclude_defaults=True) for call in task.setup] == CALLS
    assert task.check[0].how == "json" and task.check[0].expected == '{"b": 1}'


def test_a_row_of_verls_datasets_is_read_as_it_is_from_either_format(tmp_path: Path) -> None:
    row = {
        "data_source": "openai/gsm8k",
        "prompt": [{"role": "user", "content": "2 + 2?"}],
        "ability": "math",
        "reward_model": {"style": "rule", "ground_truth": "4"},
        "extra_info": {"index": 5, "split": "train", "question": "2 + 2?"},
    }
    pq.write_table(pa.Table.from_pylist([row]), tmp_path / "tasks.parquet")
    (lines,), (table,) = read_tasks(file_of(tmp_path, row)), read_tasks(tmp_path / "tasks.parquet")
    assert lines.model_dump(exclude={"where"}) == table.model_dump(exclude={"where"})
    assert lines.answer == "4" and lines.verl is not None and lines.verl.data_source == "openai/gsm8k"
    assert lines.verl.extra_info == row["extra_info"] and table.where.endswith("tasks.parquet: row 0")


def test_calls_in_parquet_are_json_text_in_which_no_null_is_added(tmp_path: Path) -> None:
    rows = [{"prompt": "1?", "setup": json.dumps(CALLS)}, {"prompt": "2?", "setup": None}]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "tasks.parquet")
    one, two = read_tasks(tmp_path / "tasks.parquet")
    assert [call.model_dump(exclude_defaults=True) for call in one.setup] == CALLS and two.setup == ()


def test_a_row_without_an_id_has_one_of_its_content(tmp_path: Path) -> None:
    rows = [{"prompt": "1?"}, {"prompt": "1?", "answer": "x"}, {"prompt": "1?", "note": "not read"}]
    one, two, three = (task.task for task in read_tasks(file_of(tmp_path, *rows)))
    assert one == three != two and len(one) == 16
    assert read_tasks(file_of(tmp_path, *reversed(rows)))[2].task == one  # wherever the row is


def nested(depth: int) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = [value]
    return value


@pytest.mark.parametrize(
    ("row", "problem"),
    [
        ('{"prompt": "a" "answer": 1}', "line 2: not valid JSON: Expecting ',' delimiter, column 16 (write one JSON"),
        ("[" * 100_000, "line 2: not valid JSON: "),
        ('{"prompt": "a", "seed": ' + "9" * 5000 + "}", "line 2: not valid JSON: Exceeds the limit"),
        ("[1]", "line 2: is not a JSON object"),
        ('{"prompt": "a", "prompt": "b"}', "line 2: prompt: duplicate key"),
        ({"anwser": 1, "prompt": "a"}, "line 2: anwser: unknown key (did you mean 'answer'?)"),
        ({"question": "a"}, "line 2: prompt: is missing (add it: a text, or a list of {role, content}; this row has"),
        ({"prompt": "a", "answer": None}, "line 2: answer: is null (leave it out, or give one)"),
        ({"prompt": " "}, "line 2: has a prompt without a text"),
        ({"prompt": []}, "line 2: has no prompt"),
        ({"prompt": 7}, "line 2: prompt: is neither a text nor a list of messages, got 7 (write a text"),
        ({"prompt": "a", "messages": [{"role": "user", "content": "b"}]}, "line 2: has both prompt and messages"),
        ({"prompt": [{"role": "user", "content": [{"type": "image"}]}]}, "line 2: prompt.0.content: must be a string"),
        ({"prompt": [{"role": "user", "content": "a", "name": "b"}]}, "line 2: prompt.0.name: unknown key 'name'"),
        ({"prompt": "a", "seed": "1"}, "line 2: seed: must be a whole number, got '1'"),
        ({"prompt": "a", "seed": -1}, "line 2: seed: must be greater than or equal to 0"),
        ({"prompt": "a", "tools": "read"}, "line 2: tools: must be a list of strings, got 'read'"),
        ({"prompt": "a", "id": "x" * 201}, "line 2: has an id of no or more than 200 characters"),
        ({"prompt": "a", "id": "first"}, "line 2: id: 'first' is also the id of line 1"),
        ({"prompt": "a", "setup": [{"tool": "x"}]}, "line 2: setup.0.name: missing key 'name'"),
        ({"prompt": "a", "setup": "write"}, "line 2: setup: is not JSON"),
        ({"prompt": "a", "setup": CALLS * 65}, "line 2: setup: "),
        ({"prompt": "a", "check": [{"name": "x", "match": "near"}]}, "line 2: check.0.match: "),
        ({"prompt": "a", "check": {"name": "x"}}, "line 2: check: must be a list (write [{name: ..., arguments: ..."),
        ({"prompt": "a", "check": '[{"name": "\\ud800"}]'}, "line 2: check: is not JSON"),
        ({"prompt": "a\ud800"}, "line 2: has half of a surrogate pair, which is not text (write whole characters)"),
        (
            {"prompt": "a", "check": [{"name": "x", "returns": "(", "match": "regex"}]},
            "line 2: check.0: returns is not a regular expression: error: unclosed group (use Rust's syntax, or",
        ),
        (
            {"prompt": "a", "answer": 1, "reward_model": {"ground_truth": "1"}},
            "line 2: has an answer and another reward_model.ground_truth",
        ),
        ({"prompt": "a", "answer": float("nan")}, "line 2: has an answer that is nan (leave it out"),
        ({"prompt": "a", "reward_model": {"ground_truth": float("inf")}}, "line 2: has an answer that is inf"),
        ({"prompt": "a", "answer": nested(101)}, "line 2: answer: is nested more than 100 deep (write it flatter, or"),
        ({"prompt": "a", "id": "x", "extra_info": {"k": nested(300)}}, "line 2: extra_info: is nested more than 100 d"),
    ],
)
def test_a_faulty_row_is_refused_with_its_line_key_and_remedy(tmp_path: Path, row: Any, problem: str) -> None:
    faults = refused(file_of(tmp_path, {"prompt": "a", "id": "first"}, row))
    assert faults[0].startswith(problem) and faults[0].endswith(")")


def test_all_faulty_rows_are_named_up_to_a_number(tmp_path: Path) -> None:
    assert len(refused(file_of(tmp_path, {"prompt": 1}, "{", {"prompt": "a"}, {"answer": 1}))) == 3
    assert len(refused(file_of(tmp_path, *["{"] * 1000))) == 100


def test_the_size_of_a_file_of_a_row_and_the_number_of_rows_are_bounded(tmp_path: Path) -> None:
    path = tmp_path / "large.jsonl"
    with path.open("wb") as file:
        file.truncate(MOST_BYTES + 1)
    assert refused(path) == [f"has {MOST_BYTES + 1} bytes, {MOST_BYTES} are allowed (divide it)"]
    longest = {"prompt": "x" * (MOST_ROW_BYTES - 20)}
    assert len(read_tasks(file_of(tmp_path, longest))) == 1
    longer = {"prompt": "x" * MOST_ROW_BYTES}
    assert refused(file_of(tmp_path, {"prompt": "a"}, longer)) == [
        f"line 2: the row is longer than {MOST_ROW_BYTES} bytes (shorten it)"
    ]
    pq.write_table(pa.Table.from_pylist([longer]), tmp_path / "tasks.parquet")
    assert refused(tmp_path / "tasks.parquet")[0].startswith("row 0: the row is longer")
    assert refused(file_of(tmp_path, *[{"prompt": "a"}] * 4), most_rows=3) == ["has more than 3 rows (divide it)"]


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    for name in ("missing.jsonl", "missing.parquet"):
        assert refused(tmp_path / name) == ["cannot be read: No such file or directory (check the path)"]
    (tmp_path / "tasks.csv").write_text("prompt\n")
    assert "is not a file of tasks: .csv" in refused(tmp_path / "tasks.csv")[0]
    (tmp_path / "tasks.parquet").write_text("prompt\n")
    assert "is not a parquet file" in refused(tmp_path / "tasks.parquet")[0]
    (tmp_path / "tasks.jsonl").write_bytes(b'{"prompt": "\xff"}\n')
    assert refused(tmp_path / "tasks.jsonl") == ["line 1: is not UTF-8 text (save it as UTF-8)"]
    assert refused(file_of(tmp_path, "", "  "))[0].startswith("has no rows")


def splits(path: Path, share: float = 0.5) -> dict[str, list[FileTask]]:
    return {split: read_tasks(path, split=split, test_share=share) for split in ("train", "test")}


def test_a_split_is_decided_by_the_prompt_alone(tmp_path: Path) -> None:
    asked = [f"What is {number} and {number}?" for number in range(200)]
    rows = [{"prompt": text, "answer": number, "seed": number} for number, text in enumerate(asked)]
    again = [{"prompt": f"  {text.upper()} ", "id": f"again-{number}"} for number, text in enumerate(asked)]
    spoken = [{"role": "system", "content": "Be brief."}]
    again += [{"prompt": [*spoken, {"role": "user", "content": text}]} for text in asked]
    found = splits(file_of(tmp_path, *rows, *again))
    prompts = {split: {str(task.prompt).strip().lower() for task in tasks} for split, tasks in found.items()}
    assert not prompts["train"] & prompts["test"] and len(prompts["train"] | prompts["test"]) == 200
    assert sum(map(len, found.values())) == 600 and 70 < len(prompts["test"]) < 130
    fewer = splits(file_of(tmp_path, *rows[::2]))  # other rows change nothing
    assert {task.task for task in fewer["test"]} == {task.task for task in found["test"]} & {
        task.task for tasks in fewer.values() for task in tasks
    }
