"""Argument validation against the cases of JSON Schema's own suite: what differs is known, and never refuses a call."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from mcp_rollout.gateway.schemas.compiled import Program
from mcp_rollout.gateway.schemas.subschemas import Unchecked

SUITE = Path(__file__).parents[1] / "third_party" / "json_schema"
DIFFERENT: dict[str, dict[str, int]] = {
    "draft2020-12": {
        "anchor": 3,
        "defs": 1,
        "dynamicRef": 18,
        "ref": 15,
        "refRemote": 15,
        "unevaluatedItems": 1,
        "unevaluatedProperties": 1,
        # A dialect of its own, without validation, is read as the newest one.
        "vocabulary": 1,
    },
    "draft7": {"definitions": 1, "ref": 16, "refRemote": 11},
}
"""Cases by file. All but the last one of 2020-12 are accepted since their schemas refer to other documents, or have
parts with an address of their own (`$id`), and are not checked."""
REFUSED = {
    "draft2020-12": [
        "schema that uses custom metaschema with with no validation vocabulary: "
        "no validation: invalid number, but it still validates"
    ],
    "draft7": [],
}
"""Valid values that are refused."""
CASES = {"draft2020-12": 1281, "draft7": 909}
DIALECT = {"draft7": {"$schema": "http://json-schema.org/draft-07/schema#"}}


@pytest.mark.parametrize("draft", DIFFERENT)
def test_values_are_judged_as_json_schemas_suite_has_it_but_for_known_cases(draft: str) -> None:
    different, refused, cases = Counter[str](), list[str](), 0
    for line in (SUITE / f"{draft}.jsonl").read_text().splitlines():
        file, group, schema, tests = json.loads(line)
        if isinstance(schema, bool):
            continue  # the schema of a tool is an object
        try:
            program = Program({**DIALECT.get(draft, {}), **schema})
        except Unchecked:
            program = None
        for name, value, valid in tests:
            cases += 1
            if (program is None or judged(program, value)) is not valid:
                different[file.partition("/")[2]] += 1
                refused += [f"{group}: {name}"] if valid else []
    assert cases == CASES[draft]
    assert different == DIFFERENT[draft]
    assert refused == REFUSED[draft]


def judged(program: Program, value: Any) -> bool:
    found = program.errors(value)
    assert program.fits(value) is (found == [])
    return found == []
