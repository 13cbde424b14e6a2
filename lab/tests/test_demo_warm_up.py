"""A warm-up trains on what a rollout would have sampled, and gives the same model for the same arguments."""

from __future__ import annotations

import json
import random
import re
from pathlib import Path
from typing import Any

import pytest

from mcp_rollout.gateway.errors import ConfigError
from mcp_rollout.gateway.types import Content, ContentKind, ToolResult
from mcp_rollout.rollout.environment.task import Origin, Task
from mcp_rollout.rollout.formats import hermes
from mcp_rollout.rollout.trace.export import sft_row
from mcp_rollout.rollout.trace.record import Reward, StopReason, Trace
from mcp_rollout.rollout.types import Call, Completion, Edit, Parsed

pytestmark = [pytest.mark.verl, pytest.mark.usefixtures("imported_verl")]

LOOK = {"type": "object", "properties": {"what": {"type": "string"}}}
TOOLS = {"shop": [{"type": "function", "function": {"name": "look", "description": "Look.", "parameters": LOOK}}]}


def played(what: str) -> Trace:
    prompt = ({"role": "system", "content": "Sell."}, {"role": "user", "content": f"Is there {what}?"})
    trace = Trace.begin(what, Task(environment="shop", task=what, seed=0, prompt=prompt), Origin())
    call = Call(name="look", arguments={"what": what})
    found = ToolResult(content=(Content(kind=ContentKind.TEXT, text=f"{what}: 3"),))
    for parsed in (Parsed(content="", thinking="I look.", calls=(call,)), Parsed(content=f"There is {what}: 3.")):
        trace.add_completion(Completion(ids=[1]), parsed, Edit(appended=[1]), mask_thinking=False)
        if parsed.calls:
            trace.messages += trace.add_calls([call], [found])
    trace.reward, trace.stop_reason = Reward(score=1.0), StopReason.ANSWERED
    return trace


@pytest.fixture
def rows(tmp_path: Path) -> Path:
    file = tmp_path / "sft.jsonl"
    exported = [sft_row(played(what), TOOLS) for what in ("tea", "rice", "salt", "plums")]
    file.write_text("".join(json.dumps(row) + "\n" for row in exported))
    return file


@pytest.fixture
def model(tmp_path: Path, rows: Path) -> Path:
    from mcp_rollout.rollout.verl_cpu.tiny_model import make_tiny_model

    return make_tiny_model(tmp_path / "model", corpus=[rows.read_text()], hidden=64, layers=1)


def weights(model: Path) -> dict[str, Any]:
    from safetensors.torch import load_file

    return load_file(model / "model.safetensors")


def test_a_conversation_has_the_tokens_that_a_rollout_of_it_has(rows: Path, model: Path) -> None:
    from transformers import AutoTokenizer

    from lab.demo.warm_up import read_rows, rendered, tokenize
    from mcp_rollout.rollout.tokens.verl_builder import load_tokens

    tokenizer, tokens, tools = AutoTokenizer.from_pretrained(model), load_tokens(str(model)), TOOLS["shop"]
    for row in read_rows(rows):
        conversation, trace = tokenize(tokenizer, rendered(tokenizer, row)), played(row["task"])
        asked, answered = (
            tokens.encode_completion(hermes.write(thinking=turn.thinking, content=turn.content, calls=calls))
            for turn, calls in zip(trace.turns, ([Call(name="look", arguments={"what": row["task"]})], []), strict=True)
        )
        prompt = tokens.prompt(trace.messages[:2], tools)
        context = tokens.completion(prompt, asked).applied_to(prompt)
        context = tokens.messages(context, trace.messages[:3], trace.messages[3:4], tools).applied_to(context)
        context = tokens.completion(context, answered).applied_to(context)
        assert conversation.ids == context
        assert sum(conversation.sampled) == len(asked) + len(answered)
        assert conversation.sampled.index(True) == len(prompt)


