"""Conversations that programs lead: what they continue, what the policy saw, and what is recorded of it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anyio
import pytest
import told
from told import SUMMARY, Engine, note, played

from mcp_rollout.rollout.loop.limits import Limits
from mcp_rollout.rollout.trace.events import MarkKind
from mcp_rollout.rollout.trace.record import StopReason, Trace

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("imported_verl")]
TWO = note('{"text": "a", "size": 1e2}') + "\n" + note('{"size": 2, "text":\n "b"}')
THREE = ["<think>\nHm.\n</think>\n\nI note  it.  \n" + note(), TWO, "<think>\nDone.\n</think>\n\nNoted (caf\u00e9)."]
PREFIXED = [text.replace('"note"', '"mcp__desk__note"') for text in THREE]


@pytest.fixture(autouse=True)
def nothing_seen() -> Iterator[None]:
    told.SEEN.clear()
    yield
    told.SEEN.clear()


def kinds(trace: Trace) -> list[list[MarkKind]]:
    return [[mark.kind for mark in turn.marks] for turn in trace.turns]


@pytest.mark.parametrize("options", [{}, {"stream": True}, {"mode": "legacy"}, {"mode": "2026-07-28"}])
async def test_a_program_plays_and_every_id_is_what_the_engine_saw(tmp_path: Path, options: dict[str, object]) -> None:
    agent = {
        "use": "mcp_rollout.rollout.programs.program:Function",
        "with": {"use": "told:plain", "arguments": options},
    }
    made = await played(tmp_path, THREE, agent=agent)
    trace = made.trace
    assert trace.failure is None and trace.stop_reason is StopReason.ANSWERED
    assert made.differences() == 0 and len(trace.segments) == 1
    assert made.notes == [("plum", 3.0), ("a", 100.0), ("b", 2.0)]
    assert [[event.text for event in turn.tools] for turn in trace.turns] == [
        ["Noted: plum"],
        ["Noted: a", "Noted: b"],
        [],
    ]
    assert [event.server for turn in trace.turns for event in turn.tools] == ["desk"] * 3
    assert trace.reward is not None and trace.reward.score == 3.0
    assert trace.opening == 2 and [len(trace.messages_of(turn)) for turn in range(3)] == [2, 3, 1]
    assert kinds(trace) == [[], [], []]


async def test_what_a_program_writes_anew_keeps_the_captured_ids(tmp_path: Path) -> None:
    malformed = '<tool_call>\n{"name": "mcp__desk__note", "arguments": {"text": \n</tool_call>'
    made = await played(tmp_path, [*PREFIXED[:2], malformed, PREFIXED[2]], run="careless")
    assert made.trace.failure is None and made.differences() == 0 and len(made.trace.segments) == 1
    assert [event.name for turn in made.trace.turns for event in turn.tools] == ["note"] * 4
    assert kinds(made.trace)[2] == [MarkKind.MALFORMED_CALL, MarkKind.VOID, MarkKind.CAME_BACK_CHANGED]
    # The ids are not those that the text would have if it were tokenised again.
    tokenizer = told.tokenizer_for("hermes")
    mine = made.trace.prompt_ids + made.trace.response_ids
    assert tokenizer.encode(tokenizer.decode(mine), add_special_tokens=False) != mine


async def test_a_repeated_request_is_sampled_once(tmp_path: Path) -> None:
    made = await played(tmp_path, THREE, run="repeating")
    assert made.trace.failure is None and len(made.engine.log) == 3 and made.differences() == 0


async def test_a_call_of_an_answer_that_was_asked_for_again_is_made_once(tmp_path: Path) -> None:
    made = await played(tmp_path, THREE, run="hasty")
    assert made.trace.failure is None and len(made.engine.log) == 3 and made.differences() == 0
    assert made.notes == [("plum", 3.0), ("a", 100.0), ("b", 2.0)]
    assert [len(turn.tools) for turn in made.trace.turns] == [1, 2, 0] and kinds(made.trace) == [[], [], []]


async def test_an_answer_that_a_program_drops_leaves_the_ids_before_it(tmp_path: Path) -> None:
    made = await played(tmp_path, [THREE[0], "<think>\nOnly this.\n</think>", "Here."], run="withdrawing")
    trace = made.trace
    assert trace.failure is None and made.differences() == 0
    first, second = trace.segments
    assert first.turns_sampled == [0, 1] and second.turns_sampled == [2]
    captured = trace.ids_after(0)
    assert second.prompt_ids[: len(captured)] == captured
    assert "Say something." in told.tokenizer_for("hermes").decode(second.prompt_ids[len(captured) :])
    assert MarkKind.WENT_BACK in kinds(trace)[1]


@pytest.mark.parametrize("train", [False, True])
async def test_what_is_asked_beside_the_conversation_is_trained_if_it_says_so_and_counts_as_no_turn(
    tmp_path: Path, train: bool
) -> None:
    own = {"use": "told:compacting", "arguments": {"train": train}}
    limits = Limits(response_tokens=100_000, assistant_turns=2)
    texts = [THREE[0], "Plums", SUMMARY, note(), "Done."]
    trace = (made := await played(tmp_path, texts, agent=agent(own), limits=limits)).trace
    assert trace.failure is None and len(made.notes) == 2
    said = ["I note  it.", SUMMARY, "", "Done."] if train else ["I note  it."]
    assert [turn.content for turn in trace.turns] == said
    assert [segment.turns_sampled for segment in trace.segments] == ([[0], [1], [2, 3]] if train else [[0]])
    assert [MarkKind.BESIDE in marks for marks in kinds(trace)] == [False, True, True, True][: len(said)]
    named = [0, 2, 3, 4] if train else [0]
    assert told.differences(trace, [made.engine.log[at] for at in named]) == 0
    assert trace.opening == 2 and trace.turns_taken == 1


async def test_a_summary_within_the_conversation_begins_a_segment(tmp_path: Path) -> None:
    made = await played(tmp_path, [THREE[0], SUMMARY, note(), "Done."], run="checkpointing")
    trace = made.trace
    assert trace.failure is None and made.differences() == 0
    assert [segment.turns_sampled for segment in trace.segments] == [[0], [1], [2, 3]]
    assert trace.reward is not None and trace.reward.score == 2.0


async def test_a_program_that_raises_after_a_turn_is_scored(tmp_path: Path) -> None:
    made = await played(tmp_path, [note(name="guess")], run="raising")
    trace = made.trace
    assert trace.failure is None and trace.reward is not None and trace.reward.score == 0.0
    assert trace.stop_reason is StopReason.AGENT_ENDED
    assert [mark.kind for mark in trace.turns[0].marks] == [MarkKind.PROGRAM_ENDED, MarkKind.UNKNOWN_TOOL]
    assert "LookupError: no tool of this name" in trace.turns[0].marks[0].detail


async def test_a_limit_ends_a_program_with_a_refusal_and_the_trajectory_is_scored(tmp_path: Path) -> None:
    limits = Limits(response_tokens=100_000, assistant_turns=2)
    agent = {
        "use": "mcp_rollout.rollout.programs.program:Function",
        "with": {"use": "told:persistent", "arguments": {"most": 5}},
    }
    made = await played(tmp_path, THREE, agent=agent, limits=limits)
    assert made.trace.stop_reason is StopReason.TURN_LIMIT and made.trace.reward is not None
    assert [status for status, _ in told.SEEN] == [200, 200, 400, 400, 400]
    assert told.SEEN[2][1]["error"]["message"] == "the trajectory is over: turn_limit"


async def test_calls_that_the_policy_did_not_write_are_on_record_and_the_harness_is_unknown(tmp_path: Path) -> None:
    made = await played(tmp_path, [note(), "Done."], run="free_calls")
    trace = made.trace
    assert trace.failure is None and made.differences() == 0
    assert made.notes == [("mine", 1.0), ("plum", 3.0)]
    early, refused = told.SEEN
    assert early.startswith("Not called") and "Unknown tool 'reset'" in refused
    assert [event.arguments.get("text") for event in trace.turns[0].tools] == ["plum", "mine", None]
    assert kinds(trace)[0] == [MarkKind.UNASKED_CALL]
    # The policy read the result of its own call alone.
    read = told.tokenizer_for("hermes").decode(trace.response_ids)
    assert "Noted: plum" in read and "Noted: mine" not in read
    assert trace.opening == 2
    assert json.loads(trace.agent.model_dump_json(by_alias=True))["with"]["use"] == "told:free_calls"


@pytest.mark.parametrize(
    ("dialect", "kind"), [("chat/completions", None), ("responses", "response.in_progress"), ("messages", "ping")]
)
async def test_a_streaming_program_gets_events_while_the_policy_samples(
    tmp_path: Path, dialect: str, kind: str | None
) -> None:
    told.GATES["seen"] = anyio.Event()
    engine = Engine(["Said."], gate=told.GATES["seen"].wait)
    own = {"use": "told:watching", "arguments": {"dialect": dialect}, "events_s": 0.01}
    made = await played(tmp_path, (), engine=engine, agent=agent(own))
    assert made.trace.failure is None and made.trace.stop_reason is StopReason.ANSWERED
    first = told.SEEN[0]
    assert first.get("type") == kind if kind else first["choices"][0]["delta"] == {}
    assert "Said." in json.dumps(told.SEEN[1:])


async def test_what_cannot_be_sampled_is_refused_with_what_to_change(tmp_path: Path) -> None:
    image = [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:,"}}]}]
    half = [{"role": "user", "content": "HALF"}]
    calls = [{"role": "assistant", "tool_calls": [{"id": {}, "function": {"name": "note", "arguments": "{}"}}]}]
    bodies = [{"n": 2}, {"stop": ["x"]}, {"messages": image}, {"max_tokens": 0}, {"messages": None}]
    bodies += [{"messages": half}, {"messages": calls}]
    own = {"use": "told:refused", "arguments": {"bodies": bodies}}
    made = await played(tmp_path, ["Done."], agent=agent(own))
    assert made.trace.failure is None and len(made.engine.log) == 1
    assert [status for status, _ in told.SEEN] == [400] * 7
    said = [text for _, text in told.SEEN]
    assert said[0].endswith("leave n out") and said[1].endswith("leave stop out") and "image_url" in said[2]
    assert said[3] == "0 is not a number of tokens" and said[4].startswith("the request is malformed")
    assert said[5].endswith("a text has half a surrogate pair") and said[6] == "the id of a call is not a text"


HALF = '"\\ud800"'


@pytest.mark.parametrize(
    ("arguments", "status"),
    [
        ('{"text": HALF}', 400),
        ('{"text": "a", "more": {HALF: [HALF]}}', 400),
        (json.dumps({"text": "x" * (1 << 20)}), 413),
    ],
)
async def test_a_call_of_the_worlds_has_whole_characters_and_a_longest_body(
    tmp_path: Path, arguments: str, status: int
) -> None:
    call = '{"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "note", "arguments": %s}}'
    own = {"use": "told:writing", "arguments": {"requests": [["mcp", call % arguments.replace("HALF", HALF)]]}}
    made = await played(tmp_path, [note(), "Said."], agent=agent(own))
    assert [each for each, _ in told.SEEN] == [status]
    assert made.trace.failure is None and made.notes == []


def called(*ids: str) -> dict[str, Any]:
    calls = [
        {"id": id, "type": "function", "function": {"name": "note", "arguments": f'{{"text": "{id}"}}'}} for id in ids
    ]
    return {"role": "assistant", "content": None, "tool_calls": calls}


def gave(id: str) -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": id, "content": f"result of {id}"}


BEGIN = {"role": "user", "content": "Begin."}
NO_CALL = "the result of 'one' is of no call before it, or that call has one already"


@pytest.mark.parametrize(
    ("messages", "problem"),
    [
        ([BEGIN, gave("one")], NO_CALL),
        ([gave("one"), BEGIN, called("one")], NO_CALL),
        ([BEGIN, called("one"), gave("one"), gave("one")], NO_CALL),
        ([BEGIN, called("one", "one"), gave("one")], "two calls of a message have the same id"),
        (
            [BEGIN, called("one"), {**gave("one"), "tool_calls": called("b")["tool_calls"]}, gave("b")],
            "a message of the",
        ),
        ([{"role": ["user"], "content": "Begin."}], "there is no role ['user']: the roles are system"),
        ([BEGIN] * 10_001, "the request has more than 10000 messages and calls"),
    ],
)
async def test_a_conversation_that_no_policy_can_be_shown_is_refused(
    tmp_path: Path, messages: list[dict[str, Any]], problem: str
) -> None:
    own = {"use": "told:refused", "arguments": {"bodies": [{"messages": messages}]}}
    made = await played(tmp_path, ["Done."], agent=agent(own))
    ((status, said),) = told.SEEN
    assert status == 400 and said.startswith(problem)
    assert made.trace.failure is None and len(made.engine.log) == 1


async def test_requests_count_from_their_head_on(tmp_path: Path) -> None:
    made = await played(tmp_path, ["Said."], run="uploading")
    assert sorted(told.SEEN) == [200] * 17 + [400] and made.trace.failure is None and len(made.engine.log) == 1


async def test_a_request_that_was_given_up_counts_no_more(tmp_path: Path) -> None:
    told.GATES["seen"] = anyio.Event()
    engine = Engine(["Said."], gate=told.GATES["seen"].wait)
    own = {"use": "told:leaving", "events_s": 0.01}
    made = await played(tmp_path, (), engine=engine, agent=agent(own))
    assert "Said." in told.SEEN[0] and made.trace.failure is None and len(engine.log) == 1


async def test_requests_under_way_have_a_bound(tmp_path: Path) -> None:
    told.GATES.update(seen=anyio.Event(), begun=anyio.Event())

    async def gate() -> None:
        told.GATES["begun"].set()
        await told.GATES["seen"].wait()

    limits = Limits(response_tokens=100_000, assistant_turns=40)
    made = await played(tmp_path, (), run="crowding", engine=Engine(["Said."], gate=gate), limits=limits)
    assert sorted(told.SEEN) == [200] * 17 + [400] * 4 and len(made.engine.log) == 17


async def test_a_request_has_a_longest_body(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mcp_rollout.rollout.programs.endpoint._MOST_BYTES", 4096)
    bodies = [{"messages": [{"role": "user", "content": "x" * 5000}]}]
    own = {"use": "told:refused", "arguments": {"bodies": bodies}}
    made = await played(tmp_path, ["Done."], agent=agent(own))
    assert made.trace.failure is None
    assert told.SEEN == [(400, "the request has more than 4096 bytes")]


async def test_an_answer_beside_the_conversation_is_no_longer_than_a_sample_may_be(tmp_path: Path) -> None:
    own = {"use": "told:compacting", "arguments": {"ask": "Summarise these notes. " * 40}}
    texts = [THREE[0], "Plums", SUMMARY, note(), "Done."]

    async def within(tokens: int) -> told.Played:
        limits = Limits(prompt_tokens=600, response_tokens=tokens - 600)
        return await played(tmp_path / str(tokens), texts, agent=agent(own), limits=limits)

    read, said = (await within(10_000)).engine.log[2]
    made = await within(len(read) + len(said) - 3)
    assert made.engine.log[2] == (read, said[:-3]) and len(made.trace.segments) == 1
    made = await within(len(read))
    assert made.trace.failure is None and made.trace.stop_reason is StopReason.TOKEN_LIMIT
    assert len(made.engine.log) == 2 and len(made.trace.segments) == 1 and made.trace.reward is not None


def agent(own: dict[str, Any]) -> dict[str, Any]:
    return {"use": "mcp_rollout.rollout.programs.program:Function", "with": own}
