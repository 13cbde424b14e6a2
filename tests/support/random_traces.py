"""Traces with every kind of content, drawn by hypothesis and built by the methods that a rollout uses."""

from __future__ import annotations

from array import array
from typing import Any

from hypothesis import strategies as st

from mcp_rollout.gateway.server_events import Notification, NotificationKind, RequestKind, ServerRequest
from mcp_rollout.gateway.types import CallFault, Content, ContentKind, ToolResult
from mcp_rollout.rollout.environment.sections import AgentConfig, FilterAction, Strategy
from mcp_rollout.rollout.environment.task import Check, Origin, Task, VerlColumns, WorldCall
from mcp_rollout.rollout.trace.events import CheckEvent, Mark, MarkKind, ToolEvent, UserEvent
from mcp_rollout.rollout.trace.outcome import StrategyRecord
from mcp_rollout.rollout.trace.record import Reward, StopReason, Trace
from mcp_rollout.rollout.types import Attempt, Call, Completion, Edit, FinishReason, Parsed, Shown

TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
NUMBERS = st.floats(allow_nan=False, allow_infinity=False, width=32)
IDS = st.lists(st.integers(0, 2**31 - 1), max_size=20)
JSON_OBJECTS = st.dictionaries(
    TEXTS, st.recursive(st.none() | st.booleans() | st.integers() | NUMBERS | TEXTS, st.lists, max_leaves=4), max_size=3
)
NAMES = TEXTS.filter(bool)
OPTIONAL_IDS = st.none() | TEXTS
OPTIONAL_NUMBERS = st.none() | st.integers(0, 9)
ATTEMPTS = st.builds(Attempt, tokens=st.integers(1, 9), weights_version=OPTIONAL_NUMBERS, seed=OPTIONAL_NUMBERS)


def messages() -> st.SearchStrategy[dict[str, Any]]:
    images = st.lists(st.just({"type": "image", "image": "data:image/png;base64,AAAA"}), min_size=1, max_size=2)
    blocks = st.builds(lambda before, text: [*before, {"type": "text", "text": text}], images, TEXTS) | images
    plain = st.fixed_dictionaries({"role": st.sampled_from(["system", "user", "assistant"]), "content": TEXTS | blocks})
    called = {"type": "function", "function": {"name": "x", "arguments": {"a": 1}}}
    return plain | st.just({"role": "assistant", "content": None, "tool_calls": [called], "name": "fewshot"})


@st.composite
def traces(draw: st.DrawFn) -> Trace:
    """A trace of up to four turns; with and without logprobs, dropped thoughts, cut results, images and a cut end."""
    prompt = draw(st.lists(messages(), min_size=1, max_size=3))
    task = Task(
        environment=draw(st.sampled_from(["retail", "calculator"])),
        task=draw(TEXTS),
        seed=draw(st.integers(-(2**63), 2**63 - 1)),
        tools=draw(st.none() | st.tuples(TEXTS)),
        later_tools=draw(st.lists(TEXTS, max_size=2)),
        prompt=tuple(prompt),
        answer=draw(OPTIONAL_IDS),
        setup=draw(st.lists(st.builds(WorldCall, name=NAMES, arguments=JSON_OBJECTS), max_size=2)),
        check=draw(st.lists(st.builds(Check, name=NAMES, returns=TEXTS, error=st.booleans()), max_size=2)),
        verl=draw(st.none() | st.builds(VerlColumns, data_source=TEXTS, extra_info=JSON_OBJECTS)),
    )
    origin = Origin(
        row=draw(st.integers(0, 9)),
        sample=draw(st.integers(0, 9)),
        step=draw(st.integers(-1, 9)),
        validate=draw(st.booleans()),
        uid=draw(TEXTS),
        split=draw(TEXTS),
        attempt=draw(st.integers(0, 3)),
        parent=draw(OPTIONAL_IDS),
        branched_at=draw(st.none() | st.integers(0, 9)),
    )
    trace = Trace.begin(draw(TEXTS), task, origin)
    for call in (*task.setup, *task.check):
        made = Call(name=call.name, arguments=dict(call.arguments))
        event = ToolEvent.of(made, draw(tool_results()), Shown(text=draw(TEXTS)), draw(TEXTS))
        if isinstance(call, Check):
            trace.checks.append(CheckEvent(call=event, holds=draw(st.booleans())))
        else:
            trace.setup.append(event)
    agents = st.builds(lambda given: AgentConfig.model_validate({"use": "module:Class", "with": given}), JSON_OBJECTS)
    trace.agent = draw(st.none() | agents)
    if draw(st.booleans()):
        trace.messages.append({"role": "user", "content": draw(TEXTS)})  # a simulated user's opening
    trace.strategy = draw(
        st.builds(
            StrategyRecord,
            use=st.sampled_from(Strategy),
            shared_turns=st.integers(0, 9),
            replayed_calls=st.integers(0, 9),
            waited_s=NUMBERS,
            note=TEXTS,
        )
    )
    trace.open(draw(IDS), images=draw(st.integers(0, 3)))
    for _ in range(draw(st.integers(0, 4))):
        draw(turns(trace))
    if trace.turns and draw(st.booleans()):
        trace.take_back(draw(st.integers(0, len(trace.response_ids))))
    trace.stop_reason = draw(st.none() | st.sampled_from(StopReason))
    if trace.stop_reason is StopReason.FAILED:
        trace.fail("server_unavailable", draw(TEXTS))
    if draw(st.booleans()):
        parts = draw(st.dictionaries(TEXTS, NUMBERS, max_size=3))
        given_turns = draw(st.lists(NUMBERS, max_size=3))
        trace.reward = Reward(score=draw(NUMBERS), parts=parts, turns=given_turns, penalty=draw(NUMBERS))
    trace.server_events = draw(server_events())
    trace.run, trace.began_at, trace.elapsed_s = draw(TEXTS), draw(NUMBERS), draw(NUMBERS)
    return trace


