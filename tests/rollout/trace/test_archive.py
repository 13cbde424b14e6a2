"""What goes into an archive comes out of it, position by position; and other programs read its columns."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
from array import array
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from pydantic import TypeAdapter
from random_traces import traces
from structlog.testing import capture_logs
from trace_samples import recorded_trace

from gateway.errors import ConfigError
from gateway.types import Content, ContentKind, ToolResult
from mcp_servers.user_simulator.recordings import load_recordings
from rollout.trace.archive import ArchiveReader, archive, read_archive, write_archive
from rollout.trace.columns import schema
from rollout.trace.events import UserEvent
from rollout.trace.files import ARCHIVE_SUFFIX, archive_of
from rollout.trace.journal import from_json, to_json
from rollout.trace.reader import Traces
from rollout.trace.record import Reward, Trace
from rollout.trace.store import TraceStore, read_traces
from rollout.types import Call, Completion, Edit, FinishReason, Parsed

EXAMPLES = settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("archives")


@EXAMPLES
@given(traces())
def test_every_record_comes_out_of_an_archive_as_it_went_in(directory: Path, trace: Trace) -> None:
    path = directory / f"one{ARCHIVE_SUFFIX}"
    as_recorded = from_json(to_json(trace))
    write_archive(path, [trace, trace])
    assert list(read_archive(path)) == [as_recorded, as_recorded]
    assert ArchiveReader(path).read(1) == as_recorded


@EXAMPLES
@given(traces())
def test_a_record_is_written_in_pieces_as_pydantic_writes_it(trace: Trace) -> None:
    assert json.loads(to_json(trace)) == json.loads(TypeAdapter(Trace).dump_json(trace, by_alias=True))


def test_a_record_may_have_integers_of_any_length() -> None:
    trace = recorded_trace()
    trace.turns[0].tools[0].arguments = {"k": 1 << 80}
    trace.messages.append({"role": "tool", "content": "", "of": 1 << 80})
    assert from_json(to_json(trace)) == trace


def test_log_probabilities_are_kept_as_float32_and_only_where_a_token_was_sampled(tmp_path: Path) -> None:
    trace = recorded_trace()
    trace.logprobs[0] = -0.1  # no float32 has this value
    trace.add_context(Edit(appended=[9, 9, 9]))
    write_archive(tmp_path / f"a{ARCHIVE_SUFFIX}", [trace])
    (read,) = read_archive(tmp_path / f"a{ARCHIVE_SUFFIX}")
    assert read.logprobs == array("f", trace.logprobs).tolist()
    (segment,) = pq.read_table(tmp_path / f"a{ARCHIVE_SUFFIX}").column("segments")[0].as_py()
    assert len(segment["logprobs"]) == 2 and len(segment["response_ids"]) == 5


def test_no_text_is_stored_twice(tmp_path: Path) -> None:
    names = ("said", "thought", "result", "user", "argument")
    texts = {name: f"{name} " + random.Random(name).randbytes(200).hex() for name in names}
    trace = recorded_trace()
    call = Call(name="x", arguments={"a": texts["argument"]})
    completion = Completion(ids=[3, 4], logprobs=[-0.5, -1.5], finish_reason=FinishReason.STOP)
    parsed = Parsed(content=texts["said"], thinking=texts["thought"], calls=(call,))
    trace.add_completion(completion, parsed, Edit(appended=[3, 4]), mask_thinking=False)
    trace.messages += trace.add_calls(
        [call], [ToolResult(content=(Content(kind=ContentKind.TEXT, text=texts["result"]),))]
    )
    trace.add_completion(completion, Parsed(content="Ok."), Edit(appended=[3]), mask_thinking=False)
    trace.add_user(UserEvent(seq=1, message=texts["user"], done=True))
    trace.messages.append({"role": "user", "content": texts["user"]})
    write_archive(tmp_path / f"a{ARCHIVE_SUFFIX}", [trace])
    row = str(pq.read_table(tmp_path / f"a{ARCHIVE_SUFFIX}").to_pylist())
    assert {name: row.count(text) for name, text in texts.items()} == dict.fromkeys(texts, 1)
    assert list(read_archive(tmp_path / f"a{ARCHIVE_SUFFIX}")) == [trace]


def test_an_archive_of_another_version_is_refused_with_its_name(tmp_path: Path) -> None:
    write_archive(tmp_path / f"new{ARCHIVE_SUFFIX}", [recorded_trace()])
    table = pq.read_table(tmp_path / f"new{ARCHIVE_SUFFIX}")
    pq.write_table(table.replace_schema_metadata({b"mcp-rollout.traces": b"1"}), tmp_path / f"old{ARCHIVE_SUFFIX}")
    with pytest.raises(ConfigError, match=r"old\.traces\.parquet: trace archive of version 1, this program reads 4"):
        list(read_archive(tmp_path / f"old{ARCHIVE_SUFFIX}"))


def test_archives_of_several_environments_have_one_schema(tmp_path: Path) -> None:
    for environment in ("retail", "calculator", "research"):
        trace = recorded_trace(environment)
        trace.task = trace.task.model_copy(update={"environment": environment})
        trace.reward = Reward(score=1.0, parts={environment: 1.0})
        write_archive(tmp_path / f"{environment}{ARCHIVE_SUFFIX}", [trace])
    assert all(pq.read_schema(path).equals(schema()) for path in tmp_path.iterdir())


def test_an_archive_from_before_tasks_had_calls_is_read(tmp_path: Path) -> None:
    path = tmp_path / f"a{ARCHIVE_SUFFIX}"
    write_archive(path, [recorded_trace("a")])
    pq.write_table(pq.read_table(path).drop_columns(["world_calls"]), path)
    assert [trace.id for trace in read_archive(path)] == ["a"]


def test_an_archive_that_lacks_a_column_hides_nothing_else_and_is_named(tmp_path: Path) -> None:
    path = tmp_path / f"a{ARCHIVE_SUFFIX}"
    write_archive(path, [recorded_trace("a")])
    pq.write_table(pq.read_table(path).drop_columns(["control_text"]), path)
    TraceStore(tmp_path).append(recorded_trace("b"))
    with pytest.raises(ConfigError, match=r"a\.traces\.parquet: lacks the columns control_text"):
        list(read_archive(path))
    with capture_logs() as logs:
        assert [trace.id for trace in read_traces(tmp_path)] == ["b"]
    assert [entry["event"] for entry in logs] == ["skipped"] and "control_text" in str(logs[0])
    with capture_logs(), Traces(tmp_path) as traces:
        assert [entry["id"] for entry in traces.entries()] == ["b"]


def test_a_replayed_user_names_an_archive_that_lacks_a_column(tmp_path: Path) -> None:
    path = tmp_path / f"a{ARCHIVE_SUFFIX}"
    write_archive(path, [recorded_trace("a")])
    pq.write_table(pq.read_table(path).drop_columns(["user_replies"]), path)
    with pytest.raises(ValueError, match=r"a\.traces\.parquet: an archive without the columns user_replies"):
        load_recordings(str(tmp_path))


def test_a_torn_archive_hides_nothing_else_and_is_named(tmp_path: Path) -> None:
    """Cut at seeded places, the last and the first bytes included; with its journal beside it nothing is lost."""
    store = TraceStore(tmp_path)
    for name in "abc":
        store.append(recorded_trace(name))
    store.close()
    (journal,) = tmp_path.iterdir()
    line = journal.read_bytes()
    whole = archive(journal).read_bytes()
    TraceStore(tmp_path).append(recorded_trace("d"))
    draw = random.Random(0)
    edges = [0, 1, 4, 5, len(whole) - 1, len(whole) - 4, len(whole) - 8]
    for cut in [*edges, *(draw.randrange(len(whole)) for _ in range(20))]:
        archive_of(journal).write_bytes(whole[:cut])
        with capture_logs() as logs:
            assert [trace.id for trace in read_traces(tmp_path)] == ["d"], cut
        assert [entry["event"] for entry in logs] == ["skipped"] and journal.stem in logs[0]["file"]
        journal.write_bytes(line)
        with capture_logs():
            assert [trace.id for trace in read_traces(tmp_path)] == list("abcd"), cut
        journal.unlink()


def test_an_archive_that_is_damaged_before_its_footer_hides_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / f"a{ARCHIVE_SUFFIX}"
    write_archive(path, [recorded_trace("a")])
    TraceStore(tmp_path).append(recorded_trace("b"))
    with Traces(tmp_path) as traces:
        entries = {entry["id"]: entry for entry in traces.entries()}
        whole = path.read_bytes()
        footer = 8 + int.from_bytes(whole[-8:-4], "little")
        path.write_bytes(whole[:4] + b"\xff" * (len(whole) - 4 - footer) + whole[-footer:])
        with capture_logs() as logs, pytest.raises(ConfigError):
            traces.read(entries["a"])
        assert [entry["id"] for entry in traces.entries()] == ["b"]
    assert [Path(entry["file"]) for entry in logs if entry["event"] == "skipped"] == [path]


def test_a_journal_cut_anywhere_loses_the_record_at_the_cut_only(tmp_path: Path) -> None:
    store = TraceStore(tmp_path)
    for name in "abc":
        store.append(recorded_trace(name))
    (journal,) = tmp_path.iterdir()
    whole = journal.read_bytes()
    ends = [index for index, byte in enumerate(whole) if byte == 10]
    draw = random.Random(1)
    for cut in [0, 1, *ends, *(end + 1 for end in ends), *(draw.randrange(len(whole)) for _ in range(60))]:
        journal.write_bytes(whole[:cut])
        complete = [name for name, end in zip("abc", ends, strict=True) if cut >= end]  # a newline may be missing
        with capture_logs():
            assert [trace.id for trace in read_traces(tmp_path)] == complete, cut


KILLED = """
import os, signal, sys
from pathlib import Path
from rollout.trace.archive import archive

