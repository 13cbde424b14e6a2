"""What a reward is made of: a real server in process, a scripted policy, a real tokenizer."""

import json
from functools import reduce
from operator import add
from pathlib import Path
from typing import Any

import pytest
from mcp import types
from mcp.server.mcpserver import MCPServer
from pydantic import ValidationError
from worlds import REWARD, ROLE, play, saying, task

from mcp_rollout.rollout.environment.reward_config import RewardConfig
from mcp_rollout.rollout.evaluation.summary import Outcome, summarise
from mcp_rollout.rollout.formats import hermes
from mcp_rollout.rollout.loop.limits import Limits
from mcp_rollout.rollout.trace.record import StopReason
from mcp_rollout.rollout.types import Call

pytestmark = pytest.mark.anyio
EASY, HARD = "The capital is Rome.", "The capital is Paris."
SERVER = "quiz"


def quiz_server() -> MCPServer:
    """`look` shows the answer and earns a tenth; the score has two parts."""
    server = MCPServer(SERVER, log_level="ERROR")

    @server.tool(structured_output=False)
    async def look(page: int) -> types.CallToolResult:
        text = types.TextContent(type="text", text=f"Page {page}. {HARD}")
        return types.CallToolResult(content=[text], _meta={REWARD: 0.1})

    @server.tool(name="score", meta={ROLE: "score"})
    async def score(messages: list[dict[str, Any]]) -> dict[str, Any]:
        return {"score": 0.5, "parts": {"style": 0.25, "depth": 1.0}}

    return server


def look(page: Any = 1) -> str:
    return hermes.write(calls=[Call(name="look", arguments={"page": page})])


async def reward_of(directory: Path, *texts: str, answer: str | None = "Paris", turns: int = 15, **reward: Any) -> Any:
    fields = {"server": SERVER, "parts": ["style", "depth"], **reward}
    row = task(answer=answer)
    limits = Limits(response_tokens=20_000, assistant_turns=turns)
    return await play({SERVER: quiz_server()}, saying(*texts), directory, limits=limits, row=row, reward=fields)


async def test_a_reward_is_the_score_and_what_the_turns_earned_unless_weights_say_otherwise(tmp_path: Path) -> None:
    trace = await reward_of(tmp_path / "a", look(), EASY)
    assert trace.reward.score == pytest.approx(0.6)
    assert trace.reward.turns == [pytest.approx(0.1), 0.0]
    weights = {"score": 0.0, "turns": 2.0, "style": 1.0, "depth": 0.5}
    trace = await reward_of(tmp_path / "b", look(), EASY, weights=weights)
    assert trace.reward.score == pytest.approx(0.2 + 0.25 + 0.5)
    assert trace.reward.turns == [pytest.approx(0.2), 0.0]


async def test_a_perfect_trajectory_scores_one_whatever_its_reward_is_made_of(tmp_path: Path) -> None:
    weights = {"score": 0.0, "turns": 0.0, "depth": 0.6, "format": 0.3, "valid_calls": 0.1}
    trace = await reward_of(tmp_path / "a", look(), EASY, weights=weights)
    assert trace.reward.score == 1.0 > 0.6 + 0.3 + 0.1
    tenths = [look(page) for page in range(10)]
    trace = await reward_of(tmp_path / "b", *tenths, EASY, weights={"score": 0.0})
    assert trace.reward.score == 1.0 > reduce(add, [0.1] * 10)  # as `sum` had it before Python 3.12
    trace.reward.score = 1.0 - 3e-16
    assert trace.reward.reaches(1.0) and not trace.reward.reaches(1.0 + 1e-6)
    found = summarise([Outcome.of(trace)], resumed=0, samples=1, success_at=1.0)
    assert found.pass_at_k[1].value == 1.0


@pytest.mark.parametrize(
    ("said", "value"), [("  paris. ", 1.0), ("Rome", 0.0), ("Paris is the capital", 0.0), ("<think>Paris</think>", 0.0)]
)
async def test_an_answer_matches_the_ground_truth_or_not(tmp_path: Path, said: str, value: float) -> None:
    trace = await reward_of(tmp_path, said, weights={"score": 0.0, "exact_match": 1.0})
    assert trace.reward.score == value == trace.reward.parts["exact_match"]


async def test_a_pattern_finds_the_answer_and_the_last_one_counts(tmp_path: Path) -> None:
    reward = {"weights": {"exact_match": 1.0}, "answer_pattern": r"capital is (\w+)"}
    assert (await reward_of(tmp_path / "a", HARD, **reward)).reward.parts["exact_match"] == 1.0
    assert (await reward_of(tmp_path / "b", f"{HARD} No: {EASY}", **reward)).reward.parts["exact_match"] == 0.0


async def test_quoting_what_a_tool_said_earns_nothing(tmp_path: Path) -> None:
    """The attack on rewards that search a whole response: let a tool say the answer, and stop."""
    reward = {"weights": {"score": 0.0, "turns": 0.0, "exact_match": 1.0}, "answer_pattern": r"capital is (\w+)"}
    trace = await reward_of(tmp_path / "a", look(), "I have looked it up.", **reward)
    assert any(HARD in message["content"] for message in trace.messages)
    assert trace.reward.score == 0.0
    # A last message that calls a tool is not an answer either, whatever it says beside the call.
    calling = hermes.write(content=HARD, calls=[Call(name="look", arguments={"page": 1})])
    trace = await reward_of(tmp_path / "b", calling, turns=1, **reward)
    assert trace.reward.score == 0.0


