"""The demo's summary by kind of task is computed from what traces hold."""

from __future__ import annotations

import pytest

from lab.demo.outcomes import Served, summarise
from mcp_rollout.gateway.types import Content, ContentKind, ToolResult
from mcp_rollout.rollout.environment.task import Origin, Task
from mcp_rollout.rollout.trace.record import Reward, StopReason, Trace
from mcp_rollout.rollout.types import Call, Completion, Edit, FinishReason, Parsed

USER = ({"role": "user", "content": "Cancel it."},)


def played(
    index: int,
    score: float,
    *,
    said: str = "Your order is cancelled.",
    finish: FinishReason = FinishReason.STOP,
    stop: StopReason = StopReason.USER_DONE,
    slice_: str = "counter-fitting",
) -> Trace:
    task = f"{slice_}-test-{index:04d}"
    trace = Trace.begin(f"{index}", Task(environment="shop", task=task, seed=index, prompt=USER), Origin())
    look = Parsed(content="", calls=(call := Call(name="list_orders", arguments={}),))
    trace.add_completion(Completion(ids=[1]), look, Edit(appended=[1]), mask_thinking=False)
    found = ToolResult(content=(Content(kind=ContentKind.TEXT, text="{}"),))
    trace.messages += trace.add_calls([call], [found])
    last = Completion(ids=[2], finish_reason=finish)
    trace.add_completion(last, Parsed(content=said), Edit(appended=[2]), mask_thinking=False)
    trace.reward, trace.stop_reason = Reward(score=score), stop
    return trace


def test_the_full_reward_is_counted_by_the_state_of_the_order() -> None:
    # Tasks cycle through pending, shipped, delivered; 0.6 is a cancellation that the customer was not told of.
    outcomes = summarise([played(0, 1.0), played(1, 0.0), played(2, 1.0), played(3, 0.6), played(4, 0.0)])
    counts = {kind: (served.count, served.of) for kind, served in outcomes.by_kind.items()}
    assert counts == {"pending": (1, 2), "shipped": (0, 2), "delivered": (1, 1)}
    assert (outcomes.total.count, outcomes.total.of) == (2, 5)
    assert outcomes.record()["by_kind"] == {"pending": [1, 2], "shipped": [0, 2], "delivered": [1, 1]}


def test_where_a_wish_decides_it_is_counted_by_state_and_wish() -> None:
    served = [played(index, float(index < 4), slice_="wish-fitting") for index in range(8)]
    counts = {kind: (served.count, served.of) for kind, served in summarise(served).by_kind.items()}
    # A wish stays for the three states, and then the other one comes.
    assert counts == {
        "pending, out": (1, 2),
        "pending, news": (1, 1),
        "shipped, out": (1, 2),
        "shipped, news": (0, 1),
        "delivered, out": (1, 1),
        "delivered, news": (0, 1),
    }


def test_the_interval_is_that_of_the_number_of_rows() -> None:
    low, high = Served(count=54, of=67).interval
    assert (round(low, 3), round(high, 3)) == (0.696, 0.883)


def test_a_turn_or_a_trajectory_cut_by_a_token_limit_counts_as_ended_by_it() -> None:
    cut = played(1, 0.0, finish=FinishReason.LENGTH)
    full = played(2, 0.0, stop=StopReason.TOKEN_LIMIT)
    assert summarise([played(0, 1.0), cut, full, played(3, 1.0)]).token_limit == 0.5


def test_a_passage_three_times_in_a_row_is_a_loop_and_an_ordinary_answer_is_not() -> None:
    loop = played(0, 0.0, said="I am sorry, that is not possible, that is not possible, that is not possible: ")
    answers = [
        played(1, 1.0, said="Your order will arrive on 2026-03-22."),
        played(2, 0.0, said="I am sorry, that is not possible: your order is delivered."),
    ]
    assert summarise([loop]).looping == 1.0
    assert summarise(answers).looping == 0.0


def test_traces_of_another_environment_are_refused() -> None:
    trace = played(0, 1.0)
    trace.task = Task(environment="retail", task="retail-test-0000", seed=0, prompt=USER)
    with pytest.raises(LookupError, match="not a short task"):
        summarise([trace])
