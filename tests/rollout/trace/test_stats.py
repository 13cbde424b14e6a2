"""Statistics say how long trajectories are, and recommend lengths that hold all of them."""

from __future__ import annotations

import json
from collections.abc import Iterator

from hypothesis import given
from hypothesis import strategies as st

from mcp_rollout.rollout.environment.task import Origin, Task
from mcp_rollout.rollout.trace.entries import JSON_COLUMNS, Entry, entry_of
from mcp_rollout.rollout.trace.record import Reward, StopReason, Trace
from mcp_rollout.rollout.trace.segment import Lengths, recorded_lengths
from mcp_rollout.rollout.trace.stats import STEP, statistics_of
from mcp_rollout.rollout.types import Completion, Edit, Parsed


def played(*turns: tuple[int, int], prompt: int = 3, score: float = 1.0) -> Trace:
    """A trajectory whose turns sampled the first and were told the second number of tokens."""
    trace = Trace.begin(
        "t", Task(environment="shop", task="a", seed=3, prompt=({"role": "user", "content": "Hello"},)), Origin()
    )
    trace.prompt_ids = [0] * prompt
    for sampled, told in turns:
        ids = [1] * sampled
        parsed = Parsed(content="", thoughts=((0, sampled // 2),))
        trace.add_completion(Completion(ids=ids), parsed, Edit(appended=ids), mask_thinking=False)
        trace.add_context(Edit(appended=[2] * told))
    trace.reward, trace.stop_reason = Reward(score=score), StopReason.USER_DONE
    return trace


def entries(traces: list[Trace]) -> Iterator[Entry]:
    """As the index has them: objects and lists instead of JSON texts."""
    for trace in traces:
        entry = entry_of(trace)
        yield entry | {name: json.loads(entry[name]) for name in JSON_COLUMNS}


def test_thinking_and_answer_of_a_turn_are_one_completion() -> None:
    trace = played((4, 2), (7, 0))
    assert recorded_lengths(trace.segments, len(trace.turns)) == Lengths(prompt=3, response=13, completions=(4, 7))


@given(st.lists(st.lists(st.tuples(st.integers(1, 900), st.integers(0, 900)), min_size=1, max_size=5), min_size=1))
def test_recommended_lengths_hold_every_trajectory_with_room_to_spare(games: list[list[tuple[int, int]]]) -> None:
    traces = [played(*turns) for turns in games]
    stats = statistics_of(entries(traces))
    assert stats.recommended is not None
    assert stats.recommended.max_response_length >= 1.25 * max(len(trace.response_ids) for trace in traces)
    assert stats.recommended.tokens_per_turn >= 1.25 * max(sampled for turns in games for sampled, _ in turns)
    assert stats.recommended.max_prompt_length == STEP
    assert stats.distributions["turns"].longest == max(map(len, games))


def test_quantiles_are_values_that_were_seen() -> None:
    traces = [played((sampled, 0), score=sampled / 20) for sampled in range(1, 21)] + [played((4, 0)), played((5, 0))]
    for trace in traces[20:]:
        trace.fail("server_unavailable", "gone")
    stats = statistics_of(entries(traces))
    seen = stats.distributions["completion_tokens"]
    assert (seen.median, seen.p95, seen.longest) == (10, 19, 20)
    assert (stats.trajectories, stats.withdrawn, stats.reward) == (20, 2, 0.525)


def test_held_out_rewards_are_apart_and_by_step() -> None:
    traces = [played((1, 0), score=score) for score in (0.5, 1.0, 0.0, 0.25, 0.75)]
    for trace, (step, is_held_out) in zip(
        traces, [(1, False), (2, False), (0, True), (30, True), (30, True)], strict=True
    ):
        trace.origin = Origin(step=step, validate=is_held_out)
    stats = statistics_of(entries(traces))
    assert (stats.reward, stats.held_out) == (0.75, {0: 0.0, 30: 0.5})


def test_no_trajectory_is_no_recommendation() -> None:
    assert statistics_of([]).recommended is None
