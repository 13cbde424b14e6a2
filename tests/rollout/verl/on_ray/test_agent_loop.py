"""`MCPAgentLoop` as verl builds and calls it: it never raises, and it withdraws failed trajectories."""

from __future__ import annotations

import asyncio
import os
import signal
from contextlib import suppress
from contextvars import ContextVar
from pathlib import Path
from typing import Any

import psutil
import pytest
import yaml
from omegaconf import DictConfig
from structlog.testing import capture_logs
from transformers import AutoTokenizer
from verl_config import composed
from verl_run import reported

from mcp_rollout.rollout.environment.task import Origin, Task
from mcp_rollout.rollout.formats import hermes
from mcp_rollout.rollout.trace.record import Trace
from mcp_rollout.rollout.trace.run_record import read_run_records
from mcp_rollout.rollout.trace.store import read_traces
from mcp_rollout.rollout.types import Call, Completion, Edit, Parsed
from mcp_rollout.rollout.verl_cpu.tiny_model import make_tiny_model

pytestmark = [pytest.mark.anyio, pytest.mark.verl, pytest.mark.usefixtures("imported_verl", "closed_worker")]

ROOT = Path(__file__).parents[4]
SERVER = ROOT / "tests" / "support" / "echo_server.py"
SHOUT = hermes.write(thinking="hm", calls=[Call(name="shout", arguments={"text": "plum"})])


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_model(tmp_path_factory.mktemp("model"), hidden=32, layers=1)


@pytest.fixture
def environments(tmp_path: Path) -> Path:
    """The directory of `echo`, whose server is in this process."""
    (tmp_path / "environments").mkdir()
    return written(tmp_path / "environments", {"factory": "echo_server:create"})


@pytest.fixture
def own_process(environments: Path) -> None:
    """Each world has a process, which dies at `die` and offers other tools after `turn`."""
    turns = {"ECHO_TURNS_AT": "turn", "ECHO_TURNED": str(environments.parent / "turned")}
    program = {"command": "${python}", "args": [str(SERVER)], "env": {"ECHO_DIES_AT": "die", **turns}}
    written(environments, {**program, "scope": "process"})


def written(directory: Path, server: dict[str, Any]) -> Path:
    entry = {**server, "roles": {"score": "judge"}}
    environment = {"servers": {"echo": entry}, "reward": {"server": "echo", "parts": ["letters"]}}
    (directory / "echo.yaml").write_text(yaml.safe_dump(environment))
    return directory


@pytest.fixture(params=["v0", "v1"])
def use_v1(request: pytest.FixtureRequest) -> bool:
    """v1 reports to the job's statistics collector, a Ray actor."""
    if request.param == "v1":
        request.getfixturevalue("cluster")
    return request.param == "v1"


@pytest.fixture
def config(tmp_path: Path, model: Path, environments: Path, use_v1: bool) -> DictConfig:
    return composed(
        model,
        f"trainer.use_v1={use_v1}",
        f"trainer.default_local_dir={tmp_path}",
        f"actor_rollout_ref.rollout.custom.mcp.environments_dir={environments}",
    )


class ScriptedClient:
    """verl's `LLMServerClient` where the model says what it was given."""

    def __init__(self, tokenizer: Any, texts: list[str]) -> None:
        self._tokenizer, self._texts = tokenizer, iter(texts)
        self.asked: list[tuple[str, object]] = []
        """Request id and seed of each generation."""

    async def generate(self, request_id: str, *, prompt_ids: list[int], sampling_params: dict[str, Any]) -> Any:
        from verl.workers.rollout.replica import TokenOutput

        self.asked.append((request_id, sampling_params.get("seed")))
        text = next(self._texts)
        if text == "fail":
            raise RuntimeError("the engine is gone")
        if text == "kill":
            (child,) = _servers()
            os.kill(child.pid, signal.SIGKILL)
            text = SHOUT
        ids = self._tokenizer.encode(text + "<|im_end|>", add_special_tokens=False)
        extra = {"min_global_steps": 3, "max_global_steps": 4}
        return TokenOutput(token_ids=ids, log_probs=[-0.5] * len(ids), stop_reason="completed", extra_fields=extra)


