"""Stored traces scored again: by the command under changed weights, and by changed servers over a cassette."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from commands import mcp_rollout
from mcp.server.mcpserver import Context, MCPServer
from serving import listening
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route
from worlds import ROLE, environment, play, saying

from mcp_rollout.gateway.cassette.reading import Cassette
from mcp_rollout.gateway.cassette.recording import Recorder
from mcp_rollout.gateway.gateway import Gateway
from mcp_rollout.rollout.engines.engine import EngineOptions
from mcp_rollout.rollout.engines.scripted import WithoutModel
from mcp_rollout.rollout.environment.task import Origin, Task
from mcp_rollout.rollout.evaluation.play import Job, Lengths, play_all
from mcp_rollout.rollout.evaluation.rescore import LiveScore, rescore
from mcp_rollout.rollout.evaluation.resume import evaluation_record
from mcp_rollout.rollout.loop.components import WorldScore
from mcp_rollout.rollout.trace.reader import Traces
from mcp_rollout.rollout.trace.record import Trace
from mcp_rollout.rollout.trace.run_record import RunRecord, environment_identity, read_run_records
from mcp_rollout.rollout.trace.store import TraceStore, read_traces

ROOT = Path(__file__).parents[3]
COMMAND = Path(sys.executable).with_name("mcp-rollout")


def command(*arguments: str | Path, status: int = 0) -> Any:
    done = mcp_rollout(*arguments, "--json")
    assert done.status == status, done.out + done.err
    return done.json if status < 2 else done.err


def test_new_weights_components_and_penalties_make_new_records_beside_the_old_ones(tmp_path: Path) -> None:
    raw = yaml.safe_load((ROOT / "configs" / "environments" / "calculator.yaml").read_text())
    made = tmp_path / "calculator.yaml"
    made.write_text(yaml.safe_dump(raw))
    out, again = tmp_path / "out", tmp_path / "out-rescored"
    command("run", made, "--engine", "random", "-n", "3", "--out", out)
    command("run", made, "--engine", "none", "-n", "1", "--out", tmp_path / "silent")
    before = {trace.id: trace for trace in read_traces(out)}
    raw["reward"] |= {"weights": {"score": 0.5, "valid_calls": 2.0, "brevity": 1.0}}
    raw["reward"]["brevity"] = {"full_until": 10, "none_from": 10_000}
    raw["filters"] = {"void": {"action": "penalise", "penalty": 0.25}, "overlong": "penalise"}
    made.write_text(yaml.safe_dump(raw))
    files = {path.name: path.read_bytes() for path in out.iterdir() if path.suffix == ".jsonl"}
    report = command("rescore", out, made)
    assert (report["done"], report["changed"], report["not_done"], report["score"]) == (3, 3, {}, "recorded")
    assert {path.name: path.read_bytes() for path in out.iterdir() if path.suffix == ".jsonl"} == files
    for trace in read_traces(again):
        old, reward = before[trace.id], trace.reward
        assert reward is not None and old.reward is not None
        assert trace.response_ids == old.response_ids and trace.turns == old.turns
        events = [event for turn in old.turns for event in turn.tools]
        valid = sum(event.fault is None for event in events) / len(events)
        sampled = sum(turn.sampled for turn in old.turns)
        voids = sum(mark.kind == "void" for turn in old.turns for mark in turn.marks)
        penalty = 0.25 * voids + 0.1 * str(old.stop_reason).endswith("_limit")
        expected = 0.5 * old.reward.score + 2 * valid + min(1.0, (10_000 - sampled) / 9_990) - penalty
        assert reward.score == pytest.approx(expected) and reward.penalty == pytest.approx(penalty)
    command("rescore", tmp_path / "silent", made)
    (silent,) = read_traces(tmp_path / "silent-rescored")
    assert silent.reward is not None and silent.reward.penalty == 0.25 * len(silent.turns) > 0
    (record,) = read_run_records(again).values()
    assert record.kind == "rescored" and record.environment["reward"]["weights"]["valid_calls"] == 2.0
    assert "holds traces already" in command("rescore", out, made, status=2)
    raw["filters"] = {"overlong": {"action": "penalise", "last_share": 0.2}}
    made.write_text(yaml.safe_dump(raw))
    report = command("rescore", out, made, "--out", tmp_path / "share", status=1)
    assert list(report["not_done"]) == ["filters.overlong.last_share needs the tokens that were left, not recorded"]
    del raw["filters"]
    raw["reward"]["parts"] = [*raw["reward"]["parts"], "style"]
    made.write_text(yaml.safe_dump(raw))
    report = command("rescore", out, made, "--out", tmp_path / "more", status=1)
    assert list(report["not_done"]) == ["the server gave no part style then: needs a cassette and the server"]
    assert report["done"] == 0 and len(*report["not_done"].values()) == 3


def shop(per_item: float, *, greeting: str = "added") -> MCPServer:
    server, held = MCPServer("shop", log_level="ERROR"), dict[str, int]()

    def of(ctx: Context) -> str:
        return str((ctx.request_context.meta or {}).get("mcp-rollout/trajectory"))

    @server.tool(meta={ROLE: "reset"})
    async def reset(task: str, seed: int, ctx: Context) -> dict[str, Any]:
        held[of(ctx)] = seed
        return {}

    @server.tool()
    async def add(n: int, ctx: Context) -> str:
        """Add."""
        held[of(ctx)] += n
        return greeting

    @server.tool(meta={ROLE: "score"})
    async def score(messages: list[dict[str, Any]], ctx: Context) -> dict[str, Any]:
        return {"score": per_item * held[of(ctx)], "parts": {"length": float(len(messages))}}

    return server


@pytest.mark.anyio
async def test_a_changed_score_of_the_server_sees_the_world_that_the_cassette_makes_again(tmp_path: Path) -> None:
    row = Task(environment="test", task="t", seed=3, prompt=({"role": "user", "content": "Go."},))
    old, path = shop(1.0), tmp_path / "a.jsonl"
    made = environment({"shop": old}, reward={"server": "shop", "parts": ["length"]}, limits={"assistant_turns": 3})
    recorder, engine, store = Recorder(path), WithoutModel("random"), TraceStore(tmp_path / "out")
    played: list[Trace] = []
    async with Gateway(made, connect=lambda *_: old, name="test", record=recorder) as gateway:
        options = EngineOptions(engine="random")
        run = store.describe(evaluation_record(made, gateway, options, WithoutModel("random"), {}))
        await play_all(
            [Job(made, row, Origin(sample=sample)) for sample in range(4)],
            gateways={"test": gateway},
            engine=engine,
            lengths=Lengths(response_tokens=10_000),
            store=store,
            concurrency=2,
            finished=played.append,
            runs={"test": run},
        )
    recorder.close()
    before = {trace.id: trace.reward.score for trace in played if trace.reward}
    assert len(before) == 4 and len(set(before.values())) > 1
    # One lease fewer: that trajectory cannot be scored again.
    lines = path.read_text().splitlines()
    last = max(number for number, line in enumerate(lines) if '"kind": "lease"' in line)
    path.write_text("\n".join(lines[:last]))
    new = shop(0.5, greeting="put in")
    made = made.model_copy(update={"limits": made.limits.model_copy(update={"assistant_turns": 5})})
    async with Gateway(made, connect=lambda *_: new, name="test") as gateway:
        live = LiveScore(Cassette.read(path), made, gateway)
        with Traces(tmp_path / "out") as traces:
            records = read_run_records(tmp_path / "out")
            total = await rescore(
                traces.traces(), made, records, TraceStore(tmp_path / "new"), judgements=tmp_path, judged=live
            )
    after = {trace.id: trace.reward.score for trace in read_traces(tmp_path / "new") if trace.reward}
    assert len(after) == 3 and after == {identity: before[identity] / 2 for identity in after}
    assert list(total.not_done) == ["is not in the cassette"] and total.done == 3
    assert live.calls == live.differing == 9
    assert [one.environment["limits"]["assistant_turns"] for one in read_run_records(tmp_path / "new").values()] == [3]


CRITERIA = {"polite": "Says please.", "brief": "Uses few words."}


def words(trace: Trace, world: WorldScore) -> float:
    return len(trace.turns[-1].content.split()) * world.score


@pytest.mark.anyio
async def test_functions_and_a_rubric_are_applied_to_stored_traces(tmp_path: Path) -> None:
    requests: list[dict[str, Any]] = []

    async def judged(request: Request) -> JSONResponse:
        requests.append(await request.json())
        return JSONResponse({"choices": [{"message": {"content": '{"polite": 10, "brief": 4}'}}]})

    server = MCPServer("quiz", log_level="ERROR")

    @server.tool(meta={ROLE: "score"})
    async def score(messages: list[dict[str, Any]]) -> dict[str, Any]:
        return {"score": 0.5, "parts": {}}

    first = await play({"quiz": server}, saying("It is Paris."), tmp_path / "out", reward={"server": "quiz"})
    settings = environment_identity(environment({"quiz": server}, reward={"server": "quiz"}))
    record = RunRecord(
        kind="evaluation", environment=settings, tools=[], tool_digests={}, engine="scripted", sampling={}
    )
    async with listening(Starlette(routes=[Route("/v1/chat/completions", judged, methods=["POST"])])) as address:
        rubric = {"criteria": CRITERIA, "endpoint": {"url": f"{address}/v1", "model": "judge"}}
        reward = {"server": "quiz", "functions": {"words": f"{__name__}:words"}, "rubric": rubric}
        made = environment({"quiz": server}, reward={**reward, "weights": {"words": 1.0, "polite": 0.5}})
        for attempt in range(2):
            store = TraceStore(tmp_path / f"new-{attempt}")
            total = await rescore([first], made, {first.run: record}, store, judgements=tmp_path / "judgements")
            assert (total.done, total.changed, dict(total.not_done)) == (1, 1, {})
    assert len(requests) == 1  # the second time by content
    (again,) = read_traces(tmp_path / "new-0")
    assert again.reward is not None and again.reward.parts == {"words": 1.5, "polite": 1.0, "brief": 0.4}
    assert again.reward.score == pytest.approx(0.5 + 1.5 + 0.5)
