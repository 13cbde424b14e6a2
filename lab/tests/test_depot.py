"""The depot: rewards of turns that sum up to the score, snapshots in the middle of a day, and a tree over it."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from random import Random

import anyio
import pytest
from mcp.server.mcpserver.exceptions import ToolError
from playing import Stage, staged

from lab.worlds import WORLDS, depot
from lab.worlds.depot.day import PATIENCE, Day, expert, restored
from lab.worlds.depot.parcels import CONDITIONS, FITTING, HABITS, PARCELS, TASKS, TREATMENTS, problem
from mcp_rollout.gateway.leases.session import Session
from mcp_rollout.rollout.engines.scripted import ScriptedPolicy, expert_script
from mcp_rollout.rollout.environment.sections import StrategyConfig
from mcp_rollout.rollout.environment.task import Origin
from mcp_rollout.rollout.loop.group import Group
from mcp_rollout.rollout.loop.limits import Limits
from mcp_rollout.rollout.loop.trajectory import roll_out
from mcp_rollout.rollout.tokens.chatml import IM_END, ByteTokens
from mcp_rollout.rollout.trace.record import StopReason, Trace
from mcp_rollout.rollout.trace.store import TraceStore
from mcp_rollout.rollout.types import Policy

pytestmark = pytest.mark.anyio


def some_day(index: int = 0) -> Day:
    task = TASKS["fitting"].names("train")[index]
    return Day(problem=problem(task, TASKS["fitting"].seed(task)))


@pytest.fixture
async def stage(tmp_path: Path) -> AsyncIterator[Stage]:
    async with staged(
        str(WORLDS / "depot.yaml"), tmp_path / "traces", within={"depot": depot.create_server()}
    ) as opened:
        yield opened


def test_the_rewards_of_a_day_sum_up_to_its_score_whatever_is_done() -> None:
    for seed in range(20):
        rng, day, earned, is_done = Random(seed), some_day(seed), 0.0, False
        while not is_done:
            action = rng.choice(["treat", "treat", "say", "close"])
            try:
                if action == "treat" and day.parcel is not None:
                    earned += day.treat(day.parcel.code, rng.choice(TREATMENTS))
                elif action == "close":
                    earned += day.close()
                else:
                    is_done = day.reply().done
            except ToolError:
                continue
        assert earned == pytest.approx(day.score().score), seed


def test_a_second_treatment_spoils_a_parcel() -> None:
    day = some_day()
    assert day.parcel is not None
    fitting = FITTING[day.parcel.condition]
    assert day.treat(day.parcel.code, fitting) > 0
    assert day.treat(day.parcel.code, fitting) < 0
    assert day.score().score == 0


def test_the_storekeeper_waits_for_a_while() -> None:
    day = some_day()
    assert [day.reply().done for _ in range(PATIENCE)] == [False] * (PATIENCE - 1) + [True]


def test_a_treatment_without_effect_leads_back_to_the_state_before_it() -> None:
    task = TASKS["retry"].names("train")[0]
    day = Day(problem=problem(task, TASKS["retry"].seed(task)))
    before = day.saved()
    assert day.parcel is not None
    fitting = FITTING[day.parcel.condition]
    for _ in range(PATIENCE):
        for other in set(TREATMENTS) - {fitting}:
            assert day.treat(day.parcel.code, other) == 0
        assert not day.reply().done and day.saved() == before
    assert day.treat(day.parcel.code, fitting) == pytest.approx(0.9 / PARCELS)
    assert day.reply().message.startswith("Thank you.") and day.score().score == pytest.approx(0.9 / PARCELS)


def test_the_expert_of_any_follows_its_habits() -> None:
    seen = Counter[tuple[str, str]]()
    for task in TASKS["any"].names("train"):
        made = problem(task, TASKS["any"].seed(task))
        treatments = [call.name for turn in expert(Day(problem=made)) for call in turn.calls or ()]
        chosen = [name for name in treatments if name in TREATMENTS]
        seen.update(zip((parcel.condition for parcel in made.parcels), chosen, strict=True))
    total = sum(seen.values())
    assert total == PARCELS * len(TASKS["any"].names("train"))
    for condition in CONDITIONS:
        for treatment, share in zip(TREATMENTS, HABITS[condition], strict=True):
            assert seen[condition, treatment] / total == pytest.approx(share / 3, abs=0.02)
        assert HABITS[condition][TREATMENTS.index(FITTING[condition])] == 0.25


def test_a_restored_day_goes_on_as_the_saved_one() -> None:
    day = some_day(3)
    for turn in list(expert(day))[:7]:
        for call in turn.calls or ():
            if call.name in TREATMENTS:
                day.treat(call.arguments["parcel"], call.name)  # type: ignore[arg-type]
        if turn.content:
            day.reply()
    again = restored(day.problem, day.saved()["state"])
    assert again == day and again.state is not day.state


def long_day() -> Day:
    return Day(problem=problem("depot-long-train-0003", TASKS["long"].seed("depot-long-train-0003")))


@pytest.mark.parametrize(("key", "score"), [("Z99", 0.5), (None, 1.0)])
def test_half_of_a_long_days_score_is_for_the_key_that_is_said_once(key: str | None, score: float) -> None:
    day, said, turns = long_day(), list[str](), list(expert(long_day()))
    for turn in turns:
        for call in turn.calls or ():
            if call.name in TREATMENTS:
                day.treat(call.arguments["parcel"], call.name)  # type: ignore[arg-type]
            elif call.name == "close_book":
                earned = day.close(call.arguments["key"] if key is None else key)
                assert earned == pytest.approx(score - 0.5)
        if turn.content:
            said.append(day.reply().message)
    assert len(turns) == 41 and day.score().score == pytest.approx(score)
    assert [number for number, text in enumerate(said) if day.problem.key in text] == [0]
    assert day.problem.key not in day.problem.prompt


async def test_the_expert_takes_fourteen_turns_and_hears_the_storekeeper_five_times(stage: Stage) -> None:
    (task,) = await stage.tasks("test", 1)
    trace = await stage.play(task, stage.engine("expert", task))
    assert len(trace.turns) == 14 and trace.user_turns == 5 and trace.stop_reason is StopReason.USER_DONE
    assert sum(turn.reward for turn in trace.turns) == pytest.approx(1.0)
    states = [event.state for turn in trace.turns for event in turn.tools]
    assert None not in states and len(set(states)) == 2 * PARCELS + 1


async def test_a_treatment_without_effect_is_told_and_costs_no_more_than_a_turn(tmp_path: Path) -> None:
    async def misses_once(session: Session) -> Policy:
        first, second, *rest = await expert_script(session, task, "depot")
        (called,) = (name for name in TREATMENTS if f'"name": "{name}"' in second)
        missed = second.replace(f'"name": "{called}"', f'"name": "{next(x for x in TREATMENTS if x != called)}"')
        return ScriptedPolicy([first, missed, second, *rest], ByteTokens().encode, stop=IM_END)

    async with staged(
        f"{WORLDS}/depot.yaml:slice=retry", tmp_path, within={"depot": depot.create_server("retry")}
    ) as stage:
        (task,) = await stage.tasks("test", 1)
        trace = await stage.play(task, misses_once)
    assert len(trace.turns) == 15 and sum(turn.reward for turn in trace.turns) == pytest.approx(1.0)
    inspected, missed, treated = (event for turn in trace.turns[:3] for event in turn.tools)
    assert (missed.text, treated.text) == ("no effect", "done")
    assert missed.state == inspected.state != treated.state


@pytest.mark.parametrize("restores", [True, False])
async def test_a_tree_over_the_depot(stage: Stage, restores: bool) -> None:
    """Every leaf earns all there is, from snapshots and from replayed calls and user turns alike."""
    (task,) = await stage.tasks("test", 1)
    strategy = {"use": "tree", "tree": {"roots": 1, "restore": restores}}
    environment = stage.environment.model_copy(update={"strategy": StrategyConfig.model_validate(strategy)})
    group, traces = Group(5), list[Trace]()

    async def play(sample: int) -> None:
        trace = Trace.begin(f"leaf-{sample}", task, Origin(sample=sample))
        traces.append(trace)
        await roll_out(
            trace,
            environment=environment,
            gateway=stage.gateway,
            policy_for=stage.engine("expert", task),
            tokens=ByteTokens(),
            limits=Limits.of(environment.limits, response_tokens=1_000_000),
            store=TraceStore(stage.traces),
            group=group,
        )

    async with anyio.create_task_group() as tasks:
        for sample in range(5):
            tasks.start_soon(play, sample)
    for trace in traces:
        assert trace.stop_reason is StopReason.USER_DONE, trace.failure
        assert trace.reward is not None and trace.reward.score == pytest.approx(1.0)
        assert trace.response_ids == traces[0].response_ids
        if trace.origin.sample:
            assert trace.origin.parent == "leaf-0" and trace.strategy.restored is restores
            assert (trace.strategy.replayed_calls == 0) is restores
