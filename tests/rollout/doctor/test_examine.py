"""The doctor against servers that keep their state in the four places where servers keep it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from mcp_rollout import GatewayConfig
from mcp_rollout.rollout.doctor.examination import Options
from mcp_rollout.rollout.doctor.examine import examine
from mcp_rollout.rollout.doctor.forking import SAFE
from mcp_rollout.rollout.doctor.plan import CallOption
from mcp_rollout.rollout.doctor.report import IsolationVerdict, Latency, ServerReport, Verdict

pytestmark = pytest.mark.anyio
FULL = pytest.mark.full
SUPPORT = Path(__file__).parents[2] / "support"
SERVER = str(SUPPORT / "state_server.py")
MINI = str(Path(__file__).parents[2] / "gateway" / "mini_server.py")
ISOLATED = ("-I", "-S")


def stdio(where: str, tools: str, **more: Any) -> dict[str, Any]:
    return {"command": sys.executable, "args": [*ISOLATED, SERVER, where, tools], **more}


def mini(*tools: str, **more: Any) -> dict[str, Any]:
    return {"command": sys.executable, "args": [*ISOLATED, MINI, *tools], **more}


RELAY = """
import sys, urllib.request
session = {}
for line in sys.stdin.buffer:
    headers = {"content-type": "application/json", **session}
    with urllib.request.urlopen(urllib.request.Request(sys.argv[1], line, headers)) as answer:
        if "mcp-session-id" in answer.headers:
            session = {"mcp-session-id": answer.headers["mcp-session-id"]}
        if body := answer.read().decode():
            print(body, flush=True)
