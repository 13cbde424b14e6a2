"""Ways to play against the engine's log, by a comparison that shares no code with ours and finds what is planted."""

from __future__ import annotations

import ast
import json
import random
import sys
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import pytest
from engine_log import (
    Generation,
    Sample,
    batched,
    compare,
    exported,
    read_generations,
    read_records,
    read_trained_rows,
    recorded,
    scores_of,
    trained_differences,
)
from mcp.server.mcpserver import MCPServer
from mcp.types import CallToolResult, TextContent
from sampled import respelled
from thoughts import thought_tokens
from told import SUMMARY, Engine, note
from told import played as told_by
from tool_formats import builder_for, tokenizer_for
from trees import SCORED, World, grow, own
from trees import Engine as TreeEngine
from worlds import REWARD, ROLE, play

from mcp_rollout.rollout.trace.columns import write_columns
from mcp_rollout.rollout.trace.record import Trace
from mcp_rollout.rollout.trace.trained import write_trained
from mcp_rollout.rollout.trace.trained_segment import TrainedSegment, digest
from mcp_rollout.rollout.types import Completion, Policy

pytestmark = pytest.mark.usefixtures("imported_verl")
ASK = "Sum it up."
PLAYS: dict[str, dict[str, Any]] = {
    "chain": {},
    "masked": {"thinking": {"loss": "mask"}},
    "single_turn": {"strategy": {"use": "single_turn"}},
    "compact": {
        "strategy": {
            "use": "compact",
            "compact": {"at_tokens": 760, "keep_turns": 1, "summary_tokens": 60, "instruction": ASK},
        }
    },
}
NAMES = [*PLAYS, "program", "asides", "tree"]
Change = Callable[[Sample], object]


@dataclass
class Talker:
    """Takes notes in spellings of its own, sums up where it is asked to, and keeps a log of every request."""

    notes: int = 4
    log: list[Generation] = field(default_factory=list)

    async def generate(self, ids: list[int], *, max_tokens: int, turn: int) -> Completion:
        tokenizer, chance = tokenizer_for("hermes"), random.Random(len(self.log))
        text = f"<think>\nNumber {self.notes}.\n</think>\n\nI note." + note(f'{{"text": "n{self.notes}"}}')
        if ASK in tokenizer.decode(ids[-60:]):
            text = "Some is noted."
        elif self.notes:
            self.notes -= 1
        else:
            text = "Done."
        said = [*respelled(tokenizer, text, chance), tokenizer.convert_tokens_to_ids("<|im_end|>")][:max_tokens]
        version = [len(self.log), len(self.log)]
        logprobs = [-chance.random() for _ in said]
        self.log.append(
            {"prompt_ids": [*ids], "token_ids": [*said], "log_probs": [*logprobs], "weights_version": version}
        )
        return Completion(ids=said, logprobs=logprobs, weights_version=(version[0], version[1]))


def desk() -> MCPServer:
    """Each note earns a tenth, the end 1."""
    server = MCPServer("desk", log_level="ERROR")

    @server.tool(name="note", structured_output=False)
    async def take(text: str) -> CallToolResult:
        """Take a note."""
        return CallToolResult(content=[TextContent(type="text", text=f"Noted: {text}")], _meta={REWARD: 0.1})

    @server.tool(name="score", meta={ROLE: "score"})
    async def score(messages: list[dict[str, Any]]) -> dict[str, Any]:
        return {"score": 1.0}

    return server


@dataclass
class Play:
    """What a way of playing left: the engine's log, the journal, an export, and verl's batch."""

    log: list[Generation]
    records: list[dict[str, Any]]
    export: Path
    batch: list[dict[str, Any]]
    in_loss: Callable[[Generation], Sequence[bool]]

    def found(self, samples: Sequence[Sample]) -> dict[str, int]:
        return compare(self.log, samples, in_loss=self.in_loss, scores=scores_of(self.records)).differences


async def talked(directory: Path, fields: Mapping[str, Any]) -> tuple[list[Trace], list[Generation]]:
    from mcp_rollout.rollout.tokens.verl_builder import ContinuousTokens

    tokenizer, talker = tokenizer_for("hermes"), Talker()

    async def policy_for(_: object) -> Policy:
        return talker

    tokens = ContinuousTokens(builder_for("hermes", tokenizer), tokenizer, "hermes")
    given = {"reward": {"server": "desk"}, **fields}
    return [await play({"desk": desk()}, policy_for, directory, tokens=tokens, **given)], talker.log


async def program(directory: Path, *, train: bool) -> tuple[list[Trace], list[Generation]]:
    """It asks for a title and a summary beside the conversation, and goes on with the summary in another one.

    Args:
        train: whether it says of all but the title that they are to be trained.
    """
    own = {"use": "told:compacting", "arguments": {"train": train}}
    agent = {"use": "mcp_rollout.rollout.programs.program:Function", "with": own}
    made = await told_by(directory, (), agent=agent, engine=Engine([note(), "Plums", SUMMARY, note(), "Done."]))
    logged = [(read, said, [-0.25 - at / 8192 for at in range(len(said))]) for read, said in made.engine.log]
    return [made.trace], [dict(zip(("prompt_ids", "token_ids", "log_probs"), each, strict=True)) for each in logged]


