"""The trace keeps ids, mask and logprobs in step, whatever is appended, inserted or trimmed."""

from hypothesis import given
from hypothesis import strategies as st

from mcp_rollout.rollout.environment.task import Origin, Task
from mcp_rollout.rollout.trace.record import SpanKind, Trace
from mcp_rollout.rollout.types import Completion, Edit, Parsed

TASK = Task(environment="e", task="t", seed=1, prompt=({"role": "user", "content": "hi"},))
IDS = st.lists(st.integers(0, 99), max_size=6)


def new_trace() -> Trace:
    return Trace.begin("id", TASK, Origin())


def complete(trace: Trace, ids: list[int], *, thinking: int = 0, mask_thinking: bool = False) -> None:
    completion = Completion(ids=ids, logprobs=[-float(token) - 1 for token in ids])
    parsed = Parsed(content="", thoughts=((0, thinking),))
    trace.add_completion(completion, parsed, Edit(appended=ids), mask_thinking=mask_thinking)


@given(st.lists(st.tuples(IDS.filter(bool), IDS, IDS), min_size=1, max_size=8))
def test_mask_is_one_exactly_on_sampled_ids_and_logprobs_stay_with_them(
    turns: list[tuple[list[int], list[int], list[int]]],
) -> None:
    trace = new_trace()
    expected: list[tuple[int, int, float]] = []
    for sampled, inserted, appended in turns:
        complete(trace, sampled)
        trace.add_context(Edit(inserted=inserted, appended=appended))
        expected += [(token, 1, -float(token) - 1) for token in sampled]
        expected += [(token, 0, 0.0) for token in inserted + appended]
    assert list(zip(trace.response_ids, trace.loss_mask, trace.logprobs, strict=True)) == expected
    covered = [position for span in trace.spans for position in range(span.start, span.end)]
    assert covered == list(range(len(trace.response_ids)))


def test_masked_thinking_stays_in_the_context_and_leaves_the_loss() -> None:
    trace = new_trace()
    complete(trace, [1, 2, 3], thinking=2, mask_thinking=True)
    assert trace.response_ids == [1, 2, 3]
    assert trace.loss_mask == [0, 0, 1]
    assert trace.logprobs == [-2.0, -3.0, -4.0]
    assert [(span.kind, span.start, span.end) for span in trace.spans] == [
        (SpanKind.THINKING, 0, 2),
        (SpanKind.COMPLETION, 2, 3),
    ]


def test_a_sampled_token_that_a_template_trims_is_kept_aside() -> None:
    trace = new_trace()
    complete(trace, [1, 2, 9])
    trace.add_context(Edit(removed=1, inserted=[7], appended=[8]))
    assert trace.response_ids == [1, 2, 7, 8]
    assert trace.loss_mask == [1, 1, 0, 0]
    assert trace.turns[0].trimmed == [9]


def test_an_engine_without_logprobs_is_remembered() -> None:
    trace = new_trace()
    trace.add_completion(Completion(ids=[1]), Parsed(content=""), Edit(appended=[1]), mask_thinking=False)
    assert not trace.has_logprobs