"""
"""A server over stdio that passes its messages on to a url."""


@contextmanager
def served(where: str, tools: str) -> Iterator[dict[str, Any]]:
    argv = [sys.executable, *ISOLATED, SERVER, where, tools, "http"]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield {"url": f"http://127.0.0.1:{int(process.stdout.readline())}/mcp"}
        finally:
            process.kill()


async def report_on(entry: dict[str, Any], **options: Any) -> ServerReport:
    config = GatewayConfig.model_validate({"servers": {"world": entry}})
    (report,) = await examine(config, Options(**options))
    return report


def isolation(report: ServerReport) -> dict[str, IsolationVerdict]:
    return {found.scope: found.verdict for found in report.isolation}


def scope(report: ServerReport) -> str | None:
    assert report.advice is not None, report.problems
    return report.advice.scope


@pytest.mark.parametrize(
    ("where", "tools", "found", "verdict"),
    [
        ("nowhere", "pure", {"shared": "no state seen", "process": "no state seen"}, Verdict.STATELESS),
        pytest.param(
            "trajectory", "cell", {"shared": "no leak seen", "process": "no leak seen"}, Verdict.OWN, marks=FULL
        ),
        ("declared", "cell", {"shared": "no leak seen", "process": "no leak seen"}, Verdict.SHARE),
        ("process", "cell", {"shared": "leaks", "process": "no leak seen"}, Verdict.OWN),
        pytest.param("session", "cell", {"shared": "leaks", "process": "no leak seen"}, Verdict.OWN, marks=FULL),
        ("file", "cell", {"shared": "leaks", "process": "leaks"}, Verdict.LEASE_DIR),
        pytest.param("process", "counter", {"shared": "leaks", "process": "no leak seen"}, Verdict.OWN, marks=FULL),
        pytest.param("file", "counter", {"shared": "leaks", "process": "leaks"}, Verdict.LEASE_DIR, marks=FULL),
        pytest.param(
            "trajectory", "counter", {"shared": "no leak seen", "process": "no leak seen"}, Verdict.OWN, marks=FULL
        ),
        ("process", "toggle", {"shared": "leaks", "process": "no leak seen"}, Verdict.OWN),
        ("process", "odd", {"shared": "leaks", "process": "no leak seen"}, Verdict.OWN),
    ],
)
async def test_a_stdio_servers_state_is_found_where_it_is(
    tmp_path: Path, where: str, tools: str, found: dict[str, str], verdict: Verdict
) -> None:
    state = tmp_path / "state"
    report = await report_on(stdio(str(state) if where == "file" else where, tools))
    assert (isolation(report), report.verdict) == (found, verdict), report
    assert report.fit is (verdict is not Verdict.LEASE_DIR) and not state.exists()
    assert scope(report) == ("shared" if verdict is Verdict.SHARE else "process")


@pytest.mark.parametrize(
    ("where", "tools", "found", "advised"),
    [
        pytest.param("nowhere", "pure", {"shared": "no state seen", "session": "no state seen"}, "session", marks=FULL),
        pytest.param("declared", "cell", {"shared": "no leak seen", "session": "no leak seen"}, "shared", marks=FULL),
        ("session", "cell", {"shared": "leaks", "session": "no leak seen"}, "session"),
        ("process", "cell", {"shared": "leaks", "session": "leaks"}, None),
        ("file", "cell", {"shared": "leaks", "session": "leaks"}, None),
    ],
)
async def test_an_http_servers_state_is_found_where_it_is(
    tmp_path: Path, where: str, tools: str, found: dict[str, str], advised: str | None
) -> None:
    with served(str(tmp_path / "state") if where == "file" else where, tools) as entry:
        report = await report_on(entry, writes_to=(entry["url"],))
    assert (isolation(report), scope(report), report.fit) == (found, advised, advised is not None), report


@pytest.mark.parametrize("named", [False, True])
async def test_an_annotation_is_no_evidence_against_what_the_answers_show(named: bool) -> None:
    calls = (CallOption(server=None, tool="tally", arguments={}),) if named else ()
    report = await report_on(stdio("process", "tally"), call_options=calls)
    assert (isolation(report), scope(report)) == ({"shared": "leaks", "process": "no leak seen"}, "process"), report
    assert report.fit and "tally answered 'bumped to " in report.isolation[0].evidence


async def test_what_counts_on_in_a_file_is_not_called_safe_for_its_annotation(tmp_path: Path) -> None:
    report = await report_on(stdio(str(tmp_path / "state"), "tally"))
    assert isolation(report) == {"shared": "leaks", "process": "leaks"} and report.verdict is Verdict.LEASE_DIR
    assert report.advice is not None and report.advice.changes == {
        "args": {3: "${lease.dir}/state"},
        "env": {},
        "cwd": None,
        "data": {},
    }


async def test_a_tool_that_the_probes_waited_for_is_named() -> None:
    report = await report_on(mini("hang", "echo"), call_timeout_s=0.2, slow_s=0.1)
    assert any(note.startswith("slow: the probes waited") and "for hang" in note for note in report.notes), report


async def test_a_file_in_the_directory_of_a_lease_is_nobody_elses() -> None:
    report = await report_on(stdio("${lease.dir}/state", "cell", scope="process"))
    assert (isolation(report), scope(report), report.fit) == ({"process": "no leak seen"}, "process", True)


async def test_data_that_cannot_be_copied_ends_no_examination(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    report = await report_on(stdio("nowhere", "pure", env={"NOTES": str(tmp_path)}))
    reason = f"its data cannot be copied: `{tmp_path}/fifo` is a named pipe"
    assert report.notes == [f"nothing was written: {reason} (--writes-to {tmp_path})"] and report.tools, report
    assert report.touches == "nothing of yours"


PUT = CallOption(server=None, tool="put", arguments={"text": "by name {word}"})


async def test_what_is_behind_a_url_is_not_written_to_unless_it_is_named(tmp_path: Path) -> None:
    state = tmp_path / "state"
    with served(str(state), "cell") as entry:
        report = await report_on(entry, call_options=(PUT,))
        assert not state.exists() and report.withheld == {"put": "it may write"}
        assert report.fit is None and "put was not called: it may write" in report.unknown
        assert report.touches == f"{entry['url']}, by tools annotated read-only"
        (remedy,) = report.to_know
        report = await report_on(entry, writes_to=(remedy.removeprefix("--writes-to "),))
        assert isolation(report) == {"shared": "leaks", "session": "leaks"} and state.exists()
        assert report.touches == f"{entry['url']}, by all tools"


async def test_a_key_in_a_variable_changes_neither_the_copies_nor_the_verdict(tmp_path: Path) -> None:
    state = tmp_path / "state"
    state.write_text("mine")
    before = state.stat()
    report = await report_on(stdio(str(state), "cell", env={"SHOP_API_KEY": "x"}), call_options=(PUT,))
    assert report.verdict is Verdict.LEASE_DIR and report.touches == f"copies of {state}"
    assert "by name probe" in report.isolation[1].evidence and report.refused == ()
    assert (state.read_text(), state.stat().st_mtime_ns) == ("mine", before.st_mtime_ns)


async def test_a_server_whose_world_is_elsewhere_is_read_and_is_written_to_where_its_address_is_named(
    tmp_path: Path,
) -> None:
    state = tmp_path / "state"
    with served(str(state), "cell") as remote:
        address = remote["url"].removeprefix("http://").removesuffix("/mcp")
        entry = {"command": sys.executable, "args": [*ISOLATED, "-c", RELAY, remote["url"]]}
        report = await report_on(entry)
        assert (report.refused, report.withheld, state.exists()) == ((address,), {"put": "it may write"}, False)
        assert report.touches == "any address, by tools annotated read-only" and report.fit is None
        assert report.to_know == (f"--writes-to {address}",)
        report = await report_on(entry, writes_to=(address,))
        assert isolation(report) == {"shared": "leaks", "process": "leaks"} and report.refused == ()
        assert report.touches == f"what --writes-to names: {address}" and "probe" in state.read_text()


async def test_on_a_system_that_cannot_confine_it_a_server_on_copies_is_not_written_to_unless_all_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mcp_rollout.rollout.doctor.throwaway.unconfined", lambda: True)
    monkeypatch.setattr("mcp_rollout.rollout.doctor.examination.unconfined", lambda: True)
    state = tmp_path / "state"
    state.write_text("mine")
    report = await report_on(stdio(str(state), "cell"))
    assert report.withheld == {"put": "it may write"} and report.to_know == ("--writes-to /",)
    report = await report_on(stdio(str(state), "cell"), writes_to=("/",))
    assert report.verdict is Verdict.LEASE_DIR and state.read_text() == "mine"


async def test_arguments_that_the_schema_refuses_are_no_evidence() -> None:
    wrong = CallOption(server=None, tool="put", arguments={"text": 7})
    report = await report_on(stdio("process", "cell"), call_options=(wrong,))
    assert isolation(report) == {"shared": "unknown", "process": "unknown"} and report.fit is None
    assert [note for note in report.notes if note.startswith("not called, put: text")] and len(report.to_know) == 1


async def test_a_write_that_no_tool_shows_proves_nothing() -> None:
    report = await report_on(stdio("nowhere", "silent"))
    assert report.verdict is Verdict.UNKNOWN and "save changed nothing that a tool shows" in report.unknown


async def test_a_server_without_its_backend_is_reported_with_the_cause_that_a_call_names() -> None:
    report = await report_on(stdio("nowhere", "refusing"))
    assert report.verdict is Verdict.UNKNOWN and "connection refused by 127.0.0.1:5432" in report.unknown
    assert report.to_know == () and report.to_fill == {"query": ["text"]}


async def test_what_reaches_outside_is_called_only_with_leave_and_an_address_stays_on_this_machine() -> None:
    report = await report_on(stdio("nowhere", "reaching"))
    assert report.withheld == {"run_command": "it may start or end processes"} and report.fit is None
    assert report.to_know[-1] == "--allow-outside" and report.determinism is not None
    assert report.determinism.called == ("open_url",)
    assert (await report_on(stdio("nowhere", "reaching"), allow_outside=True)).withheld == {}


@pytest.mark.parametrize("tools", ["orders", "words"])
async def test_state_is_found_that_only_arguments_with_a_meaning_show(tools: str) -> None:
    # An id that another call returned, and SQL; without them all answers are errors, as ordinary text.
    report = await report_on(stdio("process", tools))
    assert (isolation(report), report.verdict) == ({"shared": "leaks", "process": "no leak seen"}, Verdict.OWN), report


async def test_a_server_for_mcp_1_gets_its_remedy() -> None:
    report = await report_on({"command": sys.executable, "args": ["-c", "from mcp.server.fastmcp import FastMCP"]})
    assert report.verdict is Verdict.UNFIT and "pip install 'mcp<2'" in report.problems[0], report.problems


async def test_a_tool_that_says_where_its_lease_is_answers_the_same_in_each() -> None:
    report = await report_on(mini("cwd", "pid", cwd="${lease.dir}", scope="process"))
    assert report.determinism is not None and report.determinism.differing == ("pid",)


async def test_an_examination_is_bounded_whatever_the_server_does() -> None:
    report = await report_on(mini("mute"), server_timeout_s=0.5)
    assert report.problems == ["the examination was not over after 0.5 s"]


async def test_a_scope_that_the_file_asks_for_and_that_leaks_is_unfit() -> None:
    asked = await report_on(stdio("process", "cell", scope="shared"))
    assert not asked.fit and "scope: shared lets trajectories see each other" in asked.problems[0]
    assert (await report_on(stdio("process", "cell", scope="session"))).fit


async def test_reused_processes_without_a_reset_are_unfit_as_the_gateway_refuses_them() -> None:
    asked = await report_on(mini("pid", scope="process", leases_per_process=2))
    assert not asked.fit and asked.problems == ["leases_per_process needs a reset tool, and it has none"]


async def test_a_clock_that_moves_on_is_no_leak(tmp_path: Path) -> None:
    report = await report_on(stdio("nowhere", "clock"))
    assert report.verdict is Verdict.STATELESS, report
    assert report.determinism is not None and report.determinism.differing == ("read_clock",)


async def test_what_differs_between_fresh_leases_is_named() -> None:
    report = await report_on(mini("pid", "echo"))
    assert report.determinism is not None
    assert (report.determinism.called, report.determinism.differing) == (("pid", "echo"), ("pid",))


async def test_starts_and_calls_are_measured() -> None:
    report = await report_on(mini("echo"))
    assert report.start is not None and report.start.n >= 3 and report.call is not None and report.call.n == 20
    assert (report.protocol_version, report.era, report.called) == ("2025-11-25", "handshake", "echo")


async def test_a_tool_that_hangs_costs_a_bounded_time() -> None:
    report = await report_on(mini("hang", "echo"), call_timeout_s=0.2, probe_timeout_s=1.0)
    assert isolation(report) == {"shared": "unknown", "process": "unknown"} and report.fit is None


async def test_servers_that_fail_are_reports_among_the_others() -> None:
    servers = {
        "gone": {"command": "no-such-program"},
        "crash": mini("crash"),
        "mute": mini("mute", start_timeout_s=0.5),
        "empty": mini(),
        "malformed": mini("malformed"),
        "well": mini("echo", "malformed"),
    }
    config = GatewayConfig.model_validate({"servers": servers})
    reports = await examine(config, Options())
    assert [report.server for report in reports] == list(servers)
    assert [report.fit for report in reports] == [False] * 5 + [True]
    said = {report.server: " ".join(report.problems) for report in reports}
    assert "no such program" in said["gone"] and "secret_sauce" in said["crash"] and "0.5 s" in said["mute"]
    assert "no tools" in said["empty"] and "no tools that can be used" in said["malformed"]
    assert "malformed" in reports[-1].malformed[0]


HIDES = """
import asyncio
import forking_server

