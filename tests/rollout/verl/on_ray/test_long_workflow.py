"""examples/long_workflow.py: a subclass of verl's own loop on our lock and worlds, built from its YAML as verl does."""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import Any

import hydra
import psutil
import pytest
import yaml
from commands import mcp_rollout
from omegaconf import DictConfig, OmegaConf
from transformers import AutoTokenizer
from verl_config import composed
from verl_run import reported

from mcp_rollout.mcp_servers.gsm8k_tools.server import TASKS, problem
from mcp_rollout.rollout.formats import hermes
from mcp_rollout.rollout.trace.record import StopReason
from mcp_rollout.rollout.trace.store import read_traces
from mcp_rollout.rollout.types import Attempt, Call
from mcp_rollout.rollout.verl_cpu.tiny_model import make_tiny_model

pytestmark = [pytest.mark.anyio, pytest.mark.verl, pytest.mark.usefixtures("imported_verl", "cluster", "closed_worker")]

ROOT = Path(__file__).parents[4]
ENVIRONMENT = yaml.safe_load((ROOT / "configs" / "environments" / "gsm8k_tools.yaml").read_text())
LISTED = next(iter(TASKS.items("test", problem)))
PROBLEM = problem(LISTED.task, LISTED.seed)
RIGHT, WRONG = f"Answer: {PROBLEM.answer}", f"Answer: {PROBLEM.answer + 1}"
COUNT = hermes.write(thinking="So.", calls=[Call(name="calculate", arguments={"expression": "20 + 3"})])


def locked(home: Path, **changed: Any) -> Path:
    """The lock of the environment's tools."""
    (home / "gsm8k.yaml").write_text(yaml.safe_dump(ENVIRONMENT | changed))
    assert mcp_rollout("tool-config", home / "gsm8k.yaml", "-o", home / "tools.yaml").status == 0
    return home / "tools.yaml"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_model(tmp_path_factory.mktemp("model"), hidden=32, layers=1)


