"""What the page is given: lists by filter, means by step, tokens with texts, siblings."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from viewed_traces import ROWS, SAMPLES, STEPS, hostile, training, undecided

from mcp_rollout.gateway.errors import ConfigError
from mcp_rollout.rollout.trace.reader import Traces
from mcp_rollout.rollout.trace.record import Trace
from mcp_rollout.rollout.viewer.filters import CONDITIONS
from mcp_rollout.rollout.viewer.pages import Pages, to_json
from mcp_rollout.rollout.viewer.siblings import compared
from mcp_rollout.rollout.viewer.token_view import TokenizerTexts


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("traces")
    training(directory / "one")
    training(directory / "two", steps=2)
    return directory


@pytest.fixture
def pages(directory: Path) -> Iterator[Pages]:
    with Traces(directory) as traces:
        yield Pages(traces)


@pytest.mark.parametrize(
    ("given", "total"),
    [
        ({}, 16 + 32 + 12),
        ({"runs": "one", "split": "train"}, STEPS * ROWS * SAMPLES),
        ({"runs": "two", "split": "held-out", "step_from": "2"}, 3),
        ({"failed_tool": "track", "runs": "one", "split": "train", "step_to": "1"}, ROWS * (SAMPLES - 1)),
        ({"tool": "cancel", "reward_from": "1", "runs": "one", "split": "train", "step_from": "4"}, ROWS * SAMPLES),
        ({"calls": '{"cancel": 1, "look": 1}', "runs": "two", "split": "train", "step_from": "2"}, 4),
        ({"text": "TRAIN-3-1-", "runs": "one"}, SAMPLES),
        ({"uid": "1-0", "runs": "one"}, SAMPLES),
        ({"where": "turns > 3"}, 0),
        ({"stop": "user_done,token_limit", "environment": "shop", "task": "held-out-0", "runs": "one"}, 2),
        ({"runs": "none"}, 0),
    ],
)
def test_the_list_has_what_the_filters_leave(pages: Pages, given: dict[str, str], total: int) -> None:
    assert pages.list(given)["total"] == total


@pytest.mark.parametrize(
    "given",
    [
        {"where": "1) UNION SELECT (1"},
        {"where": "no_column = 1"},
        {"step_from": "1 OR 1"},
        {"reward_to": "nan"},
        {"split": "' OR 1"},
        {"where": "task = 'a\0b'"},
        {"page": "-1"},
        {"sort": "reward; DROP TABLE trajectories"},
    ],
)
def test_what_is_no_filter_is_an_error(pages: Pages, given: dict[str, str]) -> None:
    with pytest.raises(ConfigError):
        pages.list(given)


@pytest.mark.parametrize(
    "name", sorted(CONDITIONS.keys() - {"where", "split", "step_from", "step_to"} - {"reward_from", "reward_to"})
)
def test_a_text_cannot_leave_its_filter(pages: Pages, name: str) -> None:
    for text in ("x' OR '1' = '1", "\0' OR 1", "\ud800' OR 1", '{"x": 1}'):
        assert pages.list({name: text})["total"] == 0


def test_a_trajectory_has_its_turns_timeline_siblings_and_advantages(pages: Pages) -> None:
    found = pages.trajectory("train-1-0-1")
    assert [each["sample"] for each in found["group"]] == [0, 1, 2, 3]
    assert [each["advantage"] for each in found["group"]] == [1.0, -1.0, -1.0, -1.0]
    kinds = [bar["kind"] for bar in found["trace"]["timeline"]]
    assert kinds == ["queue", "generation", "tool", "generation", "tool", "generation", "user"]
    assert found["trace"]["turns"][1]["calls"][0]["is_error"] and found["trained"] == {"step": 1, "dropped": None}
    assert len(found["same_task"]) == STEPS * SAMPLES + 2 * SAMPLES


def test_tokens_have_texts_and_what_the_trainer_computed(pages: Pages) -> None:
    (segment,) = pages.tokens("train-1-0-1")["segments"]
    assert "".join(segment["texts"]).startswith("<|im_start|>user\nHelp é<|im_end|>\n<think>Look first.</think>")
    trace = pages.traces.read(pages.entry("train-1-0-1"))
    place = undecided(trace)
    assert segment["texts"][segment["prompt"] + place] == "t"  # of `track`
    assert segment["trained"]["trainer"][place] == -0.7 and segment["trained"]["advantage"][place] == -1.0
    assert segment["trained"]["is_same"] and segment["logprobs"][place] == -0.01
    untrained = segment["mask"].index(0)
    assert segment["trained"]["advantage"][untrained] is None and segment["logprobs"][untrained] is None
    assert pages.tokens("held-out-0-0-0")["segments"][0]["trained"] is None


def test_texts_by_a_tokenizer_add_up_to_the_text(tmp_path: Path) -> None:
    tokenizers = pytest.importorskip("tokenizers")
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE())
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = tokenizers.decoders.ByteLevel()
    alphabet = tokenizers.pre_tokenizers.ByteLevel.alphabet()
    trainer = tokenizers.trainers.BpeTrainer(vocab_size=300, initial_alphabet=alphabet, special_tokens=["<|end|>"])
    tokenizer.train_from_iterator(["the order is pending, the order is shipped"] * 4, trainer)
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    ids = tokenizer.encode("the order 日本 is<|end|> pending").ids
    texts = TokenizerTexts(tmp_path / "tokenizer.json").texts([*ids, 10**6])
    assert "".join(texts) == "the order 日本 is<|end|> pending" and texts.count("") > 1


def test_siblings_share_what_their_ids_share(directory: Path) -> None:
    with Traces(directory) as traces:
        chosen = list(traces.traces(where="uid = '1-0'", sort=["sample"], limit=8))
    found = compared(chosen)
    assert [member["id"] for member in found["members"]] == [trace.id for trace in chosen]
    for one, row in zip(chosen, found["shared"], strict=True):
        assert row == [_shared(one, other) for other in chosen]
    assert 0 < found["shared"][0][2] < len(chosen[0].context)


def _shared(one: Trace, other: Trace) -> int:
    pairs = list(zip(one.context, other.context, strict=False))
    return next((place for place, pair in enumerate(pairs) if pair[0] != pair[1]), len(pairs))


def test_numbers_that_json_lacks_become_null_and_texts_stay(tmp_path: Path) -> None:
    assert json.loads(to_json({"a": [float("nan"), (1.5, "\ud800<")]})) == {"a": [None, [1.5, "\ud800<"]]}
    hostile(tmp_path)
    with Traces(tmp_path) as traces:
        pages = Pages(traces)
        (row,) = pages.list({})["rows"]
        json.loads(to_json([pages.state({}), pages.series({}), pages.trajectory(row["id"]), pages.tokens(row["id"])]))
