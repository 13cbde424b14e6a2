"""What `trace export --sft` writes, read by verl's own SFT dataset, has the ids and the loss mask of the trace."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from thinking_game import play

from mcp_rollout.rollout.formats import hermes
from mcp_rollout.rollout.loop.limits import Limits
from mcp_rollout.rollout.trace.export import Exported, export_sft, ids_path
from mcp_rollout.rollout.trace.record import Trace
from mcp_rollout.rollout.types import Call

pytestmark = [pytest.mark.anyio, pytest.mark.verl, pytest.mark.usefixtures("imported_verl")]

END = "<|im_end|>"
SHOUT = hermes.write(thinking="I shout plum.", calls=[Call(name="shout", arguments={"text": "plum"})])
ANSWERS = [hermes.write(thinking=f"Thought {number}.", content=f"Answer {number}.") for number in range(4)]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from mcp_rollout.rollout.verl_cpu.tiny_model import make_tiny_model

    return make_tiny_model(tmp_path_factory.mktemp("model"), hidden=64, layers=1)


async def played(directory: Path, model: Path, script: list[str], **options: Any) -> tuple[Trace, dict[str, Any]]:
    """The trace, and the schemas in its prompt."""
    from mcp_rollout.rollout.tokens.verl_builder import load_tokens

    tokens = load_tokens(str(model))
    thinking = options.pop("thinking", {})
    trace, log = await play(directory, tokens, tokens.encode, stop=END, thinking=thinking, script=script, **options)
    shown = tokens.decode(log[0]["prompt_ids"]).partition("<tools>\n")[2].partition("\n</tools>")[0]
    return trace, {"test": [json.loads(line) for line in shown.splitlines()]}


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


async def test_verls_dataset_yields_the_ids_of_the_trace_and_trains_one_newline_more_per_turn(
    tmp_path: Path, model: Path
) -> None:
    import pandas as pd
    from transformers import AutoTokenizer
    from verl.utils.dataset.multiturn_sft_dataset import MultiTurnSFTDataset

    trace, tools = await played(tmp_path / "traces", model, [SHOUT, *ANSWERS])
    file = tmp_path / "sft.jsonl"
    done = export_sft([trace], file, tools=tools, min_reward=0.0)
    assert done == Exported(rows=1, left_out=0) and not ids_path(file).exists()
    pd.DataFrame([{"messages": row["messages"], "tools": row["tools"]} for row in lines(file)]).to_parquet(
        tmp_path / "sft.parquet"
    )
    tokenizer = AutoTokenizer.from_pretrained(model)
    config: Any = {"pad_mode": "no_padding", "max_length": 100_000}
    (row,) = list(MultiTurnSFTDataset(str(tmp_path / "sft.parquet"), tokenizer, config))
    ids, mask = trace.prompt_ids + trace.response_ids, [0] * len(trace.prompt_ids) + trace.loss_mask
    last = len(mask) - mask[::-1].index(1)
    assert row["input_ids"].tolist()[:last] == ids[:last]
    read = row["loss_mask"].tolist()
    differing = [at for at in range(last) if read[at] != mask[at]]
    assert len(differing) == len(trace.turns) - 1
    assert {tokenizer.decode(ids[at - 1 : at + 1]) for at in differing} == {f"{END}\n"}
    assert tokenizer.decode(row["input_ids"].tolist()[last:]) == "\n"


@pytest.mark.parametrize(
    ("script", "options"),
    [
        # A rendering would close the thought, and drop what cannot be read.
        ([SHOUT, f"<think>\n{'Hm. ' * 100}"], {"limits": Limits(response_tokens=5000, tokens_per_turn=40)}),
        (["<tool_call>{</tool_call>", *ANSWERS], {}),
        ([f"<think>\nHm.{END}", *ANSWERS], {}),
        # A rendering would train what is not in the loss.
        ([SHOUT, *ANSWERS], {"thinking": {"loss": "mask"}}),
        ([SHOUT, *ANSWERS], {"thinking": {"tokens_per_turn": 4}}),
        ([SHOUT, *ANSWERS], {"thinking": {"context": "drop_previous"}}),
    ],
)
async def test_what_no_conversation_stands_for_is_exported_as_ids_and_mask(
    tmp_path: Path, model: Path, script: list[str], options: dict[str, Any]
) -> None:
    trace, tools = await played(tmp_path / "traces", model, script, **options)
    file = tmp_path / "sft.jsonl"
    done = export_sft([trace], file, tools=tools, min_reward=0.0)
    assert done == Exported(rows=0, left_out=0, as_ids=1) and not file.exists()
    rows = lines(ids_path(file))
    assert [row["input_ids"] for row in rows] == [one.prompt_ids + one.response_ids for one in trace.segments]
    assert [row["loss_mask"] for row in rows] == [[0] * len(one.prompt_ids) + one.loss_mask for one in trace.segments]
    assert {row["trajectory"] for row in rows} == {trace.id}