async def tree(directory: Path) -> tuple[list[Trace], list[Generation]]:
    engine, served = TreeEngine(own), {"world": World().server}
    traces = await grow(served, engine, directory, leaves=5, tree={"roots": 2}, **SCORED)
    return [*traces.values()], [each | {"weights_version": [each["sample"] + 5] * 2} for each in engine.log]


def in_loss_of(name: str, generation: Generation) -> list[bool]:
    """What docs/train.md and docs/programs.md say of each sampled id."""
    ids, tokenizer = generation["token_ids"], tokenizer_for("hermes")
    beside = {"program": ["A title?"], "asides": ["A title?", "Summarise", "continues another"]}.get(name, ())
    if any(text in tokenizer.decode(generation["prompt_ids"]) for text in beside):
        return [False] * len(ids)
    if name == "masked":
        return [not each for each in thought_tokens("hermes", tokenizer, ids)]
    return [True] * len(ids)


@pytest.fixture(scope="module")
def plays(imported_verl: None, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Play]:
    from mcp_rollout.rollout.verl.output import to_outputs

    made: dict[str, Play] = {}
    programs = {"program": partial(program, train=True), "asides": partial(program, train=False), "tree": tree}
    for name in NAMES:
        directory = tmp_path_factory.mktemp(name)
        of = programs.get(name) or partial(talked, fields=PLAYS.get(name, {}))
        traces, log = anyio.run(of, directory)
        assert [trace.failure for trace in traces] == [None] * len(traces)
        batch = [output.as_dict() for trace in traces for output in to_outputs(trace, ())]
        write_columns(directory / "export", traces)
        in_loss = partial(in_loss_of, name)
        made[name] = Play(log, read_records(directory), directory / "export", batch, in_loss)
    return made


@pytest.mark.parametrize("name", NAMES)
def test_journal_export_and_batch_are_the_engines_log_position_by_position(
    plays: Mapping[str, Play], name: str
) -> None:
    play = plays[name]
    for samples in (recorded(play.records), exported(play.export), batched(play.batch, play.records)):
        found = compare(play.log, samples, in_loss=play.in_loss, scores=scores_of(play.records))
        assert found.differences == {} and found.sampled > 0
    assert (len(recorded(play.records)) > len(play.records)) == (name in ("single_turn", "compact", "program"))


def _beside(sample: Sample) -> int:
    """The first position of the response that is out of the loss."""
    return sample.mask.index(0)


PLANTED: dict[str, tuple[str, Change]] = {
    "an id of the prompt": ("ids", lambda sample: sample.prompt_ids.__setitem__(2, 7)),
    "a sampled id": ("ids", lambda sample: sample.response_ids.__setitem__(1, 7)),
    "an id of a tool's result": ("ids", lambda sample: sample.response_ids.__setitem__(_beside(sample) + 5, 7)),
    "ids shifted by one": ("left", lambda sample: sample.response_ids.insert(0, sample.response_ids.pop())),
    "a token left out": ("left", lambda sample: sample.response_ids.pop(3)),
    "a sampled token out of the loss": ("masks", lambda sample: sample.mask.__setitem__(3, 0)),
    "a token of a result in the loss": ("masks", lambda sample: sample.mask.__setitem__(_beside(sample), 1)),
    "a log-probability by 1e-3": (
        "logprobs",
        lambda sample: sample.logprobs.__setitem__(2, sample.logprobs[2] - 1e-3) if sample.logprobs else None,
    ),
    "a log-probability of a result": (
        "logprobs",
        lambda sample: sample.logprobs.__setitem__(_beside(sample), -0.5) if sample.logprobs else None,
    ),
    "a column that is too short": ("lengths", lambda sample: sample.mask.pop()),
    "a version": ("versions", lambda sample: sample.versions.__setitem__(2, 99) if sample.versions else None),
    "a reward": ("rewards", lambda sample: sample.rewards.__setitem__(0, 0.5) if sample.rewards else None),
    "a reward on a token of a result": (
        "rewards",
        lambda sample: sample.rewards.insert(_beside(sample), sample.rewards.pop()) if sample.rewards else None,
    ),
}


@pytest.mark.parametrize("planted", PLANTED)
@pytest.mark.parametrize("name", ["chain", "compact", "tree"])
def test_a_planted_difference_is_found(plays: Mapping[str, Play], name: str, planted: str) -> None:
    play, (kind, change) = plays[name], PLANTED[planted]
    samples = batched(play.batch, play.records)
    assert play.found(samples) == {}
    change(samples[-1])
    assert kind in play.found(samples)