@st.composite
def turns(draw: st.DrawFn, trace: Trace) -> None:
    if trace.turns and draw(st.booleans()):
        trace.open(draw(IDS))
    ids = draw(IDS.filter(bool))
    logprobs = array("f", draw(st.lists(NUMBERS, min_size=len(ids), max_size=len(ids)))).tolist()
    cuts = sorted(draw(st.tuples(*[st.integers(0, len(ids))] * 4)))
    completion = Completion(
        ids=ids,
        logprobs=draw(st.sampled_from([logprobs, None])),
        finish_reason=draw(st.sampled_from(FinishReason)),
        weights_version=draw(st.tuples(st.none() | st.integers(0, 9), st.none() | st.integers(0, 9))),
        forced=draw(st.sampled_from([None, (cuts[2], cuts[3])])),
        attempts=tuple(draw(st.lists(ATTEMPTS, max_size=2))),
    )
    calls = draw(st.lists(st.builds(Call, name=TEXTS, arguments=JSON_OBJECTS, id=OPTIONAL_IDS), max_size=3))
    parsed = Parsed(content=draw(TEXTS), thinking=draw(TEXTS), thoughts=((cuts[0], cuts[1]),), calls=tuple(calls))
    turn = trace.add_completion(completion, parsed, Edit(appended=ids), mask_thinking=draw(st.booleans()))
    turn.began_at, turn.request_ids, turn.seeds = draw(NUMBERS), draw(st.lists(TEXTS, max_size=2)), [3]
    turn.marks.append(Mark(kind=draw(st.sampled_from(MarkKind)), detail=draw(TEXTS), action=FilterAction.MARK))
    turn.server_events, turn.agent_message = draw(server_events()), draw(TEXTS)
    ends_here = draw(st.integers(0, 5)) == 0  # calls that were never recorded, or recorded without their messages
    if calls and not ends_here:
        results = [draw(tool_results()) for _ in calls]
        shown = [draw(st.sampled_from([Shown(text=result.text), draw(shown_parts())])) for result in results]
        messages = trace.add_calls(calls, results, shown, [draw(st.none() | TEXTS) for _ in calls])
        trace.messages += messages[: draw(st.sampled_from([0, len(messages), len(messages)]))]
    elif not calls and not ends_here and draw(st.booleans()):
        said = draw(TEXTS)
        trace.add_user(
            UserEvent(
                seq=1,
                message=said,
                done=draw(st.booleans()),
                reward=draw(st.none() | NUMBERS),
                state=draw(OPTIONAL_IDS),
            )
        )
        trace.messages.append({"role": "user", "content": said})
    trace.add_context(Edit(appended=draw(IDS), images=draw(st.integers(0, 1))))


def tool_results() -> st.SearchStrategy[ToolResult]:
    text = st.builds(Content, kind=st.just(ContentKind.TEXT), text=TEXTS)
    image = st.builds(Content, kind=st.just(ContentKind.IMAGE), data=st.binary(min_size=1, max_size=4), mime_type=TEXTS)
    return st.builds(
        ToolResult,
        content=st.lists(text | image, max_size=2).map(tuple),
        structured=st.none() | JSON_OBJECTS,
        is_error=st.booleans(),
        reward=st.none() | NUMBERS,
        coerced=JSON_OBJECTS,
        fault=st.none() | st.sampled_from(CallFault),
    )


def shown_parts() -> st.SearchStrategy[Shown]:
    return st.builds(Shown, text=TEXTS, cut_tokens=st.integers(0, 9), images=st.lists(TEXTS, max_size=1).map(tuple))


@st.composite
def server_events(draw: st.DrawFn) -> Any:
    from mcp_rollout.gateway.server_events import ServerEvents

    asked = ServerRequest(
        server=draw(TEXTS),
        tool="t",
        kind=RequestKind.ELICITATION,
        asked=draw(JSON_OBJECTS),
        answer=draw(st.none() | JSON_OBJECTS),
        refused=draw(OPTIONAL_IDS),
    )
    note = Notification(server="s", tool="t", kind=NotificationKind.LOG, text=draw(TEXTS), progress=draw(NUMBERS))
    return ServerEvents(
        requests=[asked] * draw(st.integers(0, 1)),
        notifications=[note] * draw(st.integers(0, 1)),
        more_requests=draw(st.integers(0, 2)),
        more_notifications=draw(st.integers(0, 2)),
    )
