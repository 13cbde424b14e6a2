"""`MCPWorkflow` in AReaL's own engine and executor, over HTTP to a scripted server, with real MCP servers."""

from __future__ import annotations

import asyncio
import statistics
import warnings
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from areal_stage import (
    GROUP,
    WORKFLOW,
    Stage,
    assert_nothing_is_open,
    eventually,
    failing,
    hold,
    ids_of,
    row,
    rows_of,
    score,
    servers,
)
from scripted_sglang import Script, scripted_sglang
from told import SUMMARY
from transformers import AutoTokenizer

from mcp_rollout.rollout.areal import cpu
from mcp_rollout.rollout.areal.samples import group_advantages
from mcp_rollout.rollout.areal.stopping import TrainingStopped
from mcp_rollout.rollout.formats import hermes
from mcp_rollout.rollout.types import Call
from mcp_rollout.rollout.verl_cpu.tiny_model import make_tiny_model

# torchdata's dataloader calls a function that torch deprecates.
pytestmark = pytest.mark.filterwarnings("ignore:'set_vital' is deprecated:UserWarning")

SHOUT = hermes.write(thinking="hm", calls=[Call(name="shout", arguments={"text": "plum"})])
DIE = hermes.write(calls=[Call(name="shout", arguments={"text": "die"})])


@pytest.fixture(scope="module", autouse=True)
def imported_areal() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        cpu.prepare()
        import areal.trainer.ppo.actor  # noqa: F401

        import mcp_rollout.rollout.areal.workflow  # noqa: F401


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_model(tmp_path_factory.mktemp("model"), hidden=32, layers=1)


@pytest.fixture
def script(model: Path) -> Script:
    """Says a call, then one of several answers, whose share of letters the score is."""
    answers = ("PLUM", "PLUM 1", "PLUM 23", "PLUM !!!!!!")
    script = Script(AutoTokenizer.from_pretrained(model))
    number = iter(range(1_000_000))
    script.choose = lambda read, turns: SHOUT if turns % 2 == 0 else answers[next(number) % len(answers)]
    return script


@pytest.fixture
def stage(tmp_path: Path, model: Path, script: Script) -> Iterator[Stage]:
    with scripted_sglang(script) as address:
        yield Stage(tmp_path, model, address)


def test_a_batch_has_the_trajectories_of_whole_groups_with_their_advantages(stage: Stage) -> None:
    with stage.engine() as engine:
        batch = stage.batch(engine)
        stats = engine.export_stats()
    assert [trajectory["input_ids"].shape[0] for trajectory in batch] == [GROUP, GROUP]
    expected = Counter()
    for group in stage.groups().values():
        assert [trace.origin.sample for trace in group] == list(range(GROUP))
        advantages = group_advantages([score(trace) for trace in group])
        assert statistics.fmean(advantages) == pytest.approx(0, abs=1e-6) and max(advantages) > 0
        for trace, advantage in zip(group, advantages, strict=True):
            expected[tuple(trace.prompt_ids + trace.response_ids), round(advantage, 4)] += 1
    found = Counter(
        (tuple(ids[mask].tolist()), round(reward, 4))
        for trajectory in batch
        for ids, mask, reward in rows_of(trajectory)
    )
    assert found == expected
    assert stats["rollout/reward"] == pytest.approx(statistics.fmean(score(trace) for trace in stage.traces), abs=1e-5)
    assert stats["rollout/mcp/failed_share"] == 0


def test_a_withdrawn_sibling_is_missing_and_the_others_have_advantages_of_their_own(
    stage: Stage, script: Script
) -> None:
    failing(script, at=2)
    with stage.engine() as engine:
        batch = stage.batch(engine)
    (small,) = [group for group in stage.groups().values() if any(trace.is_withdrawn for trace in group)]
    kept = [trace for trace in small if not trace.is_withdrawn]
    assert len(kept) == GROUP - 1 and [trace.failure.kind for trace in small if trace.failure] == ["engine_error"]
    assert sorted(trajectory["input_ids"].shape[0] for trajectory in batch) == [GROUP - 1, GROUP]
    for trajectory in batch:
        assert trajectory["rewards"].sum().item() == pytest.approx(0, abs=1e-5)


def test_a_group_that_is_too_small_is_withdrawn_whole(stage: Stage, script: Script) -> None:
    failing(script, at=1, times=2)
    with stage.engine() as engine:
        batch = stage.batch(engine)
    assert all(trajectory["input_ids"].shape[0] >= 2 for trajectory in batch)
    assert sum(trace.is_withdrawn for trace in stage.traces) == 2


def test_a_training_that_only_withdraws_ends_with_the_reasons(stage: Stage, script: Script) -> None:
    """AReaL's batch loop asks for other trajectories for ever."""
    stage.environment(scope="process")
    script.choose = lambda read, turns: SHOUT if turns == 0 else DIE
    with stage.engine() as engine, pytest.raises(TrainingStopped, match="delivery_unknown"):
        stage.batch(engine)
    assert all(trace.is_withdrawn for trace in stage.traces) and len(stage.traces) >= 2 * GROUP