@pytest.mark.parametrize("name", NAMES)
def test_a_sample_that_is_missing_twice_or_anothers_is_found(plays: Mapping[str, Play], name: str) -> None:
    play = plays[name]
    samples = batched(play.batch, play.records)
    assert "left" in play.found(samples[:-1])
    again = deepcopy(samples[-1])
    again.trajectory, again.relatives = "another", frozenset()
    scores = {**scores_of(play.records), "another": scores_of(play.records)[samples[-1].trajectory]}
    assert compare(play.log, [*samples, again], in_loss=play.in_loss, scores=scores).differences.keys() >= {"twice"}
    assert "twice" in play.found([*samples, samples[-1]])


def test_an_aside_that_is_trained_on_is_found(plays: Mapping[str, Play]) -> None:
    play = plays["program"]
    (aside,) = [each for each in play.log if not any(play.in_loss(each))]
    logprobs = [*aside["log_probs"]]
    trained = Sample(
        trajectory=play.records[0]["id"],
        number=9,
        prompt_ids=aside["prompt_ids"],
        response_ids=aside["token_ids"],
        mask=[1] * len(logprobs),
        logprobs=logprobs,
        rewards=[play.records[0]["reward"]["score"]],
    )
    samples = recorded(play.records)
    assert play.found([*samples, trained]) == {"masks": len(logprobs)}
    trained.mask = [0] * len(logprobs)
    assert play.found([*samples, trained]) == {}


def test_the_trainers_files_are_the_records(plays: Mapping[str, Play], tmp_path: Path) -> None:
    play = plays["compact"]
    samples = batched(play.batch, play.records)
    for sample in samples:
        numbers = [0.0] * len(sample.mask)
        row = TrainedSegment(
            trace=sample.trajectory,
            segment=sample.number,
            step=1,
            uid="u",
            sample=0,
            output=sample.number,
            ids_digest=digest(sample.prompt_ids, sample.response_ids),
            mask=[bool(bit) for bit in sample.mask],
            sampled_logprobs=sample.logprobs,
            trainer_logprobs=numbers,
            advantages=numbers,
            versions=sample.versions,
        )
        write_trained(tmp_path, 1, [row])
    rows = read_trained_rows(tmp_path)
    assert trained_differences(rows, play.records) == {} and len(rows) == len(samples) > 1
    assert trained_differences(rows[1:], play.records) == {"missing": 1}
    rows[0]["mask"][0], rows[1]["ids_digest"], rows[1]["sampled_logprobs"][0] = False, b"", -9.0
    assert trained_differences(rows, play.records) == {"ids": 1, "masks": 1, "logprobs": 1}


def test_the_comparison_imports_the_standard_library_and_pyarrow_alone() -> None:
    tree = ast.parse((Path(__file__).parent / "support/engine_log.py").read_text())
    names = [each.name for node in ast.walk(tree) if isinstance(node, ast.Import) for each in node.names]
    names += [node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    assert {name.partition(".")[0] for name in names} - sys.stdlib_module_names == {"pyarrow"}


# Logs of engines that were written by hand.


def generation(prompt: list[int], tokens: list[int], logprob: float = -0.5) -> Generation:
    return {"prompt_ids": prompt, "token_ids": tokens, "log_probs": [logprob] * len(tokens)}


def sample(trajectory: str = "one", logprob: float = -0.5) -> Sample:
    return Sample(
        trajectory=trajectory,
        number=0,
        prompt_ids=[1, 2],
        response_ids=[3, 9, 9, 4],
        mask=[1, 0, 0, 1],
        logprobs=[logprob, 0.0, 0.0, logprob],
    )


def turns(logprob: float = -0.5) -> list[Generation]:
    return [generation([1, 2], [3], logprob), generation([1, 2, 3, 9, 9], [4], logprob)]


def test_siblings_with_one_conversation_are_told_apart_by_their_logprobs() -> None:
    log = [*reversed(turns(-0.5)), *turns(-0.25)]
    assert compare(log, [sample("one", -0.25), sample("two", -0.5)]).differences == {}
    assert compare(log, [sample("one", -0.25), sample("two", -0.25)]).differences == {"logprobs": 2}


def test_a_sibling_that_is_ahead_in_the_log_is_no_obstacle() -> None:
    first, second = turns()
    log = [second, first, first, second]
    assert compare(log, [sample("one"), sample("two")]).differences == {}
    assert compare(log[1:], [sample("one"), sample("two")]).differences == {"twice": 1}


def test_a_stop_that_the_next_message_opens_with_is_the_messages() -> None:
    log = [generation([1, 2], [3, 9]), generation([1, 2, 3, 9, 9], [4])]
    assert compare(log, [sample()], stands_in=frozenset({9})).differences == {}
    assert "masks" in compare(log, [sample()]).differences


def test_a_journal_is_read_as_plain_lines(tmp_path: Path) -> None:
    (tmp_path / "engine").write_text("\n".join(map(json.dumps, turns())) + "\n")
    assert read_generations(tmp_path / "engine") == turns()
