"""Answers of the field, each compared with what may be expected of it."""

from __future__ import annotations

import pytest
from field_cases import FieldCase, field_cases

from mcp_rollout.rollout.environment.matching import Match, matches


@pytest.mark.parametrize("case", field_cases("answers"))
def test_an_answer_is_what_was_expected_or_not(case: FieldCase) -> None:
    match, text, timeout_s = Match(case.given["match"]), case.given["text"], case.given.get("timeout_s", 30.0)
    found = {expected: matches(match, text, expected, timeout_s=timeout_s) for expected in case.expected}
    assert found == case.expected
