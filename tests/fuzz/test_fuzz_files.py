"""Journals and cassettes with a mangled line: the other records are read, and the fault is one of ours."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from mangling import mangled
from trace_samples import recorded_trace

from mcp_rollout.gateway.cassette.lines import named, unnamed
from mcp_rollout.gateway.cassette.reading import Cassette
from mcp_rollout.gateway.errors import ConfigError
from mcp_rollout.rollout.trace.journal import to_json
from mcp_rollout.rollout.trace.store import read_traces

QUIET = settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
MARKS = (b"{", b"}", b'"', b"null", b"-1", b"1e999", b"[]", b"\\ud800", b"\xff", b"\0")
JOURNAL = [to_json(recorded_trace(name)).rstrip(b"\n") for name in ("first", "second", "third")]


@QUIET
@given(mangled(st.just(JOURNAL[1]), MARKS).map(lambda line: line.replace(b"\n", b" ")))
def test_a_journal_is_read_but_for_its_mangled_line(tmp_path: Path, line: bytes) -> None:
    (tmp_path / "a.jsonl").write_bytes(b"\n".join([JOURNAL[0], line, JOURNAL[2], b""]))
    try:
        found = [trace.id for trace in read_traces(tmp_path)]
    except ConfigError:
        return  # it is of another version now
    assert (found[0], found[-1]) == ("first", "third") and len(found) in (2, 3)


CASSETTE = [
    {"kind": "cassette", "version": 1},
    {"kind": "gateway", "gateway": "g", "servers": {"s": {"instructions": "x"}}},
    {"kind": "lease", "gateway": "g", "task": "t", "seed": 1, "identity": {"sample": 1}},
    {
        "kind": "call",
        "server": "s",
        "tool": "t",
        "arguments": {"a": ["${trajectory}"]},
        "result": {"text": "é ${trajectory$}"},
    },
]


@QUIET
@given(st.integers(0, 3), st.data())
def test_a_cassette_with_a_mangled_line_is_read_or_refused(tmp_path: Path, number: int, data: st.DataObject) -> None:
    lines = [json.dumps(line).encode() for line in CASSETTE]
    lines[number] = data.draw(mangled(st.just(lines[number]), MARKS))
    path = tmp_path / "a.jsonl"
    path.write_bytes(b"\n".join(lines))
    try:
        cassette = Cassette.read(path)
        for leases in cassette.leases.values():
            for lease in leases:
                for call in lease.calls:
                    call.filled('of "another" length')
    except ConfigError as error:
        assert str(path) in str(error)


@given(st.text(), st.text(min_size=1, max_size=20), st.text(min_size=1))
def test_an_id_that_gave_way_to_the_placeholder_is_put_back(text: str, recorded: str, replayed: str) -> None:
    text = json.dumps([text, f"of {recorded}", "${trajectory}", "${trajectory$$}"], ensure_ascii=False)
    assert named(unnamed(text, recorded), recorded) == text
    other = json.loads(named(unnamed(text, recorded), replayed))
    assert len(other) == 4


@pytest.mark.parametrize("id", ["t-1", "0123456789abcdef" * 2, 'a "quoted" id of some length'])
def test_texts_that_spell_the_placeholder_stay(id: str) -> None:
    text = json.dumps({"a": "${trajectory} ${trajectory$} $${trajectory}", "b": id}, ensure_ascii=False)
    assert json.loads(named(unnamed(text, id), "another")) == {**json.loads(text), "b": "another"}
