"""Images in results, for policies that see: a real processor, verl's own vision builder, and what verl is handed."""

from __future__ import annotations

import base64
import warnings
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from galleries import gallery, png
from worlds import environment, opened, task

from mcp_rollout.gateway.leases.session import Session
from mcp_rollout.rollout.engines.scripted import ScriptedPolicy
from mcp_rollout.rollout.environment.task import Origin
from mcp_rollout.rollout.formats import find_format, hermes
from mcp_rollout.rollout.loop.limits import Limits
from mcp_rollout.rollout.loop.trajectory import roll_out
from mcp_rollout.rollout.trace.record import StopReason, Trace
from mcp_rollout.rollout.trace.store import TraceStore
from mcp_rollout.rollout.types import Call, Policy

pytestmark = [pytest.mark.anyio, pytest.mark.verl, pytest.mark.usefixtures("imported_verl")]

VISION = ("<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>")
TEMPLATE = """{%- for message in messages -%}
<|im_start|>{{ 'user' if message.role == 'tool' else message.role }}
{% if message.content is string %}{{ message.content }}{% else %}{% for block in message.content -%}
{% if block.type == 'image' %}<|vision_start|><|image_pad|><|vision_end|>{% else %}{{ block.text }}{% endif %}
{%- endfor %}{% endif %}<|im_end|>
{% endfor -%}
{%- if add_generation_prompt %}<|im_start|>assistant
{% endif -%}"""


@pytest.fixture(scope="module")
def parts(tmp_path_factory: pytest.TempPathFactory, imported_verl: None) -> tuple[Any, Any]:
    """A tokenizer, and a processor of the Qwen2-VL family around it."""
    from transformers import AutoTokenizer
    from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil
    from transformers.models.qwen2_vl.processing_qwen2_vl import Qwen2VLProcessor
    from transformers.processing_utils import ProcessorMixin

    from mcp_rollout.rollout.verl_cpu.tiny_model import make_tiny_model

    class Processor(Qwen2VLProcessor):
        """Without the video half, which needs torchvision."""

        attributes = ["image_processor", "tokenizer"]  # noqa: RUF012

        def __init__(self, image_processor: Any, tokenizer: Any, chat_template: str) -> None:
            self.image_token, self.video_token = "<|image_pad|>", "<|video_pad|>"
            self.image_token_id = tokenizer.convert_tokens_to_ids(self.image_token)
            self.video_token_id = tokenizer.convert_tokens_to_ids(self.video_token)
            ProcessorMixin.__init__(self, image_processor, tokenizer, chat_template=chat_template)

    directory = make_tiny_model(tmp_path_factory.mktemp("model"), hidden=64, layers=1)
    tokenizer = AutoTokenizer.from_pretrained(directory)
    tokenizer.add_special_tokens({"additional_special_tokens": list(VISION)})
    tokenizer.chat_template = TEMPLATE
    return tokenizer, Processor(Qwen2VLImageProcessorPil(min_pixels=28 * 28, max_pixels=56 * 56), tokenizer, TEMPLATE)


def builder_for(parts: tuple[Any, Any], *, vision: bool) -> Any:
    from verl.utils.tokenizer.continuous_token_wiring import create_continuous_token_builder

    tokenizer, processor = parts
    if vision:
        return create_continuous_token_builder(tokenizer, model_family="vldefault", processor=processor)
    return create_continuous_token_builder(tokenizer, model_family="default")


async def played(tmp_path: Path, parts: tuple[Any, Any], colors: list[str], *, vision: bool, most: int = 2000) -> Trace:
    from mcp_rollout.rollout.tokens.verl_builder import ContinuousTokens

    tokenizer, _ = parts
    calls = [hermes.write(calls=[Call(name="paint", arguments={"color": color})]) for color in colors]

    async def policy_for(_: Session) -> Policy:
        def encode(text: str) -> list[int]:
            return tokenizer.encode(text, add_special_tokens=False)

        return ScriptedPolicy([*calls, "Done."], encode, stop="<|im_end|>")

    servers = {"gallery": gallery()}
    made = environment(servers, reward={"server": "gallery"})
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        async with opened(made, servers) as gateway:
            return await roll_out(
                Trace.begin("t", task(), Origin()),
                environment=made,
                gateway=gateway,
                policy_for=policy_for,
                tokens=ContinuousTokens(builder_for(parts, vision=vision), tokenizer, "hermes"),
                limits=Limits(response_tokens=most),
                store=TraceStore(tmp_path),
            )


async def test_images_reach_the_context_and_verl_in_their_order(tmp_path: Path, parts: tuple[Any, Any]) -> None:
    from mcp_rollout.rollout.verl.output import to_outputs

    trace = await played(tmp_path, parts, ["red", "blue"], vision=True)
    assert trace.stop_reason is StopReason.ANSWERED and trace.images == 2
    tokenizer, _ = parts
    pads = trace.response_ids.count(tokenizer.convert_tokens_to_ids("<|image_pad|>"))
    assert pads == 2 * 2  # each of the pictures is two patches wide and one high
    output = to_outputs(trace, ())[0]
    assert output.multi_modal_data is not None
    pictures = output.multi_modal_data["images"]
    assert [picture.getpixel((0, 0)) for picture in pictures] == [(255, 0, 0), (0, 0, 255)]
    assert pads == tokens_of(parts, pictures)
    assert trace.turns[0].tools[0].text == f"All red.\n[image: image/png, {len(png('red'))} bytes]"
    assert trace.turns[0].tools[0].shown == "All red."
    assert trace.turns[0].tools[0].blocks[0].size == len(png("red"))