def _servers() -> list[psutil.Process]:
    found: list[psutil.Process] = []
    for child in psutil.Process().children(recursive=True):
        with suppress(psutil.NoSuchProcess):  # or a zombie
            found += [child] if str(SERVER) in child.cmdline() else []
    return found


REFUSES_TOOLS = "{%- for m in messages if m.role == 'tool' -%}{{ raise_exception('no tools here') }}{%- endfor -%}"


async def run(
    config: DictConfig,
    model: Path,
    texts: list[str],
    *,
    template: str = "",
    asked: list[tuple[str, object]] | None = None,
    **row: Any,
) -> Any:
    from verl.experimental.agent_loop.agent_loop import DictConfigWrap
    from verl.utils.dataset.rl_dataset import RLHFDataset

    from mcp_rollout.rollout.verl.agent_loop import MCPAgentLoop

    tokenizer = AutoTokenizer.from_pretrained(model)
    tokenizer.chat_template = template + tokenizer.chat_template
    client = ScriptedClient(tokenizer, texts)
    client.asked = client.asked if asked is None else asked
    loop = MCPAgentLoop(
        trainer_config=DictConfigWrap(config),
        server_manager=client,
        tokenizer=tokenizer,
        processor=None,
        dataset_cls=RLHFDataset,
        data_config=DictConfigWrap(config.data),
        hf_model_type="qwen3",
    )
    mcp = {"environment": "echo", "task": "t", "seed": 1, "tools": None}
    values: dict[str, Any] = {
        "raw_prompt": [{"role": "user", "content": "Shout plum."}],
        "extra_info": {"index": 5, "mcp": mcp},
        "index": 5,
        "session_id": 2,
        "uid": "u",
    }
    return await loop.run({"temperature": 1.0, "logprobs": True}, **values | row)


def traces(config: DictConfig) -> list[Trace]:
    return list(read_traces(config.actor_rollout_ref.rollout.custom.mcp.trace_dir))


def is_withdrawn(output: Any, config: DictConfig) -> bool:
    return output == [] if config.trainer.use_v1 else output.response_mask == [0]


async def test_a_played_trajectory_becomes_a_training_sample(config: DictConfig, model: Path) -> None:
    output = await run(config, model, [SHOUT, "PLUM"])
    (trace,) = traces(config)
    assert (output.prompt_ids, output.response_ids) == (trace.prompt_ids, trace.response_ids)
    assert (output.response_mask, output.response_logprobs) == (trace.loss_mask, trace.logprobs)
    assert output.reward_score == trace.reward.score > 0  # type: ignore[union-attr]
    assert (output.extra_fields["min_global_steps"], output.extra_fields["max_global_steps"]) == (3, 4)
    assert trace.turns[0].tools[0].text == "PLUM"
    assert (trace.origin.row, trace.origin.sample, trace.origin.uid) == (5, 2, "u")


async def test_a_replay_of_engine_and_servers_gives_the_same_sample_without_either(
    config: DictConfig, model: Path, tmp_path: Path, environments: Path
) -> None:
    from mcp_rollout.rollout.verl.runtime import WORKER

    ours = config.actor_rollout_ref.rollout.custom.mcp
    ours.record = str(tmp_path / "tapes")
    first = await run(config, model, [SHOUT, "PLUM"])
    await WORKER.close()
    ours.record, ours.replay, ours.recorded_engine = None, str(tmp_path / "tapes"), ours.trace_dir
    path = environments / "echo.yaml"
    path.write_text(path.read_text().replace("echo_server", "no_such_module"))
    again = await run(config, model, [])
    assert again.prompt_ids == first.prompt_ids and again.response_ids == first.response_ids
    assert (again.response_mask, again.response_logprobs) == (first.response_mask, first.response_logprobs)
    assert again.reward_score == first.reward_score > 0
    # A sample that was not recorded is withdrawn, and its trace says what is missing.
    assert is_withdrawn(await run(config, model, [], session_id=3), config)
    failure = next(trace.failure for trace in traces(config) if trace.origin.sample == 3)
    assert failure is not None and failure.kind == "replay_mismatch"