def killed_at(step, journal):
    taken = 0
    def counted(call):
        def counting(*arguments, **named):
            nonlocal taken
            taken += 1
            if taken > step:
                os.kill(os.getpid(), signal.SIGKILL)
            return call(*arguments, **named)
        return counting
    for name in ("open", "fsync", "replace", "rename", "unlink"):
        setattr(os, name, counted(getattr(os, name)))
    archive(journal)

for step, journal in enumerate(map(Path, sys.argv[1:])):
    child = os.fork()
    if not child:
        killed_at(step, journal)
        os._exit(0)
    print(os.waitpid(child, 0)[1])
"""


def test_archiving_that_is_killed_at_any_step_loses_nothing(tmp_path: Path) -> None:
    journals: list[Path] = []
    for step in range(9):
        store = TraceStore(tmp_path / str(step))
        for name in "abc":
            store.append(recorded_trace(name))
        journals += (tmp_path / str(step)).iterdir()
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", KILLED, *journals]
    done = subprocess.run(command, env=environment, timeout=100, capture_output=True, check=True)
    statuses = list(map(int, done.stdout.split()))
    assert statuses[:4] == [signal.SIGKILL] * 4 and statuses[-1] == 0
    for journal in journals:
        assert [trace.id for trace in read_traces(journal.parent)] == list("abc"), journal
    assert not journals[-1].exists()


def test_a_replayed_user_says_the_same_from_an_archive(tmp_path: Path) -> None:
    trace = recorded_trace()
    trace.messages += [{"role": "tool", "name": "x", "content": "ok"}, {"role": "user", "content": "bye"}]
    TraceStore(tmp_path).append(trace)
    (journal,) = tmp_path.iterdir()
    said = load_recordings(str(tmp_path))("t", 3)
    archive(journal)
    assert load_recordings(str(tmp_path))("t", 3) == said
    assert said.opening == "hé" and [reply.message for reply in said.replies] == ["bye"]
