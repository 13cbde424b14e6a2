"""`trace explain` reports what the traces have, and nothing else."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import pytest
from typer.testing import CliRunner
from viewed_traces import hostile, order, run_record, training

from mcp_rollout.rollout.cli.trace import app
from mcp_rollout.rollout.environment.task import Origin
from mcp_rollout.rollout.trace.reader import Traces
from mcp_rollout.rollout.trace.record import StopReason, Trace
from mcp_rollout.rollout.trace.store import TraceStore
from mcp_rollout.rollout.viewer.explain import Explanation, explain
from mcp_rollout.rollout.viewer.pages import Pages


def explained(directory: Path) -> Explanation:
    with Traces(directory) as traces:
        return explain(Pages(traces))


def written(directory: Path, traces: Iterable[Trace]) -> Explanation:
    store = TraceStore(directory)
    for trace in traces:
        store.append(trace)
    store.close()
    return explained(directory)


def titles(explanation: Explanation) -> set[str]:
    return {finding.title for finding in explanation.findings}


def group(directory: Path, step: int, right: Iterable[bool], row: int = 0) -> list[Trace]:
    run = run_record(directory)
    return [
        order(Origin(row=row, sample=sample, step=step, uid=f"{step}-{row}"), run, is_right=is_right)
        for sample, is_right in enumerate(right)
    ]


def test_a_held_out_error_leads_to_the_tokens_that_training_pushed_down(tmp_path: Path) -> None:
    training(tmp_path)
    low = next(each for each in explained(tmp_path).findings if each.title.startswith("Low reward"))
    assert low.title == "Low reward: track returned an error" and "2 of 3 held-out trajectories of step 4" in low.detail
    held_out, in_training = low.groups
    assert {each.id for each in held_out.examples} == {"held-out-4-1-0", "held-out-4-2-0"}
    assert all("only shipped orders can be tracked" in each.note for each in held_out.examples)
    assert held_out.total == 2 and "in 2 of them (100%; of the others 0%)" in low.detail
    assert in_training.total == 12 and len(in_training.examples) == 3
    for each in in_training.examples:
        assert [token.text for token in each.tokens] == ["t"] and each.view["token"] == each.tokens[0].index
        assert each.tokens[0].advantage == -1.0 and each.tokens[0].push == pytest.approx(-(1 - 0.4966), abs=1e-3)


def test_a_findings_number_is_that_of_its_list(tmp_path: Path) -> None:
    traces = group(tmp_path, 1, [False] * 6)
    for trace in traces[:2]:  # their kind is the limit, and yet a call of theirs failed
        trace.stop_reason = StopReason.TOKEN_LIMIT
    found = {each.title: each for each in written(tmp_path, [*traces, *group(tmp_path, 1, [True], row=1)]).findings}
    low = found["Low reward: track returned an error"]
    assert low.groups[0].total == 6 and low.detail.startswith("6 of 7 training trajectories of step 1")
    assert "in 6 of them (100%; of the others 0%): track returned an error" in low.detail
    assert (
        "in 2 of them (33%; of the others 0%): ended by token_limit" in found["Low reward: ended by token_limit"].detail
    )


def test_kinds_of_errors_are_ranked_by_how_much_rarer_they_are_among_the_others(tmp_path: Path) -> None:
    traces = [each for row in range(10) for each in group(tmp_path, 1, [False, False, True, True], row=row)]
    for trace in traces:
        assert trace.reward is not None
        is_low = trace.reward.score == 0
        trace.turns[1].tools[0].is_error = True  # in all of the low ones, and in 80% of the others
        if not is_low and trace.origin.row < 2:
            trace.turns[1].tools[0].is_error = False
        if is_low and trace.origin.row >= 7:  # in 30% of the low ones alone
            trace.stop_reason = StopReason.TOKEN_LIMIT
            trace.turns[1].tools[0].name = "cancel"
        elif is_low:
            trace.turns[1].tools[0].name = "cancel"
    found = [each for each in written(tmp_path, traces).findings if each.title.startswith("Low reward")]
    assert [each.title for each in found] == [
        "Low reward: ended by token_limit",
        "Low reward: cancel returned an error",
    ]
    assert "in 6 of them (30%; of the others 0%)" in found[0].detail and found[0].weight == "problem"
    assert "in 20 of them (100%; of the others 80%)" in found[1].detail
    for each in found:
        tasks = [example.title.split(",")[0] for example in each.groups[0].examples]
        assert len(set(tasks)) == len(tasks) == 3


def test_the_best_trajectories_without_a_call_that_succeeded_come_first(tmp_path: Path) -> None:
    traces = [each for row in range(5) for each in group(tmp_path, 1, [True, True, False, False], row=row)]
    for number, trace in enumerate(traces):
        assert trace.reward is not None
        trace.reward.score += number / 1000
        if number in (8, 17):  # one of the best two, and one of the many
            for turn in trace.turns:
                for event in turn.tools:
                    event.is_error = True
    found = written(tmp_path, traces).findings
    assert found[0].title == "Highest rewards without a call that succeeded"
    assert found[0].detail.startswith("1 of the 3 best trajectories, with a reward of up to 1.017, have no call")
    assert [each.id for each in found[0].groups[0].examples] == [traces[17].id] and found[0].groups[0].total == 1


def test_what_is_not_there_is_not_reported(tmp_path: Path) -> None:
    traces = [trace for step in (1, 2, 3, 4) for trace in group(tmp_path, step, [True, False, True, True])]
    for trace in traces:
        trace.reward.parts = {"done": trace.reward.score}  # pyright: ignore[reportOptionalMemberAccess]
    found = written(tmp_path, traces)
    assert titles(found) == {"Low reward: track returned an error"} and len(found.absent) == 9


def test_a_tool_that_always_fails_is_named_from_five_calls_on(tmp_path: Path) -> None:
    traces = group(tmp_path, 1, [False, False, True, True]) + group(tmp_path, 2, [False, False, False])
    assert "A tool that nearly always fails: track" in titles(written(tmp_path, traces))


def test_findings_of_unreadable_calls_lead_to_their_trajectories(tmp_path: Path) -> None:
    traces = group(tmp_path, 1, [False] * 5 + [True] * 3)
    for trace in traces[:5]:
        trace.turns[1].tools[0].name = ""  # as `Format.unreadable` records them
    found = {each.title: each for each in written(tmp_path, traces).findings}
    low, failing = (
        found["Low reward: (unreadable call) returned an error"],
        found["A tool that nearly always fails: (unreadable call)"],
    )
    assert "in 5 of them (100%; of the others 0%)" in low.detail and failing.detail.startswith("5 of 5 calls")
    with Traces(tmp_path) as traces_read:
        for finding in (low, failing):
            (linked,) = finding.groups
            listed = Pages(traces_read).list(linked.filters or {})["rows"]
            assert [row["sample"] for row in listed] == [0, 1, 2, 3, 4] and linked.total == 5


def test_a_part_that_is_always_lowest_is_stuck(tmp_path: Path) -> None:
    found = written(tmp_path, group(tmp_path, 1, [True, False]))
    assert "Reward stuck in one part: polite" in titles(found)
    assert "Reward stuck in one part: done" not in titles(found)


def test_groups_with_one_reward_have_no_spread(tmp_path: Path) -> None:
    found = written(tmp_path, group(tmp_path, 1, [True] * 3) + group(tmp_path, 1, [True, False], row=1))
    (flat,) = [each for each in found.findings if each.title == "Groups without spread"]
    assert "1 of 2 groups have one reward only (1 the full one)" in flat.detail
    assert flat.groups[0].examples[0].id.startswith("train-1-0")


def test_truncated_and_withdrawn_trajectories_are_counted(tmp_path: Path) -> None:
    traces = group(tmp_path, 1, [True] * 4)
    traces[0].stop_reason = StopReason.TOKEN_LIMIT
    traces[1].fail("server_unavailable", "gone\x1b[2J")
    found = written(tmp_path, traces)
    details = {each.title: each.detail for each in found.findings}
    assert details["Truncation"] == "1 of 3 trajectories were cut: token_limit 1."
    assert "server_unavailable 1" in details["Withdrawn trajectories"]


def test_drift_is_found_in_records(tmp_path: Path) -> None:
    traces = group(tmp_path, 1, [False, False, True])
    traces[1].turns[0].tools[0].text = "shipped"
    found = {each.title: each for each in written(tmp_path, traces).findings}
    assert "shop/look" in found["Drift"].detail and "shipped" in found["Drift"].detail


def test_siblings_whose_first_prompts_differ_are_found(tmp_path: Path) -> None:
    traces = [each for row in range(2) for each in group(tmp_path, 1, [True, False], row=row)]
    assert "Siblings with different prompts" not in titles(written(tmp_path / "same", traces))
    traces[0].prompt_ids[-1] += 1
    found = {each.title: each for each in written(tmp_path / "differing", traces).findings}
    assert found["Siblings with different prompts"].detail.startswith("1 of 2 groups: their rewards compare")


def test_the_terminal_shows_it_with_commands_and_no_hidden_characters(tmp_path: Path) -> None:
    training(tmp_path / "run")
    hostile(tmp_path / "hostile")
    done = CliRunner().invoke(app, ["explain", str(tmp_path)], standalone_mode=False)
    assert done.exception is None and done.return_value == 1
    assert "track returned an error" in done.stdout and "pushed down most: t (probability 0.50" in done.stdout
    assert "mcp-rollout trace show" in done.stdout
    assert not {"\x1b", "\u202e", "\x00", "\u200b"} & set(done.stdout)