@pytest.mark.parametrize(
    "own", [{}, {"matrix_learning_rate": None, "bfloat16": True, "rise": 5}], ids=["tiny", "pretrained"]
)
def test_a_warm_up_lowers_the_loss_and_can_be_repeated_bit_by_bit(
    own: dict[str, Any], rows: Path, model: Path, tmp_path: Path
) -> None:
    import shutil

    import torch

    from lab.demo.warm_up import WarmUp, warm_up

    again = Path(shutil.copytree(model, tmp_path / "again"))
    losses: list[float] = []
    options = WarmUp(steps=30, rounds=1, batch_size=3, **own)
    last = warm_up(model, rows, options, progress=lambda _step, loss: losses.append(loss))
    assert len(losses) == 30 and losses[-1] == last < losses[0] / 2
    # An export has conversations in the order in which they ended, which differs from run to run.
    (turned := tmp_path / "turned.jsonl").write_text("".join(reversed(rows.read_text().splitlines(keepends=True))))
    assert warm_up(again, turned, options) == last
    trained, repeated = weights(model), weights(again)
    assert all(torch.equal(trained[name], repeated[name]) for name in trained)


@pytest.mark.parametrize(("good_loss", "rounds"), [(100.0, 1), (0.0, 2)])
def test_a_model_that_imitates_the_expert_well_enough_gets_no_further_round(
    rows: Path, model: Path, good_loss: float, rounds: int
) -> None:
    from lab.demo.warm_up import WarmUp, warm_up

    steps: list[int] = []
    options = WarmUp(steps=2, rounds=2, good_loss=good_loss, batch_size=3)
    warm_up(model, rows, options, progress=lambda step, _loss: steps.append(step))
    assert steps == [1, 2] * rounds


def test_too_few_rows_for_a_batch_are_refused(rows: Path, model: Path) -> None:
    from lab.demo.warm_up import WarmUp, warm_up

    with pytest.raises(ConfigError, match="4 rows, a batch takes 8"):
        warm_up(model, rows, WarmUp())


def test_an_experts_conversations_come_in_the_order_of_the_seed_and_each_once_before_any_again(
    rows: Path, model: Path
) -> None:
    from transformers import AutoTokenizer

    from lab.demo.warm_up import read_rows, rendered, tokenize
    from lab.pretrained.warm_up import Conversations

    tokenizer, given = AutoTokenizer.from_pretrained(model), read_rows(rows)
    whole = {tuple(tokenize(tokenizer, rendered(tokenizer, row)).ids) for row in given}

    def orders(seed: int) -> list[tuple[int, ...]]:
        source = Conversations(tokenizer, given, seed)
        return [(*source.prefix, *each.ids) for count in (3, 5, 4) for each in source.draw(count)]

    assert all(set(orders(0)[at : at + 4]) == whole for at in (0, 4, 8))
    assert orders(0) == orders(0) and len({tuple(orders(seed)) for seed in range(5)}) > 2


def test_a_variant_has_other_values_and_the_same_decision() -> None:
    from lab.demo.variation import Piece, order_numbers, vary

    asked = "Hello, I am Ada. Please cancel it.<|im_end|>\n"
    found = '{"orders":[{"order_id":"W123","status":"shipped","items":["Desk Lamp"]}],"on":"2026-03-20"}'
    pieces = [Piece(asked, False), Piece("I look.", True), Piece(found, False), Piece("Track W123: 2026-03-20.", True)]
    numbers = ["W500", "W600"]
    assert order_numbers([pieces]) == ["W123"]
    variants = [vary(pieces, numbers, random.Random(seed)) for seed in range(40)]
    for variant in variants:
        assert [piece.sampled for piece in variant] == [piece.sampled for piece in pieces]
        answer = re.fullmatch(r"Track (W\d+): (\d{4}-\d\d-\d\d)\.", variant[3].text)
        assert answer is not None and answer[1] in numbers
        # The assistant's copies are exchanged together with what it copied.
        assert f'"{answer[1]}"' in variant[2].text and answer[2] in variant[2].text
        assert '"status":"shipped"' in variant[2].text and variant[0].text.endswith("<|im_end|>\n")
    assert len({variant[0].text for variant in variants}) > 5
    assert len({variant[3].text for variant in variants}) > 5
    days = {day for variant in variants for day in re.findall(r"\d{4}-\d\d-\d\d", variant[3].text)} - {"2026-03-20"}
    assert min(days) >= "2026-05-01", "no invented day may be one of the tasks'"