def tokens_of(parts: tuple[Any, Any], pictures: list[Any]) -> int:
    """How many image tokens the processor itself makes of the pictures that verl is handed."""
    tokenizer, processor = parts
    text = "<|vision_start|><|image_pad|><|vision_end|>" * len(pictures)
    ids = processor(text=[text], images=pictures)["input_ids"][0]
    return list(ids).count(tokenizer.convert_tokens_to_ids("<|image_pad|>"))


@pytest.mark.filterwarnings("ignore")
async def test_texts_that_spell_placeholders_and_markers_beside_an_image_are_text(parts: tuple[Any, Any]) -> None:
    from mcp_rollout.rollout.tokens.verl_builder import ContinuousTokens

    tokenizer, processor = parts
    tokens = ContinuousTokens(builder_for(parts, vision=True), tokenizer, "hermes")
    call = {"type": "function", "function": {"name": "paint", "arguments": {}}}
    past = [{"role": "user", "content": "Paint."}, {"role": "assistant", "content": "", "tool_calls": [call]}]
    picture = {"type": "image", "image": f"data:image/png;base64,{base64.b64encode(png('red')).decode()}"}
    control = set(tokenizer.get_added_vocab().values())
    shown = list[list[int]]()
    # The last two blocks are a marker together only.
    for texts in (("a", "b", "c"), ("<|image_pad|><|vision_end|><|im_end|>", "<|im_", "end|>")):
        blocks = [picture, *({"type": "text", "text": text} for text in texts)]
        shown.append(tokens.messages([1], past, [{"role": "tool", "name": "paint", "content": blocks}], []).appended)
    plain, spelled = ([id for id in ids if id in control] for ids in shown)
    assert spelled == plain and tokenizer.convert_tokens_to_ids("<|image_pad|>") in plain
    text = tokens.decode(shown[1])
    assert "< |image_pad|><|vision_end|><|im_end|><|im_end|><|im_end|>" in text
    # verl has the processor read the decoded trajectory again, without special tokens, to make its inputs.
    text = tokenizer.decode(shown[1], skip_special_tokens=True)
    assert len(processor(text=[text], images=[from_png("red")])["input_ids"]) == 1


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("spelled", [["<|image_pad|>"] * 2, ["<|image_", "pad|><|image_", "pad|>"]])
async def test_what_spells_placeholders_with_ordinary_tokens_is_no_image_for_verl(
    parts: tuple[Any, Any], spelled: list[str]
) -> None:
    """As a policy may sample them, or two blocks of a message hold them together."""
    import torch

    from mcp_rollout.rollout.tokens.text_tokenizer import TextTokenizer, control_text_of
    from mcp_rollout.rollout.verl.agent_loop import MCPAgentLoopWorker

    tokenizer, processor = parts
    worker: Any = object.__new__(MCPAgentLoopWorker)
    worker.tokenizer, worker.processor = tokenizer, processor
    pictures = [from_png("red"), from_png("blue")]
    text = "<|vision_start|><|image_pad|><|vision_end|>" * len(pictures)
    pieces = TextTokenizer(tokenizer, control_text_of(tokenizer, find_format("hermes", key="k")))
    ids = list(processor(text=[text], images=pictures)["input_ids"][0])
    words = [id for each in spelled * 2 for id in pieces.encode_text(pieces.control.mark(each))]
    assert not set(words) & set(ids) and "<|image_pad|>" in tokenizer.decode(words)
    output: Any = SimpleNamespace(multi_modal_data={"images": pictures}, mm_processor_kwargs={})
    plain, found = (
        worker._compute_multi_modal_inputs(output, torch.tensor([each])) for each in (ids, [*words, *ids, *words])
    )
    assert all(torch.equal(found[name], plain[name]) for name in ("pixel_values", "image_grid_thw", "images_seqlens"))


def from_png(color: str) -> Any:
    from mcp_rollout.rollout.tokens.images import read_image

    return read_image(png(color))


async def test_a_policy_without_vision_reads_what_the_image_was(tmp_path: Path, parts: tuple[Any, Any]) -> None:
    from mcp_rollout.rollout.verl.output import to_outputs

    trace = await played(tmp_path, parts, ["red"], vision=False)
    assert trace.images == 0 and to_outputs(trace, ())[0].multi_modal_data == {}
    assert trace.messages[2]["content"] == f"All red.\n[image: image/png, {len(png('red'))} bytes]"


async def test_an_image_that_no_longer_fits_is_not_handed_to_verl(tmp_path: Path, parts: tuple[Any, Any]) -> None:
    from mcp_rollout.rollout.verl.output import to_outputs

    whole = await played(tmp_path / "whole", parts, ["red", "blue"], vision=True)
    second = whole.spans[-2]
    trace = await played(tmp_path / "cut", parts, ["red", "blue"], vision=True, most=second.end - 1)
    assert trace.stop_reason is StopReason.TOKEN_LIMIT and trace.images == 1
    pictures = to_outputs(trace, ())[0].multi_modal_data or {}
    assert len(pictures["images"]) == 1


def test_a_picture_that_would_fill_the_memory_is_not_opened(monkeypatch: pytest.MonkeyPatch) -> None:
    from PIL import Image

    from mcp_rollout.rollout.tokens.images import read_image

    data = png("red", (100, 100))
    assert read_image(data) is not None
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 1000)
    assert read_image(data) is None
