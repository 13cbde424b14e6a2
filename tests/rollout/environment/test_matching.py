"""How texts are compared with what is expected, and that no text makes it slow."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mcp_rollout.rollout.environment.matching import Match, matches, unusable

DIGITS = st.integers(0, 10**12)
DECIMALS = st.text("0123456789", max_size=6)
SIGNS = st.sampled_from(["-", "\u2212", "\u2013", "\uff0d", "\u2011", "minus "])


def grouped(whole: int, mark: str) -> str:
    return f"{whole:,}".replace(",", mark)


@st.composite
def numbers(draw: st.DrawFn) -> tuple[Fraction, str]:
    """A number, written in a way that has one reading."""
    whole, decimals = draw(DIGITS), draw(DECIMALS)
    value = Fraction(f"{whole}.{decimals or 0}")
    pairs = [(mark, ".") for mark in (",", "'", "\u2019", "_", "\u00a0", "\u2009", "\u202f")]
    pairs += [(".", ","), ("\u2009", ","), ("", ".")]
    mark, point = draw(st.sampled_from(pairs))
    written = (grouped(whole, mark) if mark else str(whole)) + (point + decimals if decimals else "")
    if point == "," and (whole < 1000 or (not decimals and whole < 10**6)):
        written = f"{whole}.{decimals}" if decimals else str(whole)  # a comma alone may divide two numbers
    if whole == 0 and decimals and draw(st.booleans()):
        written = f".{decimals}"
    power = draw(st.integers(-9, 9))
    if draw(st.booleans()):
        value *= Fraction(10) ** power
        raised = str(power).translate(str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"))
        forms = (
            f"e{power}",
            f"E{power}",
            f" \u00d7 10^{power}",
            f"*10**{power}",
            f"\\times 10^{{{power}}}",
            f"\u00b710{raised}",
        )
        written += draw(st.sampled_from(forms))
    elif draw(st.booleans()):
        under = draw(st.integers(1, 99))
        value, written = value / under, f"{written}/{under}"
    sign = draw(st.sampled_from(["", "+", "-"]))
    return (-value, draw(SIGNS) + written) if sign == "-" else (value, sign + written)


@given(numbers(), numbers())
@settings(max_examples=200, deadline=None)
def test_a_number_written_in_any_way_with_one_reading_equals_itself_and_no_other(
    one: tuple[Fraction, str], other: tuple[Fraction, str]
) -> None:
    exact = f"{one[0].numerator}/{one[0].denominator}"
    for match in (Match.TEXT, Match.NUMBER):
        assert matches(match, one[1], exact) and matches(match, exact, one[1])
        assert matches(match, one[1], other[1]) is (one[0] == other[0])
    said = f"So it is {one[1]}, as was asked.", f"**Answer:** ${one[1]}$", f"\\boxed{{{one[1]}}}"
    assert all(matches(Match.NUMBER, text, exact) for text in said)


AMBIGUOUS = st.one_of(
    st.builds(lambda a, b: f"{a},{b}", DIGITS, st.text("0123456789", min_size=1, max_size=2)),
    st.builds(lambda a: f"0,{a}", st.text("0123456789", min_size=1)),
    st.builds(lambda a: grouped(a, " "), st.integers(1000, 10**12)),
    st.builds(lambda a, b: f"{a}.{b}.{a}", st.integers(0, 99), st.integers(0, 99)),
    st.builds(lambda a, b, mark: f"{a}{mark}{b}", DIGITS, DIGITS, st.sampled_from("-\u2013:")),
    st.builds(lambda a, b: f"({a}, {b}]", DIGITS, DIGITS),
    st.builds(lambda a: f"- {a}", DIGITS),
)


@given(AMBIGUOUS, st.one_of(numbers().map(lambda each: each[1]), AMBIGUOUS))
@settings(max_examples=200, deadline=None)
def test_what_has_several_readings_equals_only_the_same_text(text: str, other: str) -> None:
    assert matches(Match.TEXT, text, f" {text} ") and not matches(Match.NUMBER, text, text)
    assert matches(Match.TEXT, text, other) is (text == other) and not matches(Match.NUMBER, text, other)


VERLS = ("0.5", "\\frac12", "(1,2]", "50\\%", "1,000")


def verls_math() -> Callable[[str, str], float]:
    """verl's own comparison, without the rest of verl and without its processes."""
    spec = importlib.util.find_spec("verl")
    assert spec is not None and spec.submodule_search_locations
    path = f"{spec.submodule_search_locations[0]}/utils/reward_score/math_verify.py"
    found = importlib.util.spec_from_file_location("verls_math", path)
    assert found is not None and found.loader is not None
    module: Any = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    return module._verify_in_subprocess  # its own processes take seconds to start


def test_math_compares_as_verl_does() -> None:
    verls = verls_math()
    answers = [f"The answer is ${each}$." for each in VERLS[:3]] + [f"\\boxed{{{each}}}" for each in VERLS[3:]]
    for answer in answers:
        for truth in VERLS:
            assert matches(Match.MATH, answer, truth) is bool(verls(f"\\boxed{{{truth}}}", answer)), (answer, truth)


def test_math_without_its_package_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    assert unusable(Match.MATH, "1") is None
    monkeypatch.setitem(sys.modules, "math_verify", None)  # as if it were not installed
    problem, remedy = unusable(Match.MATH, "1") or ("", "")
    assert "math-verify is not installed" in problem and remedy.endswith("[math]'")


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


@pytest.mark.parametrize("match", [each for each in Match if each is not Match.MATH])
@pytest.mark.parametrize(
    "text",
    [
        "x" * 2**20 + "!",
        "9" * 2**20,
        "[" * 2**20,
        "```" + "\n" * 2**20,
        "```\n" * 2**18,
        "1," * 2**19,
        "- " * 2**19,
        "\ud800",
    ],
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