async def test_calls_that_could_not_be_sent_lower_their_share(tmp_path: Path) -> None:
    weights = {"valid_calls": 1.0, "format": 1.0}
    unknown, half = hermes.write(calls=[Call(name="peek", arguments={})]), "<tool_call>{"
    trace = await reward_of(tmp_path / "a", look(), look("x"), unknown, half, EASY, weights=weights)
    assert trace.reward.parts["valid_calls"] == 0.25
    assert trace.reward.parts["format"] == 0.8
    trace = await reward_of(tmp_path / "b", EASY, weights=weights)
    assert trace.reward.parts["valid_calls"] == 0.0


async def test_calls_beyond_the_parallel_limit_do_not_lift_the_share_of_valid_ones(tmp_path: Path) -> None:
    """The attack: one call in two is broken, and many that are beyond the limit are written behind them."""
    limits = Limits(response_tokens=20_000, parallel_calls=1)
    broken, spam = "<tool_call>{</tool_call>\n", "\n".join([look()] * 20)
    reward = {"server": SERVER, "parts": ["style", "depth"], "weights": {"valid_calls": 1.0}}

    async def share(name: str, text: str) -> float:
        world = {SERVER: quiz_server()}
        trace = await play(world, saying(text, EASY), tmp_path / name, limits=limits, reward=reward)
        assert trace.reward is not None
        return trace.reward.parts["valid_calls"]

    assert await share("honest", broken + look()) == 0.5
    assert await share("spam", broken + look() + "\n" + spam) == 0.5


async def test_an_answer_that_the_token_limit_cut_was_not_given(tmp_path: Path) -> None:
    """The attack: the answer first, and no end, so that no user hears what the score is to find."""
    heard: list[list[dict[str, Any]]] = []
    server = MCPServer(SERVER, log_level="ERROR")

    @server.tool(name="score", meta={ROLE: "score"})
    async def score(messages: list[dict[str, Any]]) -> dict[str, Any]:
        heard.append(messages)
        return {"score": 0.5, "parts": {}}

    reward = {"server": SERVER, "weights": {"exact_match": 1.0}, "answer_pattern": r"capital is (\w+)"}
    row = task(answer="Paris")

    async def played(name: str, thinking: str, **limits: Any) -> Any:
        given = Limits(response_tokens=20_000, **limits)
        policy, fields = saying(f"{HARD} And so on."), {"reward": reward, "thinking": {"reward": thinking}}
        return await play({SERVER: server}, policy, tmp_path / name, limits=given, row=row, **fields)

    for thinking in ("strip", "include"):
        whole = await played(f"whole {thinking}", thinking)
        cut = await played(f"cut {thinking}", thinking, tokens_per_turn=len(HARD) + 4)
        assert (whole.stop_reason, cut.stop_reason) == (StopReason.ANSWERED, StopReason.TOKEN_LIMIT)
        assert (whole.reward.parts["exact_match"], cut.reward.parts["exact_match"]) == (1.0, 0.0)
        assert HARD in cut.messages[-1]["content"]  # the trace keeps it
        assert [HARD in json.dumps(messages) for messages in heard[-2:]] == [True, False]
        assert heard[-1] == [{"role": "user", "content": "Begin."}]


async def test_brevity_falls_between_its_bounds(tmp_path: Path) -> None:
    async def brevity(text: str, name: str) -> float:
        reward = {"weights": {"brevity": 1.0}, "brevity": {"full_until": 11, "none_from": 31}}
        return (await reward_of(tmp_path / name, text, **reward)).reward.parts["brevity"]

    assert await brevity("a" * 10, "a") == 1.0
    assert await brevity("a" * 20, "b") == 0.5
    assert await brevity("a" * 40, "c") == 0.0


async def test_a_row_without_ground_truth_is_withdrawn_where_the_reward_needs_one(tmp_path: Path) -> None:
    trace = await reward_of(tmp_path, EASY, answer=None, weights={"exact_match": 1.0})
    assert trace.is_withdrawn
    assert trace.failure is not None and "reward_model.ground_truth" in trace.failure.message


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"weights": {"styl": 1.0}}, "weights names styl; there are score"),
        ({"weights": {"brevity": 1.0}}, "needs brevity"),
        ({"brevity": {"full_until": 5, "none_from": 5}}, "above full_until"),
        ({"answer_pattern": "(a)(b)"}, "has 2 groups"),
        ({"answer_pattern": "("}, "not a regular expression"),
        ({"parts": ["exact_match"]}, "taken"),
    ],
)
def test_a_wrong_reward_is_refused_with_the_reason(fields: dict[str, Any], said: str) -> None:
    with pytest.raises(ValidationError, match=said.replace("(", r"\(")):
        RewardConfig.model_validate(fields)
