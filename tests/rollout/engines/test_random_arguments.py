"""Random arguments: what a schema allows, patterns included, the same in every process."""

from __future__ import annotations

import os
import subprocess
import sys
from random import Random
from typing import Any

import pytest
from jsonschema import Draft202012Validator
from mcp import Client
from mcp.server.mcpserver import MCPServer

from mcp_rollout.mcp_servers import calculator, gsm8k_tools, research, retail, sandbox
from mcp_rollout.rollout.engines.random_arguments import matches, plain_arguments, random_arguments, random_match


def schema(**text: Any) -> dict[str, Any]:
    return {"type": "object", "properties": {"x": {"type": "string", **text}}, "required": ["x"]}


@pytest.mark.parametrize(
    "pattern",
    [
        r"^[0-9]{5}$",
        r"^[A-Z]{2}$",
        r"^(card|paypal)_\d{4}$",
        r"^#?W\d+$",
        r"\.txt$",
        r"^[^/\s]+(/[^/\s]+)*$",
        r"^\w{90}$",
    ],
)
def test_text_fits_its_pattern(pattern: str) -> None:
    for seed in range(10):
        assert matches(random_arguments(schema(pattern=pattern), Random(seed))["x"], pattern)


def test_text_fits_its_pattern_and_its_length() -> None:
    bounds = {"minLength": 4, "maxLength": 6}
    for seed in range(10):
        assert 4 <= len(random_arguments(schema(pattern="^[a-z]+$", **bounds), Random(seed))["x"]) <= 6


@pytest.mark.parametrize(
    "pattern",
    [
        "((a{1000}){1000}){1000}",
        "(((a*)*)*)*" * 40,
        "(" * 400 + "a" + ")" * 400,
        r"(a)\1",
        "(?<=a)b",
        "[",
        "a" * 501,
        r"\p{Lu}",
    ],
)
def test_a_pattern_that_is_too_large_or_not_understood_is_left_alone(pattern: str) -> None:
    assert random_match(pattern, Random(0)) is None
    assert random_arguments(schema(pattern=pattern), Random(0))["x"]


@pytest.mark.anyio
@pytest.mark.parametrize(
    "environment", [calculator, gsm8k_tools, research, retail, sandbox], ids=lambda it: it.__name__
)
async def test_every_tool_of_our_environments_is_reached(environment: Any) -> None:
    server: MCPServer = environment.create_server()
    async with Client(server) as client:
        for tool in (await client.list_tools()).tools:
            for seed in range(10):
                arguments = random_arguments(tool.input_schema, Random(seed))
                Draft202012Validator(tool.input_schema).validate(arguments)


def test_repeats_without_end_are_short() -> None:
    assert max(len(random_match("^a*b+c{2,}$", Random(seed)) or "") for seed in range(50)) <= 8 + 8 + 10


def test_plain_arguments_keep_the_word_where_the_pattern_allows_it() -> None:
    assert plain_arguments(schema(pattern=r"^\w+$"), "word") == {"x": "word"}
    assert matches(plain_arguments(schema(pattern=r"^\d{5}$"), "word")["x"], r"^\d{5}$")


def test_the_same_seed_gives_the_same_text_in_another_process() -> None:
    """rstr chooses from sets of characters, whose order depends on the process."""
    program = (
        "from random import Random\nfrom mcp_rollout.rollout.engines.random_arguments import random_match\n"
        "print([random_match('^[^a-f]{30}$', Random(seed)) for seed in range(3)])"
    )
    here = f"{[random_match('^[^a-f]{30}$', Random(seed)) for seed in range(3)]}\n"
    environment = {**os.environ, "PYTHONHASHSEED": "1"}
    ran = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, timeout=60)
    assert ran.stdout == here, ran.stderr