@pytest.mark.usefixtures("own_process")
async def test_every_outcome_has_the_same_keys(config: DictConfig, model: Path) -> None:
    outputs = [
        await run(config, model, [SHOUT, "PLUM"]),
        await run(config, model, ["<tool_call>{", "no"]),
        await run(config, model, [hermes.write(calls=[Call(name="shout", arguments={"text": "die"})])]),
    ]
    if config.trainer.use_v1:
        assert outputs.pop() == []
    assert len({frozenset(output.as_dict()) for output in outputs}) == 1
    assert len({frozenset(output.extra_fields) for output in outputs}) == 1
    assert len({frozenset(output.extra_fields["reward_extra_info"]) for output in outputs}) == 1


@pytest.mark.usefixtures("own_process")
async def test_a_server_that_dies_in_mid_call_withdraws_the_trajectory(config: DictConfig, model: Path) -> None:
    texts = [SHOUT, hermes.write(calls=[Call(name="shout", arguments={"text": "die"})])]
    assert is_withdrawn(await run(config, model, texts), config)
    (trace,) = traces(config)
    assert trace.failure is not None and trace.failure.kind == "delivery_unknown"
    assert trace.turns[0].tools[0].text == "PLUM"  # what happened is kept


@pytest.mark.usefixtures("own_process")
async def test_a_server_killed_between_two_calls_withdraws_and_the_next_lease_is_whole(
    config: DictConfig, model: Path
) -> None:
    assert is_withdrawn(await run(config, model, [SHOUT, "kill"]), config)
    assert not is_withdrawn(await run(config, model, [SHOUT, "PLUM"]), config)


async def test_an_engine_that_fails_withdraws_the_trajectory(config: DictConfig, model: Path) -> None:
    assert is_withdrawn(await run(config, model, [SHOUT, "fail"]), config)
    (trace,) = traces(config)
    assert trace.failure is not None and "the engine is gone" in trace.failure.message