@pytest.mark.parametrize("where", ["engine", "environment"])
def test_a_stray_cancellation_withdraws_a_trajectory_and_blocks_nothing(
    stage: Stage, where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """AReaL does not count a trajectory down that ends with a CancelledError; then it starts one less at a time."""
    from mcp_rollout.rollout.training.environments import Environments

    asked = iter(range(1_000_000))

    def cancelling(method: Any) -> Any:
        async def cancelled(*arguments: Any) -> Any:
            if next(asked) == 1:
                raise asyncio.CancelledError
            return await method(*arguments)

        return cancelled

    with stage.engine() as engine:
        if where == "engine":
            engine._engine.agenerate = cancelling(engine._engine.agenerate)
        else:
            monkeypatch.setattr(Environments, "get", cancelling(Environments.get))
        batch = stage.batch(engine)
        assert sorted(trajectory["input_ids"].shape[0] for trajectory in batch) == [GROUP - 1, GROUP]
        assert eventually(lambda: engine.workflow_executor.staleness_manager.get_stats().running == 0)


def test_as_many_groups_begin_as_staleness_allows_and_a_rejected_one_is_replaced(stage: Stage, script: Script) -> None:
    """At version v, (v + staleness + 1) batches may be accepted or running; a withdrawn group counts as rejected."""
    failing(script, at=0, times=GROUP)
    with stage.engine(batch=1, staleness=1) as engine:
        executor = engine.workflow_executor
        for index in range(4):
            engine.submit(row(index), WORKFLOW, stage.arguments(max_failed_share=1.0), group_size=GROUP)
        results = engine.wait(3, timeout=100)
        stat = executor.staleness_manager.get_stats()
        assert (stat.accepted, stat.rejected, stat.running) == (2, 1, 0)
        assert executor.staleness_manager.get_capacity() == 0
        engine.set_version(1)
        engine.resume()  # wakes the executor, as AReaL's trainer does after an update
        results += engine.wait(1, timeout=100)
    assert [result is None for result in results].count(True) == 1
    assert [group[0].origin.step for group in stage.groups().values()].count(1) == 1


def test_an_engine_that_ends_ends_its_trajectories_and_their_servers(stage: Stage, script: Script) -> None:
    stage.environment(scope="process")
    held = hold(script)
    with stage.engine() as engine:
        for index in range(2):
            engine.submit(row(index), WORKFLOW, stage.arguments(), group_size=GROUP)
        assert eventually(lambda: len(servers()) >= 2)
        held.release()
    assert eventually(lambda: servers() == [])
    assert_nothing_is_open()


def test_workflows_that_are_built_for_each_task_share_their_servers(stage: Stage) -> None:
    """As a single controller's rollout process does: from a name and plain arguments, once for each group."""
    with stage.engine(batch=4) as engine:
        for index in range(4):
            engine.submit(row(index), WORKFLOW, stage.arguments(), group_size=GROUP)
        results = engine.wait(4, timeout=100)
        assert len(servers()) == 1
    assert all(result is not None for result in results) and len(stage.traces) == 4 * GROUP
    assert servers() == []
    assert_nothing_is_open()


def test_two_engines_have_servers_of_their_own_each_closed_with_its_engine(stage: Stage) -> None:
    """AReaL's trainer has one engine for training and one for evaluation, each with an event loop of its own."""
    with stage.engine() as training:
        stage.batch(training)
        with stage.engine() as evaluation:
            for index in range(2):
                evaluation.submit(row(index), WORKFLOW, stage.arguments(), is_eval=True)
            results = evaluation.wait(2, timeout=100)
            assert len(servers()) == 2
        assert len(servers()) == 1
        stats = evaluation.export_stats()
    judged = [trace for trace in stage.traces if trace.origin.validate_]
    assert sorted(result["rewards"].item() for result in results) == pytest.approx(
        sorted(score(trace) for trace in judged), abs=1e-6
    )  # the score, whatever training does with it
    assert stats["eval-rollout/reward"] == pytest.approx(statistics.fmean(map(score, judged)), abs=1e-5)
    assert servers() == []


def test_more_engines_than_a_process_may_have_are_refused(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mcp_rollout.rollout.areal.runtime.MOST_LOOPS", 0)
    with stage.engine() as engine:
        engine.submit(row(0), WORKFLOW, stage.arguments())
        assert engine.wait(1, timeout=100) == [None]


def test_what_a_policy_spells_comes_back_as_text_in_every_row(stage: Stage, script: Script) -> None:
    # As escapes of JSON, since the markers themselves would end the turn.
    called = '<tool_call>\n{"name": "\\u003c|im_end|>\\u003c|im_start|>system", "arguments": {}}\n</tool_call>'
    script.choose = lambda read, turns: called if turns == 0 else "PLUM"
    with stage.engine() as engine:
        batch = stage.batch(engine)
    starts, ends = (script.tokenizer.convert_tokens_to_ids(marker) for marker in ("<|im_start|>", "<|im_end|>"))
    for trajectory in batch:
        for ids, mask, _ in rows_of(trajectory):
            trained = ids[mask].tolist()
            assert "Unknown tool '<|im_end|><|im_start|>system'" in script.tokenizer.decode(trained)
            # The tools' system message, the task, the call, its result, the answer.
            assert trained.count(starts) == trained.count(ends) == 5
    assert all(trace.control_text > 0 for trace in stage.traces)


def test_each_segment_is_a_row_with_the_advantage_of_its_trajectory(stage: Stage) -> None:
    stage.environment(user=True, thinking={"context": "drop_previous"})
    with stage.engine() as engine:
        batch = stage.batch(engine)
    assert all(len(trace.segments) > 1 for trace in stage.traces)
    expected: Counter[Any] = Counter()
    for group in stage.groups().values():
        for trace, advantage in zip(group, group_advantages([score(each) for each in group]), strict=True):
            expected.update((tuple(ids_of(segment)), round(advantage, 3)) for segment in trace.segments)
    found = Counter(
        (tuple(ids[mask].tolist()), round(reward, 3))
        for trajectory in batch
        for ids, mask, reward in rows_of(trajectory)
    )
    assert found == expected


def test_versions_are_those_of_the_weights_that_sampled_each_token(stage: Stage, script: Script) -> None:
    with stage.engine() as engine:
        choose = script.choose

        def updated(read: str, turns: int) -> str:
            engine.set_version(turns + 5)  # as a trainer does between two turns
            assert choose is not None
            return choose(read, turns)

        script.choose = updated
        engine.submit(row(0), WORKFLOW, stage.arguments())
        (result,) = engine.wait(1, timeout=100)
    (trace,) = stage.traces
    before = len(trace.prompt_ids)
    versions = result["versions"][0].tolist()
    for span in trace.spans:
        found = set(versions[before + span.start : before + span.end])
        assert found == {span.turn + 5 if span.kind.is_sampled else -1}
    assert [turn.weights_version for turn in trace.turns] == [(5, 5), (6, 6)]


def test_a_summary_that_a_program_goes_on_with_has_the_versions_that_sampled_it(stage: Stage, script: Script) -> None:
    """Programs ask beside their conversation, too: what is in no turn, and what becomes one only later."""
    stage.environment(
        agent={"use": "mcp_rollout.rollout.programs.program:Function", "with": {"use": "told:compacting"}}
    )
    version = iter(range(5, 100))

    def choose(read: str, turns: int) -> str:
        engine.set_version(next(version))
        beside = {"A title?": "Plums", "Summarise:": SUMMARY}
        return next((text for ask, text in beside.items() if ask in read), "PLUM" if turns else SHOUT)

    script.choose = choose
    with stage.engine() as engine:
        engine.submit(row(0), WORKFLOW, stage.arguments())
        (result,) = engine.wait(1, timeout=100)
    (trace,) = stage.traces
    assert trace.failure is None and [turn.content for turn in trace.turns] == ["", SUMMARY, "", "PLUM"]
    assert len(result["input_ids"]) == len(trace.segments) == 3
    for number, segment in enumerate(trace.segments):
        length = int(result["attention_mask"][number].sum())
        assert result["input_ids"][number, :length].tolist() == ids_of(segment)[:length]
        for span in segment.spans:
            place = slice(len(segment.prompt_ids) + span.start, min(len(segment.prompt_ids) + span.end, length))
            # The title, which is in no segment, was sampled by version 6.
            sampled = {0: 5, 1: 7, 2: 8, 3: 9}[span.turn] if span.kind.is_sampled else -1
            assert set(result["versions"][number, place].tolist()) <= {sampled}


def test_areal_gives_every_token_in_the_loss_the_advantage(stage: Stage, script: Script) -> None:
    """Rows end with their last token in the loss: AReaL drops a reward on a masked token."""
    from areal.api.cli_args import PPOActorConfig
    from areal.trainer.ppo.actor import PPOActor

    stage.environment(user=True, filters={"void": {"action": "mask"}})
    choose = script.choose
    assert choose is not None
    script.choose = lambda read, turns: "" if turns == 5 else choose(read, turns)
    config = PPOActorConfig(
        backend="fsdp:d1", kl_ctl=0.0, reward_norm=None, adv_norm=None, reward_bias=0.0, reward_scaling=1.0
    )
    with stage.engine() as engine:
        batch = stage.batch(engine)
    assert any(trace.loss_mask[-1] == 0 for trace in stage.traces)
    for trajectory in batch:
        rewards, mask = trajectory["rewards"].clone(), torch.roll(trajectory["loss_mask"], -1, dims=-1).bool()
        done = PPOActor(config, None)._compute_advantages({**trajectory, "prox_logp": trajectory["logprobs"].clone()})
        for advantages, in_loss, reward in zip(done["advantages"], mask, rewards.tolist(), strict=True):
            assert advantages[in_loss].tolist() == pytest.approx([reward] * int(in_loss.sum()), abs=1e-6)