forking_server.TOOLS = [{"name": "echo", "description": "Echo.\\u200b"}, {"name": "get", "description": "Get."}]
forking_server.call = lambda name, arguments: "x"
asyncio.run(forking_server.serve())
"""


async def test_hidden_characters_are_reported(tmp_path: Path) -> None:
    (tmp_path / "sly.py").write_text(HIDES)
    env = {"PYTHONPATH": str(Path(MINI).parent)}
    report = await report_on({"command": sys.executable, "args": [str(tmp_path / "sly.py")], "env": env})
    assert [bool(tool.hidden) for tool in report.tools] == [True, False]
    assert any(note.startswith("echo: ") and "U+200B" in note for note in report.notes), report.notes


async def test_tools_that_do_not_say_what_they_are_for_are_named() -> None:
    report = await report_on(mini("echo", "get", tools={"change": {"get": {"description": " "}}}))
    assert "without a description, so that the policy has to guess: get" in report.notes


@FULL
async def test_servers_with_a_harness_are_reset_to_one_of_their_own_tasks() -> None:
    entry = {"command": sys.executable, "args": ["-m", "mcp_rollout.mcp_servers.calculator"]}
    report = await report_on(entry)
    assert report.fit and scope(report) == "shared", report  # which it declares
    assert report.determinism is not None and report.determinism.differing == ()


def test_a_latency_is_the_median_and_the_largest_of_few() -> None:
    assert Latency.of([]) is None
    assert Latency.of([3.0, 1.0, 2.0]) == Latency(median_s=2.0, p95_s=3.0, n=3)
    hundred = Latency.of([float(number) for number in range(1, 101)])
    assert hundred is not None and hundred.p95_s == 95.0


async def test_a_server_that_is_spawned_although_forks_are_asked_for_is_named() -> None:
    whole = {"command": sys.executable, "args": ["-c", f"import runpy; runpy.run_path({MINI!r})", "put", "get"]}
    report = await report_on({**whole, "scope": "process", "start": "fork"})
    assert any(note.startswith("start: fork has no effect: its command is not") for note in report.notes)


@pytest.mark.parametrize(
    ("start", "opened", "made"), [("fork", "open(__file__)", "ID"), ("spawn", "None", "uuid.uuid4().hex")]
)
async def test_forks_are_proposed_where_they_share_nothing(start: str, opened: str, made: str, tmp_path: Path) -> None:
    (tmp_path / "cell.py").write_text(CELL.replace("OPENED", opened).replace("MADE", made))
    entry = {"command": sys.executable, "args": [str(tmp_path / "cell.py")], "scope": "process", "start": start}
    entry["env"] = {"PYTHONPATH": str(Path(MINI).parent)}
    report = await report_on(entry)
    if start == "fork":
        assert report.problems == [
            f"start: fork is not safe: its forks share {tmp_path / 'cell.py'}",
            "start: fork is not safe: its forks are answered alike by get_id, and processes are not",
        ]
    else:
        assert SAFE in report.notes and not report.problems


CELL = """
import asyncio
import uuid
import forking_server

cell, file, ID = [], OPENED, uuid.uuid4().hex

def call(name, arguments):
    if name == "add_item":
        cell.append("item")
    return MADE if name == "get_id" else cell

forking_server.TOOLS = [{"name": name} for name in ("add_item", "get_items", "get_id")]
forking_server.call = call
if __name__ == "__main__":
    asyncio.run(forking_server.serve())
"""
