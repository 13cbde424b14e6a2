"""How texts are compared with what is expected, and that no text makes it slow."""

from __future__ import annotations

import pytest

from rollout.environment.matching import Match, matches, unusable


@pytest.mark.parametrize(
    ("match", "text", "expected", "same"),
    [
        ("text", " The Nile. ", "the nile", True),
        ("text", "1,000.0", "1000", True),
        ("text", "It is the Nile", "the nile", False),
        ("text", "", "", False),
        ("exact", " Nile\n", "Nile", True),
        ("exact", "nile", "Nile", False),
        ("exact", "", "", False),
        ("number", "3 apples cost 1,234.50 euros.", "1234.5", True),
        ("number", "From -2 to -4.", "-4", True),
        ("number", "The answer is 41.", "42", False),
        ("number", "None.", "42", False),
        ("regex", "It is 42.", "4[12]", True),
        ("regex", "It is 42.", "^4[12]$", False),
        ("json", '{"b": 1, "a": [2.0, true]}', '{"a": [2, true], "b": 1}', True),
        ("json", 'Here:\n```json\n{"a": 1}\n```\nDone.', '{"a": 1}', True),
        ("json", '```\n{"a": 2}\n```\n```\n{"a": 1}\n```', '{"a": 1}', True),
        ("json", '{"a": 1, "b": 2}', '{"a": 1}', False),
        ("json", "[1, 2]", "[2, 1]", False),
        ("json", "true", "1", False),
        ("json", "null", "null", True),
        ("json", 'It is {"a": 1}', '{"a": 1}', False),
    ],
)
def test_a_text_is_what_was_expected_or_not(match: Match, text: str, expected: str, same: bool) -> None:
    assert matches(Match(match), text, expected) is same


@pytest.mark.parametrize("match", Match)
@pytest.mark.parametrize(
    "text", ["x" * 2**20 + "!", "9" * 2**20, "[" * 2**20, "```" + "\n" * 2**20, "```\n" * 2**18, "1," * 2**19, "\ud800"]
)
def test_a_long_or_odd_text_matches_nothing_and_costs_little(match: Match, text: str) -> None:
    # With Python's `re` the expression alone would take 2**20 steps to the power of two on the first of these.
    expected = {Match.REGEX: "^(x+x+)+y$", Match.JSON: "[]", Match.NUMBER: "7"}.get(match, "seven")
    assert not matches(match, text, expected)


@pytest.mark.parametrize(
    ("match", "expected", "problem"),
    [
        ("number", "forty-two", "is not a number: 'forty-two'"),
        ("regex", "(open", "is not a regular expression: error: unclosed group"),
        ("regex", "(?=x)", "is not a regular expression: error: look-around"),
        ("json", "{", "is not JSON: '{'"),
    ],
)
def test_what_nothing_can_match_is_named(match: Match, expected: str, problem: str) -> None:
    found = unusable(Match(match), expected)
    assert found is not None and found[0].startswith(problem) and "another `match`" in found[1]
    assert unusable(Match(match), "1") is None