async def test_a_cancelled_error_without_a_cancellation_withdraws_the_trajectory_and_not_its_batch(
    config: DictConfig, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from mcp_rollout.rollout.training.environments import Environments

    async def cancelled(*_: object) -> None:
        raise asyncio.CancelledError

    monkeypatch.setattr(Environments, "get", cancelled)
    assert is_withdrawn(await run(config, model, [SHOUT]), config)


@pytest.mark.parametrize(
    "extra_info",
    [
        None,
        {},
        {"mcp": None},
        {"mcp": {"environment": "echo"}},
        {"mcp": {"environment": "nowhere", "task": "t", "seed": 1}},
        {"mcp": {"environment": "echo", "task": "t", "seed": 1, "tools": ["nothing"]}},
    ],
)
async def test_a_row_that_makes_no_sense_is_withdrawn_and_not_raised(
    config: DictConfig, model: Path, extra_info: Any
) -> None:
    assert is_withdrawn(await run(config, model, [SHOUT], extra_info=extra_info), config)
    (trace,) = traces(config)
    assert trace.failure is not None and trace.failure.kind.startswith("config_error")


async def test_a_row_with_a_name_for_its_index_is_withdrawn_and_not_raised(config: DictConfig, model: Path) -> None:
    mcp = {"environment": "echo", "task": "t", "seed": 1}
    row = {"extra_info": {"index": "row-5", "mcp": mcp}, "index": "row-5"}
    assert is_withdrawn(await run(config, model, [SHOUT, "PLUM"], **row), config)
    (trace,) = traces(config)
    assert trace.failure is not None and "extra_info.index: is not an integer: 'row-5'" in trace.failure.message


@pytest.mark.parametrize("use_v1", ["v1"], indirect=True)
async def test_under_full_determinism_request_ids_and_seeds_repeat_and_those_of_siblings_and_other_seeds_differ(
    config: DictConfig, model: Path
) -> None:
    from mcp_rollout.rollout.verl.runtime import WORKER

    config.actor_rollout_ref.rollout.full_determinism = True
    runs: list[list[tuple[str, object]]] = [[], [], [], []]
    for asked, sibling, seed in zip(runs, (2, 2, 3, 2), (0, 0, 0, 1), strict=True):
        if seed:
            config.actor_rollout_ref.rollout.custom.mcp.seed = seed
            await WORKER.close()
        await run(config, model, [SHOUT, "PLUM"], asked=asked, session_id=sibling)
    assert {request for request, _ in runs[0]}.isdisjoint(request for request, _ in runs[3])
    assert {seed for _, seed in runs[0]}.isdisjoint(seed for _, seed in runs[3])
    records = read_run_records(Path(config.actor_rollout_ref.rollout.custom.mcp.trace_dir))
    assert sorted(record.sampling["seed"] for record in records.values()) == [0, 1]
    assert runs[0] == runs[1] and len({seed for _, seed in runs[0]}) == 2
    assert {request for request, _ in runs[0]}.isdisjoint(request for request, _ in runs[2])
    recorded = [(turn.request_ids, turn.seeds) for trace in traces(config) for turn in trace.turns]
    assert recorded == [([request], [seed]) for asked in runs for request, seed in asked]


@pytest.mark.parametrize("use_v1", ["v1"], indirect=True)
async def test_a_row_that_is_played_again_in_its_step_has_request_ids_and_seeds_of_its_own(
    config: DictConfig, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from mcp_rollout.rollout.verl import agent_loop
    from mcp_rollout.rollout.verl.origin import Batch

    config.actor_rollout_ref.rollout.full_determinism = True
    asked: list[tuple[str, object]] = []
    for batch in (Batch(), Batch(copy=1), Batch(attempt=1), Batch(copy=1, attempt=1)):
        with monkeypatch.context() as patched:
            patched.setattr(agent_loop, "_BATCH", ContextVar("batch", default=batch))
            await run(config, model, [SHOUT, "PLUM"], asked=asked, session_id=0)
    requests, seeds = zip(*asked, strict=True)
    # Two turns each, of one request id.
    assert len(seeds) == len(set(seeds)) == 8 and len(set(requests)) == 4


@pytest.mark.parametrize("use_v1", ["v1"], indirect=True)
async def test_a_withdrawn_trajectory_is_reported(config: DictConfig, model: Path) -> None:
    from mcp_rollout.rollout.training.statistics import TooManyFailures, check_failures

    await run(config, model, [SHOUT, "PLUM"])
    await run(config, model, [SHOUT, "fail"])
    batch = reported()
    assert (len(batch.trajectories), batch.failures.total()) == (2, 1)
    check_failures(batch, 0.5)
    with pytest.raises(TooManyFailures, match=r"1 of 2 trajectories .*\n  1 x .*the engine is gone"):
        check_failures(batch, 0.4)


@pytest.mark.parametrize("use_v1", ["v1"], indirect=True)
async def test_a_defect_is_counted_with_what_was_played_and_what_went_well_is_trained_on(
    config: DictConfig, model: Path
) -> None:
    with capture_logs() as logged:
        assert await run(config, model, [SHOUT, "PLUM"], template=REFUSES_TOOLS) == []
        said = await run(config, model, ["I would rather not."], template=REFUSES_TOOLS)
    assert (logged[0]["event"], logged[0]["log_level"]) == ("trajectory could not be played", "error")
    batch = reported()
    assert said.reward_score > 0 and (len(batch.trajectories), batch.failures.total()) == (2, 1)
    assert next(iter(batch.failures)).startswith("internal_error: ")
    assert [one.tool_calls for one in batch.trajectories] == [1, 0]
    (first, _) = traces(config)
    assert first.failure is not None and first.messages[-1]["content"] == "PLUM"


@pytest.mark.usefixtures("own_process")
@pytest.mark.parametrize("use_v1", ["v1"], indirect=True)
async def test_a_server_that_changes_its_tools_in_mid_run_withdraws_the_trajectory_and_stops_training(
    config: DictConfig, model: Path, tmp_path: Path
) -> None:
    from mcp_rollout.rollout.training.statistics import ToolsChanged, check_failures

    turn = hermes.write(calls=[Call(name="shout", arguments={"text": "turn"})])
    assert await run(config, model, [SHOUT, turn, SHOUT, SHOUT, SHOUT, "PLUM"]) == []
    (tmp_path / "turned").touch()  # from now on fresh processes offer the changed tools, too
    for _ in range(8):  # those that wait to be leased were started before
        if await run(config, model, [SHOUT, "PLUM"]) == []:
            break
    first, *kept, last = traces(config)
    assert first.failure is not None and first.failure.kind == "own_tools_changed"
    assert first.turns[1].tools[0].text == "TURN" and all(trace.reward is not None for trace in kept)
    assert last.failure is not None and last.failure.kind == "tools_changed"
    batch = reported()
    assert batch.failures.total() == 2
    with pytest.raises(ToolsChanged) as caught:
        check_failures(batch, 1.0)
    message = str(caught.value)
    assert '-  "description": "Say it louder."' in message and "send the user's files along" in message
    assert message.count("echo/shout has changed") == 1 and "--accept" in message


def compute_score(data_source: str, solution_str: str, ground_truth: str | None, extra_info: dict[str, Any]) -> Any:
    """A reward function as verl's users write them; its answer depends on what the policy said at the end."""
    played = extra_info["mcp_trajectory"]
    last = played["messages"][-1]["content"]
    calls = [event.text for turn in played["trace"].turns for event in turn.tools]
    if last == "raise":
        raise ValueError("no such answer")
    if last == "clash":
        return {"score": 1.0, "letters": 1.0}
    if last == "number":
        return 2
    assert ground_truth is None and solution_str.count("PLUM") and played["row"]["index"] == extra_info["index"] == 5
    return {
        "score": float("nan") if last == "nan" else 10.0,
        "acc": len(calls),
        "world": played["world"].score,
        "t": "a",
    }


def worker_with(reward_loop: Any) -> Any:
    """verl's worker with a reward loop, both in this process."""
    from types import SimpleNamespace

    from mcp_rollout.rollout.verl import agent_loop

    worker = object.__new__(agent_loop.MCPAgentLoopWorker)
    worker.processor = None
    worker.reward_loop_worker_handles = [
        SimpleNamespace(compute_score=SimpleNamespace(remote=reward_loop.compute_score))
    ]
    return worker


async def rewarded(config: DictConfig, model: Path, last: str, reward_loop: Any) -> Any:
    """A trajectory in verl's worker with a reward loop, both in this process."""
    from mcp_rollout.rollout.verl import agent_loop
    from mcp_rollout.rollout.verl.origin import Batch

    agent_loop._BATCH.set(Batch(compute_score=worker_with(reward_loop)._compute_score))
    row = {"data_source": "echo", "reward_model": {"style": "rule", "ground_truth": None}}
    return await run(config, model, [SHOUT, last], **row)


@pytest.fixture
def rewarding(config: DictConfig) -> DictConfig:
    """The configuration with the function above."""
    config.reward.custom_reward_function.path = __file__
    config.actor_rollout_ref.rollout.custom.mcp.custom_reward = "add"
    return config


@pytest.mark.parametrize("use_v1", ["v1"], indirect=True)
async def test_verls_reward_function_counts_as_the_key_says(rewarding: DictConfig, model: Path) -> None:
    from verl.experimental.reward_loop import RewardLoopWorker

    from mcp_rollout.rollout.verl.runtime import WORKER

    reward_loop = RewardLoopWorker(rewarding)
    for use in ("add", "replace"):
        await WORKER.close()
        rewarding.actor_rollout_ref.rollout.custom.mcp.custom_reward = use
        output = await rewarded(rewarding, model, "PLUM", reward_loop)
        trace = traces(rewarding)[-1]
        assert trace.reward is not None and output.reward_score == trace.reward.score
        world = trace.reward.parts["letters"]
        assert trace.reward.score == pytest.approx({"add": 10 + world, "replace": 10}[use])
        extra = output.extra_fields["reward_extra_info"]
        assert (extra["mcp_custom"], extra["acc"], extra["world"], extra["t"]) == (10, 1, world, "a")
        assert trace.reward.parts == {"letters": world, "mcp_custom": 10, "acc": 1, "world": world}


@pytest.mark.parametrize("use_v1", ["v1"], indirect=True)
async def test_a_reward_function_gives_verls_acc_and_one_that_fails_withdraws_the_trajectory_with_its_reason(
    rewarding: DictConfig, model: Path
) -> None:
    from verl.experimental.reward_loop import RewardLoopWorker

    reward_loop = RewardLoopWorker(rewarding)
    output = await rewarded(rewarding, model, "number", reward_loop)
    extra = output.extra_fields["reward_extra_info"]
    assert (extra["mcp_custom"], extra["acc"]) == (2, 2) and output.reward_score == 2 + extra["letters"]
    for answer, said in {
        "raise": "ValueError: no such answer",
        "nan": "not a finite number",
        "clash": "returns letters, which",
    }.items():
        assert await rewarded(rewarding, model, answer, reward_loop) == []
        failure = traces(rewarding)[-1].failure
        assert failure is not None and failure.kind == "reward_error" and said in failure.message


def echoing(solution_str: str, **_: Any) -> dict[str, Any]:
    """A reward function that returns what it was given."""
    return {"score": 1.0, "solution": solution_str}


def of_samples(*samples: tuple[int, int]) -> Trace:
    """A trajectory with a segment for each number of prompt and sampled tokens; ids of all responses are 3 and on."""
    task = Task(environment="e", task="t", seed=1, prompt=({"role": "user", "content": "Begin."},))
    trace = Trace.begin("t", task, Origin())
    for prompt, sampled in samples:
        trace.open([2] * prompt)
        ids = list(range(3, 3 + sampled))
        if ids:
            completion = Completion(ids=ids, logprobs=[-1.0] * sampled)
            trace.add_completion(completion, Parsed(content=""), Edit(appended=ids), mask_thinking=False)
    return trace


@pytest.mark.parametrize("use_v1", ["v1"], indirect=True)
async def test_verls_reward_function_gets_the_whole_response_of_the_last_sample_and_no_padding(
    rewarding: DictConfig, tmp_path: Path
) -> None:
    from tokenizers import Tokenizer, models
    from transformers import PreTrainedTokenizerFast
    from verl.experimental.reward_loop import RewardLoopWorker

    from mcp_rollout.rollout.environment.config import Environment
    from mcp_rollout.rollout.loop.reward import Judged
    from mcp_rollout.rollout.verl.reward_loop import VerlReward

    # Id 0, with which verl pads, is a word like any other.
    vocabulary = {"<end>" if number == 99 else f"w{number}": number for number in range(100)}
    text = Tokenizer(models.WordLevel(vocabulary, unk_token="w0"))
    PreTrainedTokenizerFast(tokenizer_object=text, eos_token="<end>", pad_token="<end>").save_pretrained(tmp_path / "w")
    rewarding.actor_rollout_ref.model.tokenizer_path = str(tmp_path / "w")
    rewarding.reward.custom_reward_function.name = "echoing"
    environment = Environment.model_validate({"name": "e", "servers": {"echo": {"command": "echo"}}})
    row = {"data_source": "e", "reward_model": {"ground_truth": None}, "extra_info": {}}
    for manager in ("naive", "dapo", "gdpo", "rate_limited"):
        rewarding.reward.reward_manager.name = manager
        compute_score = worker_with(RewardLoopWorker(rewarding))._compute_score
        for samples in (((9, 5), (4, 7), (2, 26)), ((2, 40), (30, 20)), ((3, 8), (50, 30)), ((4, 1),), ((4, 0),)):
            reward = VerlReward(compute_score=compute_score, row=row, timeout_s=10, end_id=99)
            assert (await reward(environment, of_samples(*samples), Judged(score=0)))["mcp_custom"] == 1.0
            assert reward.extra["solution"].split() == [f"w{number}" for number in range(3, 3 + samples[-1][1])]
