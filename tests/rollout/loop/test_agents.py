"""Agents of an environment: how one is named, what its methods record, and the shipped ones on real servers."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml
from mcp.server.mcpserver import MCPServer
from typer.testing import CliRunner
from worlds import ROLE, play, saying

from mcp_rollout.gateway.errors import ConfigError
from mcp_rollout.gateway.gateway import Gateway
from mcp_rollout.mcp_servers.gsm8k_tools import create_server
from mcp_rollout.mcp_servers.gsm8k_tools.server import problem
from mcp_rollout.rollout.agents import plan_then_act, reflect
from mcp_rollout.rollout.cli.app import app
from mcp_rollout.rollout.engines.scripted import ScriptedPolicy
from mcp_rollout.rollout.environment.config import load_environment
from mcp_rollout.rollout.environment.rows import environment_tasks
from mcp_rollout.rollout.environment.sections import AgentConfig
from mcp_rollout.rollout.environment.task import Origin
from mcp_rollout.rollout.formats import hermes
from mcp_rollout.rollout.loop.agent import build_agent
from mcp_rollout.rollout.loop.limits import Limits
from mcp_rollout.rollout.loop.trajectory import roll_out
from mcp_rollout.rollout.tokens.chatml import IM_END, ByteTokens
from mcp_rollout.rollout.trace.record import SpanKind, StopReason, Trace
from mcp_rollout.rollout.trace.store import TraceStore, read_traces
from mcp_rollout.rollout.types import Call

pytestmark = pytest.mark.anyio
ENVIRONMENTS = Path(__file__).parents[3] / "configs" / "environments"
ADD = hermes.write(thinking="hm", calls=[Call(name="calculate", arguments={"expression": "1 + 1"})])


async def gsm8k(directory: Path, agent: dict[str, Any], texts: Sequence[str]) -> tuple[Trace, int]:
    """One trajectory on the first test task, and the right answer to it; `{answer}` and `{wrong}` stand in texts."""
    made = load_environment("gsm8k_tools", ENVIRONMENTS)
    made = made.model_copy(update={"agent": AgentConfig.model_validate(agent)})
    async with Gateway(made, connect=lambda _, name: create_server()) as gateway:
        (row,) = await environment_tasks(made, gateway, "test", 1)
        answer = problem(row.task, row.seed).answer
        script = [text.format(answer=answer, wrong=answer + 1) if "Answer" in text else text for text in texts]

        async def policy_for(_: object) -> ScriptedPolicy:
            return ScriptedPolicy(script, ByteTokens().encode, stop=IM_END)

        trace = await roll_out(
            Trace.begin("t", row, Origin()),
            environment=made,
            gateway=gateway,
            policy_for=policy_for,
            tokens=ByteTokens(),
            limits=Limits.of(made.limits, response_tokens=100_000),
            store=TraceStore(directory),
        )
    assert trace.failure is None, trace.failure
    assert list(read_traces(directory)) == [trace]
    return trace, answer


def trained(trace: Trace) -> str:
    """The text of the tokens in the loss."""
    pairs = zip(trace.response_ids, trace.loss_mask, strict=True)
    return ByteTokens().decode([token for token, mask in pairs if mask])


def rendered(trace: Trace) -> list[str]:
    return [
        ByteTokens().decode(trace.response_ids[span.start : span.end])
        for span in trace.spans
        if span.kind is SpanKind.CONTEXT
    ]


async def test_retry_with_feedback_tries_again_until_the_answer_is_right(tmp_path: Path) -> None:
    agent = {
        "use": "mcp_rollout.rollout.agents.retry_with_feedback:RetryWithFeedback",
        "with": {"feedback": "Look again."},
    }
    texts = [ADD, "Answer: {wrong}", "Answer: {wrong}", ADD, "Answer: {answer}", "never said"]
    trace, _ = await gsm8k(tmp_path, agent, texts)
    assert trace.stop_reason is StopReason.USER_DONE and len(trace.turns) == 5
    assert [turn.user.done for turn in trace.turns if turn.user] == [False, False, True]
    assert [turn.agent_message for turn in trace.turns] == ["", "Look again.", "Look again.", "", ""]
    # What the user said and the feedback are one message, which the loss leaves out.
    assert trace.messages[-7]["content"].startswith("That is not right. You have 3 more tries")
    assert trace.messages[-7]["content"].endswith("again.\n\nLook again.")
    assert sum("Look again." in text for text in rendered(trace)) == 2 and "Look again." not in trained(trace)
    assert trace.reward is not None and 0.9 * 0.8**2 <= trace.reward.score < 0.9 * 0.8**2 + 0.1


async def test_reflect_gives_the_user_what_the_second_generation_says(tmp_path: Path) -> None:
    agent = {"use": "mcp_rollout.rollout.agents.reflect:Reflect", "with": {"critique": "Check it."}}
    trace, _ = await gsm8k(tmp_path, agent, [ADD, "Answer: {wrong}", ADD, "Answer: {answer}"])
    assert trace.stop_reason is StopReason.USER_DONE and trace.user_turns == 1
    assert [bool(turn.user) for turn in trace.turns] == [False, False, False, True]
    assert [message["role"] for message in trace.messages[trace.opening :]] == [
        *["assistant", "tool", "assistant", "user"],
        *["assistant", "tool", "assistant", "user"],
    ]
    assert trace.reward is not None and trace.reward.parts["answer"] == 1.0
    said = trained(trace)
    assert said.count("Answer: ") == 2 and "Check it." not in said  # both generations are trained


async def test_plan_then_act_asks_for_a_plan_in_the_prompt_and_then_for_the_work(tmp_path: Path) -> None:
    agent = {"use": "mcp_rollout.rollout.agents.plan_then_act:PlanThenAct"}
    trace, _ = await gsm8k(tmp_path, agent, ["1. Add.", ADD, "Answer: {answer}"])
    assert trace.stop_reason is StopReason.USER_DONE and len(trace.turns) == 3
    assert trace.messages[trace.opening - 1]["content"].endswith(plan_then_act.PLAN)
    assert plan_then_act.PLAN in ByteTokens().decode(trace.prompt_ids)
    assert trace.turns[0].agent_message == plan_then_act.ACT
    assert trace.reward is not None and trace.reward.parts["answer"] == 1.0


async def test_the_agent_of_the_docs_plays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = (ENVIRONMENTS.parents[1] / "docs" / "agents.md").read_text()
    (code,) = re.findall(r"```python\n(.*?class Careful.*?)```", page, re.DOTALL)
    assert len(code.splitlines()) <= 35
    (tmp_path / "careful.py").write_text(code)
    monkeypatch.syspath_prepend(str(tmp_path))
    agent = {"use": "careful:Careful", "with": {"most": 1}}
    trace, _ = await gsm8k(tmp_path / "traces", agent, ["Answer: {wrong}", ADD, "Answer: {answer}"])
    assert trace.stop_reason is StopReason.USER_DONE and trace.user_turns == 1
    assert [turn.agent_message for turn in trace.turns] == ["Use a tool before you answer.", "", ""]


async def test_a_limit_in_the_middle_leaves_the_draft_undelivered(tmp_path: Path) -> None:
    limits = Limits(response_tokens=20_000, assistant_turns=1)
    server = MCPServer("judge", log_level="ERROR")
    judged: list[Any] = []

    @server.tool(name="score", meta={ROLE: "score"})
    async def score(messages: list[dict[str, Any]]) -> dict[str, Any]:
        judged.append(messages)
        return {"score": 0.0}

    agent, reward = {"use": "mcp_rollout.rollout.agents.reflect:Reflect"}, {"server": "judge"}
    trace = await play({"judge": server}, saying("Two."), tmp_path, limits=limits, agent=agent, reward=reward)
    assert trace.stop_reason is StopReason.TURN_LIMIT
    assert trace.messages[-1]["content"] == reflect.CRITIQUE  # on record, and read by no generation
    assert judged == [trace.messages[: trace.opening]]  # without the draft
    assert trace.response_ids == ByteTokens().encode("Two." + IM_END)


@pytest.mark.parametrize(
    ("agent", "key", "said"),
    [
        ({"use": "nothing.here:Agent"}, "agent.use", "PYTHONPATH"),
        ({"use": "mcp_rollout.rollout.agents.refelct:Reflect"}, "agent.use", "did you mean 'reflect'"),
        ({"use": "mcp_rollout.rollout.agents.reflect.x:Reflect"}, "agent.use", "PYTHONPATH"),
        ({"use": "mcp_rollout.rollout.agents.reflect:Refelct"}, "agent.use", "did you mean 'Reflect'"),
        ({"use": "mcp_rollout.rollout.agents.reflect:CRITIQUE"}, "agent.use", "async def play"),
        ({"use": "mcp_rollout.rollout.agents:Reflect"}, "agent.use", "it defines no agent"),
        (
            {"use": "mcp_rollout.rollout.agents.reflect:Reflect", "with": {"round": 1}},
            "agent.with",
            "it takes rounds, critique",
        ),
        (
            {"use": "mcp_rollout.rollout.agents.reflect:Reflect", "with": {"rounds": "x"}},
            "agent.with.rounds",
            "integer",
        ),
        ({"use": "mcp_rollout.rollout.agents.reflect:Reflect", "with": {"rounds": -1}}, "agent.with", "negative"),
        ({"use": "raising:Agent"}, "agent.use", "cannot import raising: ZeroDivisionError"),
    ],
)
def test_an_agent_that_cannot_be_built_is_named_with_its_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, agent: dict[str, Any], key: str, said: str
) -> None:
    (tmp_path / "raising.py").write_text("1 / 0")
    monkeypatch.syspath_prepend(str(tmp_path))
    path = tmp_path / "shop.yaml"
    path.write_text(yaml.safe_dump({"servers": {"x": {"command": "x"}}, "agent": agent}))
    with pytest.raises(ConfigError) as refused:
        build_agent(load_environment(path, tmp_path))
    assert (refused.value.file, refused.value.key) == (str(path), key)
    assert said in str(refused.value) and refused.value.remedy


def test_a_run_takes_the_agent_from_the_environment_and_keeps_to_it(tmp_path: Path) -> None:
    raw = yaml.safe_load((ENVIRONMENTS / "gsm8k_tools.yaml").read_text())
    raw["agent"] = {"use": "mcp_rollout.rollout.agents.retry_with_feedback:RetryWithFeedback", "with": {"attempts": 2}}
    path, out = tmp_path / "gsm8k_tools.yaml", tmp_path / "out"
    path.write_text(yaml.safe_dump(raw))
    command = ["run", str(path), "--engine", "expert", "-n", "2", "--out", str(out)]
    ran = CliRunner().invoke(app, [*command, "--json"])
    assert ran.exit_code == 0, ran.output
    assert json.loads(ran.stdout)["reward_mean"] == 1.0
    assert all(trace.agent is not None and trace.agent.arguments == {"attempts": 2} for trace in read_traces(out))

    resumed = CliRunner().invoke(app, [*command, "--resume", "--agent-with", "attempts=3"])
    assert resumed.exit_code != 0 and "by another agent" in str(resumed.exception or resumed.output)