@pytest.fixture(scope="module")
def lock(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return locked(tmp_path_factory.mktemp("lock"))


@pytest.fixture(scope="module")
def paying(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The lock of an environment whose user pays for single replies."""
    home = tmp_path_factory.mktemp("paying")
    steps = {
        "a": {"cues": [{"when": ["plum"], "says": "Say pear.", "to": "b", "reward": 0.25}], "otherwise": ["?"]},
        "b": {"cues": [{"when": ["pear"], "says": "Goodbye.", "to": "end", "reward": 0.5}], "otherwise": ["?"]},
    }
    (home / "scenarios.json").write_text(json.dumps({"*": {"opening": "Say plum.", "first": "a", "steps": steps}}))
    simulator = ["-m", "mcp_rollout.mcp_servers.user_simulator", "scripted", "--scenarios", "${here}/scenarios.json"]
    customer = {"command": "${python}", "args": simulator, "trusted": True}
    reward = {**ENVIRONMENT["reward"], "weights": {"turns": 1}}
    return locked(
        home, servers=ENVIRONMENT["servers"] | {"customer": customer}, user={"server": "customer"}, reward=reward
    )


@pytest.fixture
def config(tmp_path: Path, model: Path) -> DictConfig:
    return composed(model, f"trainer.default_local_dir={tmp_path}")


class Client:
    """verl's `LLMServerClient` where the model says what it was given."""

    said: Sequence[dict[str, Any]] = ()
    """What outputs say beside the ids, one after the other."""

    def __init__(self, tokenizer: Any, texts: list[str]) -> None:
        self._tokenizer, self._texts = tokenizer, iter(texts)
        self.sampled: list[int] = []
        self.contexts: list[list[int]] = []

    async def generate(self, request_id: str, *, prompt_ids: list[int], **_: Any) -> Any:
        from verl.workers.rollout.replica import TokenOutput

        text = next(self._texts)
        if text.startswith("kill"):
            for child in psutil.Process().children(recursive=True):
                with suppress(psutil.NoSuchProcess):  # or a zombie: of another test, until it is collected
                    if "mcp_rollout.mcp_servers.gsm8k_tools" in child.cmdline():
                        child.kill()
            text = COUNT if text == "kill before a call" else RIGHT
        ids = self._tokenizer.encode(text + "<|im_end|>", add_special_tokens=False)
        self.contexts.append(list(prompt_ids))
        self.sampled += ids
        said = self.said[len(self.contexts) - 1] if self.said else {}
        return TokenOutput(token_ids=ids, log_probs=[-0.5] * len(ids), stop_reason="completed", extra_fields=dict(said))


async def run(config: DictConfig, model: Path, lock: Path, texts: list[str], **arguments: Any) -> tuple[Any, Client]:
    from verl.experimental.agent_loop.agent_loop import DictConfigWrap, ToolListWrap
    from verl.tools.tool_registry import initialize_tools_from_config
    from verl.utils.dataset.rl_dataset import RLHFDataset

    loops = {each["name"]: each for each in yaml.safe_load((ROOT / "examples" / "long_workflow.yaml").read_text())}
    tokenizer = AutoTokenizer.from_pretrained(model)
    client = Client(tokenizer, texts)
    loop = hydra.utils.instantiate(
        config=OmegaConf.create(loops["long_workflow"] | arguments),
        trainer_config=DictConfigWrap(config),
        server_manager=client,
        tokenizer=tokenizer,
        processor=None,
        dataset_cls=RLHFDataset,
        data_config=DictConfigWrap(config.data),
        hf_model_type="qwen3",
        tools=ToolListWrap(initialize_tools_from_config(str(lock))),
    )
    row = {
        "raw_prompt": [{"role": "user", "content": PROBLEM.prompt}],
        "extra_info": {"index": 0, "mcp": {"environment": "gsm8k", "task": PROBLEM.task, "seed": PROBLEM.seed}},
        "tools_kwargs": {"mcp": {"task": PROBLEM.task, "seed": PROBLEM.seed}},
    }
    return await loop.run({"temperature": 1.0, "logprobs": True}, **row), client


async def test_a_live_user_answers_until_it_is_satisfied_and_the_server_scores(
    config: DictConfig, model: Path, lock: Path
) -> None:
    output, client = await run(config, model, lock, [COUNT, f"<think>\nHm.\n</think>\n\n{WRONG}", RIGHT, "never said"])
    read = AutoTokenizer.from_pretrained(model).decode(client.contexts[2])
    assert "23" in read and "That is not right. You have 3 more tries" in read
    assert "<think>\nHm.\n</think>" in read  # the thinking stays in the context
    assert 0.9 * 0.8 <= output.reward_score < 0.9 * 0.8 + 0.1  # right at the second attempt, in the one world
    kept = [token for token, mask in zip(output.response_ids, output.response_mask, strict=True) if mask]
    assert kept == client.sampled
    for earlier, later in pairwise([*client.contexts, output.prompt_ids + output.response_ids]):
        assert later[: len(earlier)] == earlier
    assert output.extra_fields["turn_scores"] == [0.0, 0.0, 0.0]


async def test_the_trace_is_the_trajectory_as_verl_trains_on_it(
    config: DictConfig, model: Path, lock: Path, tmp_path: Path
) -> None:
    thought = f"<think>\nHm.\n</think>\n\n{WRONG}"
    output, client = await run(config, model, lock, [COUNT, thought, RIGHT, "never said"])
    (trace,) = read_traces(tmp_path / "traces")
    assert (trace.prompt_ids, trace.response_ids) == (output.prompt_ids, output.response_ids)
    assert (trace.loss_mask, trace.logprobs) == (output.response_mask, output.response_logprobs)
    first, second, third = trace.turns
    (called,) = first.tools
    assert (called.name, called.arguments, called.text) == ("calculate", {"expression": "20 + 3"}, "23")
    assert (called.server, called.is_error, called.reward) == ("gsm8k", False, None) and called.elapsed_s > 0
    assert second.thinking == "Hm." and (second.content, third.content) == (WRONG, RIGHT)
    assert second.user is not None and second.user.message.startswith("That is not right.")
    assert third.user is not None and third.user.done
    sampled = [
        token for span in trace.spans if span.kind.is_sampled for token in trace.response_ids[span.start : span.end]
    ]
    assert sampled == client.sampled and {span.turn for span in trace.spans} == {0, 1, 2}
    assert [message["role"] for message in trace.messages[trace.opening :]] == [
        *("assistant", "tool"),
        *("assistant", "user"),
        *("assistant", "user"),
    ]
    assert trace.reward is not None and trace.reward.score == output.reward_score
    assert trace.reward.parts.keys() == {"answer", "steps"}
    assert trace.stop_reason is StopReason.USER_DONE and trace.agent is not None
    assert trace.agent.use == "long_workflow:LongWorkflowAgent"


async def test_each_turn_has_the_weights_and_attempts_of_its_own_generation(
    config: DictConfig, model: Path, lock: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """verl's loop keeps what the first output says, and of later ones the newest weights."""
    attempts = [[Attempt(tokens=2, weights_version=1), Attempt(tokens=3, weights_version=2)], [], []]
    versions = [(1, 2), (2, 2), (4, 4)]
    said = [
        {"min_global_steps": first, "max_global_steps": last, "mcp_attempts": each}
        for (first, last), each in zip(versions, attempts, strict=True)
    ]
    monkeypatch.setattr(Client, "said", said)
    output, _ = await run(config, model, lock, [COUNT, WRONG, RIGHT])
    (trace,) = read_traces(tmp_path / "traces")
    assert [turn.weights_version for turn in trace.turns] == versions
    assert [list(turn.attempts) for turn in trace.turns] == attempts
    assert "mcp_attempts" not in output.extra_fields and output.extra_fields["max_global_steps"] == 4


async def test_its_trajectories_are_counted_with_the_others(config: DictConfig, model: Path, lock: Path) -> None:
    reported()  # of the tests before
    output, _ = await run(config, model, lock, [COUNT, RIGHT])
    await run(config, model, lock, ["kill"])
    counted = reported().trajectories
    assert [one.values["mcp/failed_share"] for one in counted] == [0.0, 1.0]
    assert counted[0].values["mcp/score/mean"] == output.reward_score
    info = output.extra_fields["reward_extra_info"]
    assert (info["mcp_turns"], info["mcp_tool_calls"], info["mcp_truncated"]) == (2.0, 1.0, 0.0)


async def test_a_scripted_user_says_its_turns_in_order_and_no_more(config: DictConfig, model: Path, lock: Path) -> None:
    turns = ["Are you sure?", "And now?"]
    output, client = await run(config, model, lock, [COUNT, WRONG, COUNT, RIGHT, RIGHT, "never said"], user_turns=turns)
    read = AutoTokenizer.from_pretrained(model).decode(output.prompt_ids + output.response_ids)
    assert len(client.contexts) == 5
    assert read.index("Are you sure?") < read.index("And now?")
    assert output.reward_score < 0.1  # the environment's user was told nothing: only calculations count


async def test_fifteen_turns_are_the_most(config: DictConfig, model: Path, lock: Path) -> None:
    output, client = await run(config, model, lock, [COUNT] * 40)
    assert len(client.contexts) == 15
    assert len(output.response_ids) == len(output.response_mask) <= config.data.max_response_length


async def test_a_reply_is_paid_at_the_turn_that_earned_it(config: DictConfig, model: Path, paying: Path) -> None:
    output, client = await run(config, model, paying, ["plum", "pear", "never said"], reward="per_turn")
    rewards = output.as_dict()["rm_scores"].tolist()
    second = len(client.contexts[1]) - len(output.prompt_ids)
    assert output.reward_score == pytest.approx(0.75)
    assert sorted(reward for reward in rewards if reward) == [0.25, 0.5]
    first = rewards.index(0.25)
    assert output.response_mask[first] == 1 and first < second <= rewards.index(0.5)


@pytest.mark.parametrize("text", ["kill", "kill before a call"])
async def test_a_world_that_breaks_withdraws_the_trajectory(
    text: str, config: DictConfig, model: Path, lock: Path, tmp_path: Path
) -> None:
    output, _ = await run(config, model, lock, [text, RIGHT])
    assert output == []
    (trace,) = read_traces(tmp_path / "traces")
    assert trace.failure is not None and trace.failure.kind != "internal_error" and len(trace.turns) == 1


@pytest.mark.parametrize(("length", "turns", "stopped"), [(8192, 2, "turn_limit"), (40, 15, "token_limit")])
async def test_a_limit_of_verls_loop_ends_the_trace_as_that_limit(
    length: int, turns: int, stopped: str, config: DictConfig, model: Path, lock: Path, tmp_path: Path
) -> None:
    config.actor_rollout_ref.rollout.response_length = length
    output, client = await run(config, model, lock, [COUNT] * 20, max_turns=turns)
    (trace,) = read_traces(tmp_path / "traces")
    assert trace.stop_reason == stopped and output.extra_fields["reward_extra_info"]["mcp_truncated"] == 1.0
    assert trace.response_ids == output.response_ids and len(trace.response_ids) <= length
    assert [*trace.response_ids, *(trace.turns[-1].trimmed)][-len(client.sampled) :][-1] == client.sampled[-1]