def test_a_variant_may_have_other_details_of_a_changed_order() -> None:
    """Those of the tests are unknown words, and what the assistant says after a change must not depend on them."""
    from lab.demo.variation import Piece, vary

    changed = (
        '{"order_id":"W123","user_id":"ada_lovelace_65","status":"cancelled","options":{"size":"small","colour":"rust"},'
        '"address":{"street":"93 Orchard Avenue","city":"Granby","state":"CO"}}'
    )
    pieces = [Piece("Cancel it.<|im_end|>\n", False), Piece(changed, False), Piece("Your order is cancelled.", True)]
    variants = [json.loads(vary(pieces, ["W500"], random.Random(seed))[1].text) for seed in range(30)]
    for of in (
        lambda order: order["user_id"],
        lambda order: (*order["options"], *order["options"].values()),
        lambda order: order["address"]["street"],
        lambda order: order["address"]["city"],
    ):
        assert len({of(variant) for variant in variants}) > 5
    assert {(variant["status"], variant["address"]["state"]) for variant in variants} == {("cancelled", "CO")}


def test_excerpts_are_what_was_copied_from_with_as_many_days_as_numbers() -> None:
    from lab.demo.variation import Piece, excerpts, exchange_values

    asked, found = Piece("Track it.<|im_end|>", False), Piece('{"order_id":"W123"}', False)
    call, tracked = Piece("track_shipment W123", True), Piece('{"expected_on":"2026-03-20"}', False)
    told = Piece("It arrives on 2026-03-20.", True)
    look = Piece("I look at the order.", True)
    pairs = excerpts([[asked, look, found, call, tracked, told], [asked, look, found, call]])
    assert pairs == [(tracked, told), (found, call)]
    texts: set[str] = set()
    for seed in range(20):
        read, written = exchange_values(pairs[0], ["W500"], random.Random(seed))
        (day,) = re.findall(r"\d{4}-\d\d-\d\d", written.text)
        assert read.text == f'{{"expected_on":"{day}"}}' and written.sampled
        texts.add(day)
    assert len(texts) > 5


def test_words_of_a_variant_may_begin_like_the_customers_and_stand_elsewhere() -> None:
    from lab.demo.variation import Piece, vary

    words = "Please tell me the last day for a return, whichever fits.".split()
    pieces = [Piece(" ".join(words) + "<|im_end|>\n", False), Piece("I look.", True)]
    variants = [vary(pieces, ["W500"], random.Random(seed))[0].text.removesuffix("<|im_end|>\n") for seed in range(60)]
    assert any(sorted(text.split(" ")) != sorted(words) and set(text.split(" ")) <= set(words) for text in variants)
    known = {word.strip(".,") for word in words}
    invented = {word for text in variants for word in re.findall(r"[A-Za-z]+", text)} - known
    assert any(new[:4] == old[:4] for new in invented for old in known if len(old) > 5)


def test_a_variant_keeps_the_words_that_tell_a_wish_and_practice_begins_with_them() -> None:
    from lab.demo.variation import Piece, beginnings, vary

    turns = (Piece("They want out. I look.", True), Piece("{}", False), Piece("They want out. Cancel.", True))
    asked = Piece("Good day, my name is Ada. All of us regret what we did.<|im_end|>\n", False)
    variants = [vary([asked, *turns], [], random.Random(seed))[0].text for seed in range(60)]
    assert all(re.search(r"\bregret\b", text) for text in variants)
    assert not all(re.search(r"\bname\b", text) for text in variants)
    begun = [asked, *turns]
    assert beginnings([[*begun, Piece("Done.", True)], [asked, Piece("I look.", True)]]) == [begun]
