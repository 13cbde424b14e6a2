"""Texts of servers and policies: schemas, completions and spelled secrets, of any shape."""

from __future__ import annotations

import base64
import html
import json
from collections.abc import Callable
from typing import Any
from urllib.parse import quote

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator, SchemaError
from mangling import JSON

from mcp_rollout.gateway.config.models import ServerConfig
from mcp_rollout.gateway.connection.redaction import REDACTED, Redactor
from mcp_rollout.gateway.schemas.arguments import prepare
from mcp_rollout.gateway.schemas.compiled import Program, TooMuch
from mcp_rollout.gateway.schemas.subschemas import Unchecked
from mcp_rollout.gateway.types import ToolDefinition
from mcp_rollout.rollout.formats import FORMATS

KEYWORDS: dict[str, st.SearchStrategy[Any]] = {
    "type": st.sampled_from(["object", "array", "string", "integer", "number", "boolean", "null", ["string", "null"]]),
    "enum": st.lists(st.integers(-2, 2) | st.sampled_from(["a", "b", None, True, 1.0]), min_size=1, max_size=3),
    "const": st.integers(-2, 2) | st.sampled_from(["a", None, False]),
    "required": st.lists(st.sampled_from("abc"), max_size=2, unique=True),
    "minimum": st.integers(-2, 2),
    "exclusiveMaximum": st.integers(-2, 2),
    "multipleOf": st.integers(1, 3),
    "minLength": st.integers(0, 2),
    "maxItems": st.integers(0, 2),
    "uniqueItems": st.booleans(),
    "minProperties": st.integers(0, 2),
    "$ref": st.sampled_from(["#", "#/$defs/a", "#/properties/a", "#/$defs/none", "https://example.com/x"]),
}


def _with_subschemas(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    applied = {
        **dict.fromkeys(("items", "additionalProperties", "not", "if", "then", "else", "contains"), inner),
        **{name: st.lists(inner, min_size=1, max_size=2) for name in ("anyOf", "allOf", "oneOf", "prefixItems")},
        **{
            name: st.dictionaries(st.sampled_from("abc"), inner, max_size=2)
            for name in ("properties", "$defs", "dependentSchemas")
        },
    }
    return st.fixed_dictionaries({}, optional={**KEYWORDS, **applied})


SCHEMAS = st.recursive(st.booleans() | st.fixed_dictionaries({}, optional=KEYWORDS), _with_subschemas, max_leaves=6)
OBJECTS = SCHEMAS.filter(lambda schema: isinstance(schema, dict))
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 3) | st.sampled_from(["", "a", "ab", "3", "[1]", 1.0, 0.5]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("abcd"), inner, max_size=3),
    max_leaves=6,
)


@given(OBJECTS, VALUES)
def test_a_value_is_judged_as_another_validator_judges_it(schema: dict[str, Any], value: Any) -> None:
    try:
        program = Program(schema)
        errors = program.errors(value)
    except (Unchecked, TooMuch):
        return
    assert program.fits(value) is (errors == [])
    try:
        expected = Draft202012Validator(schema).is_valid(value)
    except (RecursionError, SchemaError):
        return
    assert (errors == []) is expected


@given(st.dictionaries(st.sampled_from([*KEYWORDS, "properties", "items", "pattern", "$id", "$schema"]), JSON), JSON)
def test_a_schema_of_any_json_is_compiled_or_unchecked_and_its_tool_can_be_called(
    schema: dict[str, Any], arguments: Any
) -> None:
    tool = ToolDefinition(server="s", name="t", exposed_name="t", description="", input_schema=schema)
    prepared = prepare(tool, arguments)
    assert prepared.faults or prepared.arguments == arguments or prepared.changes


@pytest.mark.parametrize("name", FORMATS)
@given(st.data(), st.booleans())
def test_a_completion_of_any_text_is_read(name: str, data: st.DataObject, opened: bool) -> None:
    known = FORMATS[name]
    parts = [
        *known.markers,
        "{",
        "}",
        '"name"',
        '"arguments"',
        ":",
        ",",
        "[",
        "note",
        "\n",
        "<",
        ">",
        "|",
        "\ud800",
        "1e999",
        "é",
    ]
    text = "".join(data.draw(st.lists(st.sampled_from(sorted(parts)) | st.text(max_size=3), max_size=20)))
    tools = [
        {"type": "function", "function": {"name": "note", "parameters": {"properties": {"a": {"type": "integer"}}}}}
    ]
    found = known.read(text, tools, opened=opened)
    assert all(call.problem is not None or call.name for call in found.calls)
    assert len(found.thinking) + len(found.content) <= len(text)


ENCODINGS: list[Callable[[str], str]] = [
    lambda text: quote(text, safe=""),
    html.escape,
    lambda text: json.dumps(text)[1:-1],
    lambda text: json.dumps(text, ensure_ascii=False)[1:-1].replace("/", "\\/"),
]


@given(
    st.text(st.characters(exclude_categories=["Cs", "Cc"]), min_size=6, max_size=40),
    st.lists(st.sampled_from(ENCODINGS), max_size=2),
    st.text(max_size=9),
    st.binary(max_size=5),
)
def test_a_secret_of_any_text_is_found_under_any_two_encodings(
    secret: str, encodings: list[Callable[[str], str]], around: str, before: bytes
) -> None:
    assume(secret.strip() == secret and secret not in REDACTED)
    redactor = Redactor(ServerConfig.model_validate({"command": "x", "env": {"API_KEY": secret}}))
    told = secret
    for encode in encodings:
        told = encode(told)
    assume(told not in REDACTED)
    assert redactor.text(f"{around}\n{told}\n{around}").count(REDACTED) >= 1
    assert told not in redactor.text(f"{around}\n{told}\n{around}")
    encoded = base64.b64encode(before + secret.encode()).decode()
    if len(secret.encode()) > 8:
        assert REDACTED in redactor.text(encoded)
