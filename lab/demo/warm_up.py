# pyright: basic
"""Supervised warm-up of a small model on exported conversations, in plain torch.

For models that fill a GPU use verl's own SFT trainer, which reads the same rows. This one teaches a tiny model a format
within minutes on two cores: the prefix that all conversations share (system message and tool schemas, most of their
tokens) is computed once per step instead of once per conversation. Each step trains on new variants of the
conversations (`variation.py`).
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import torch
from torch.nn.functional import cross_entropy
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    Cache,
    DynamicCache,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from lab.demo.variation import Piece, beginnings, excerpts, exchange_values, order_numbers, vary
from mcp_rollout.gateway.errors import ConfigError

_USER = "<|im_start|>user\n"

CHECKED = 64
"""Number of conversations on which a warmed-up model is checked."""
EXCERPTS = 4
"""Number of excerpts in a text for practice, which is about as long as a conversation."""
NUMBER_DIGITS = (4, 5, 6, 8)
"""How many digits order numbers have in practice, more than any task's; each excerpt draws one of the four."""


@dataclass(frozen=True, kw_only=True, slots=True)
class WarmUp:
    """Hyperparameters. The same values, rows and number of threads give the same model."""

    steps: int = 450
    """Of a round."""
    rounds: int = 3
    """At most; a model that imitates the expert well enough gets no further one. With some seeds copying takes two."""
    good_loss: float = 0.024
    """In nats per token of the assistant. An expert that chooses among three steps, and is predictable besides, allows
    0.0215: ln 3 in about 51 tokens."""
    batch_size: int = 8
    learning_rate: float = 5e-3
    """Of AdamW, for embeddings and norms, at its peak: rates rise over the first steps and fall over the last 70
    percent."""
    matrix_learning_rate: float | None = 0.02
    """Of Muon (K. Jordan, 2024), for the layers' matrices, at its peak. None: AdamW trains them as well."""
    rise: int = 20
    """Steps until the peak."""
    bfloat16: bool = False
    """Compute in bfloat16 what autocast does; weights stay in float32."""
    context_weight: float = 0.1
    """Loss weight of tokens that the assistant did not write; its own have 1. Tool results repeat order numbers,
    and predicting them teaches copying."""
    seed: int = 0


@dataclass(frozen=True, slots=True)
class Conversation:
    """A row's tokens, the same as in a rollout of the conversation."""

    ids: list[int]
    sampled: list[bool]
    """Whether the assistant sampled the token."""


def warm_up(
    model_dir: str | Path, data: str | Path, options: WarmUp, *, progress: Callable[[int, float], None] | None = None
) -> float:
    """Train the model in `model_dir`, in place, on the rows that `trace export --sft` wrote to `data`.

    Args:
        progress: Called after each step with its number in its round, from 1, and its loss in nats per token.

    Returns:
        The last step's loss.

    Raises:
        ConfigError: `data` has fewer rows than a batch.
    """
    tokenizer = AutoTokenizer.from_pretrained(model_dir)
    conversations = [rendered(tokenizer, row) for row in read_rows(data)]
    if len(conversations) < options.batch_size:
        raise ConfigError(f"has {len(conversations)} rows, a batch takes {options.batch_size}", file=data)
    model = AutoModelForCausalLM.from_pretrained(model_dir, dtype=torch.float32).train()
    loss = train_rounds(model, partial(Variants, tokenizer, conversations), options, progress)
    model.save_pretrained(model_dir)
    return loss


def train_rounds(
    model: PreTrainedModel,
    source: Callable[[int], Source],
    options: WarmUp,
    progress: Callable[[int, float], None] | None = None,
) -> float:
    """Train the model in rounds, until it imitates well enough or there have been `options.rounds`.

    Args:
        source: what a round with the given seed draws from.

    Returns:
        The last step's loss.
    """
    loss = float("nan")
    for round_ in range(options.rounds):
        variants = source(options.seed + 1000 * round_)
        loss = train_on(model, variants, options, progress or (lambda _step, _loss: None))
        if imitation_loss(model, variants) <= options.good_loss:
            break
    return loss


@torch.no_grad()
def imitation_loss(model: PreTrainedModel, variants: Source) -> float:
    """The mean negative log-likelihood, in nats, of the assistant's tokens in `CHECKED` new variants."""
    past = model(input_ids=torch.tensor([variants.prefix]), use_cache=True, logits_to_keep=1).past_key_values
    terms = [_loss(model, past, part, 0.0) for part in _by_length(variants.conversations(CHECKED))]
    return float(sum(total for total, _ in terms)) / sum(weight for _, weight in terms)


def read_rows(data: str | Path) -> list[dict[str, Any]]:
    """Read the rows of an export, in the order of their tasks.

    Raises:
        ConfigError: there is no such file.
    """
    try:
        lines = Path(data).read_text(encoding="utf-8").splitlines()
    except FileNotFoundError as error:
        raise ConfigError("no such file", file=data, remedy="write it with `mcp-rollout trace export --sft`") from error
    # An export has trajectories in the order in which they ended, which differs from run to run.
    return sorted(map(json.loads, lines), key=lambda row: (str(row["task"]), str(row["seed"])))


def rendered(tokenizer: PreTrainedTokenizerBase, row: Mapping[str, Any]) -> list[Piece]:
    """Render a conversation as a rollout does, in pieces: the assistant's texts and those between them."""
    pieces: list[Piece] = []
    done = ""
    for index, message in enumerate(row["messages"]):
        if message["role"] != "assistant":
            continue
        asked = _render(tokenizer, row, index, generate=True)
        answered = _render(tokenizer, row, index + 1, generate=False)
        if not asked.startswith(done) or not answered.startswith(asked):
            raise ConfigError("rewrites earlier turns, so no rollout would see what is trained on", key="chat_template")
        end = answered.rindex(str(tokenizer.eos_token)) + len(str(tokenizer.eos_token))
        pieces += [Piece(asked[len(done) :], False), Piece(answered[len(asked) : end], True)]
        done = answered[:end]
    return pieces


def tokenize(tokenizer: PreTrainedTokenizerBase, pieces: Sequence[Piece]) -> Conversation:
    """Tokenize a conversation as a rollout does: each piece is encoded separately."""
    encoded = [tokenizer.encode(piece.text, add_special_tokens=False) for piece in pieces]
    sampled = [piece.sampled for piece, ids in zip(pieces, encoded, strict=True) for _ in ids]
    return Conversation([token for ids in encoded for token in ids], sampled)


class Variants:
    """Variants of conversations, made as they are needed; all of them share a prefix.

    Args:
        conversations: All with the same system message and the same tools.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, conversations: Sequence[Sequence[Piece]], seed: int) -> None:
        self._tokenizer, self._rng = tokenizer, random.Random(seed)
        first = conversations[0][0].text
        # Before the first user message: a special token, at which any text may be cut without changing its tokens.
        end = first.index(_USER) + len(_USER)
        self.prefix: list[int] = tokenizer.encode(first[:end], add_special_tokens=False)
        self._conversations = [[Piece(pieces[0].text[end:], False), *pieces[1:]] for pieces in conversations]
        self._numbers = order_numbers(self._conversations)
        self._excerpts, self._beginnings = excerpts(self._conversations), beginnings(self._conversations)

    def draw(self, count: int) -> list[Conversation]:
        """Return a batch of `count` texts, without the prefix: variants of conversations, all different, and practice.

        Half of the texts are for practice: excerpts, each with a value to copy or a wish to read, of which a
        conversation has few. Without enough excerpts all of them are variants.
        """
        practice = count // 2 if len(self._excerpts) >= EXCERPTS else 0
        texts = self.conversations(count - practice)
        return texts + [tokenize(self._tokenizer, self._practice()) for _ in range(practice)]

    def conversations(self, count: int) -> list[Conversation]:
        """Return variants of at most `count` conversations, all different."""
        chosen = self._rng.sample(self._conversations, min(count, len(self._conversations)))
        return [tokenize(self._tokenizer, vary(pieces, self._numbers, self._rng)) for pieces in chosen]

    def _practice(self) -> list[Piece]:
        begun = self._rng.sample(self._beginnings, min(EXCERPTS // 2, len(self._beginnings)))
        copied = self._rng.sample(self._excerpts, EXCERPTS - len(begun))
        # Longer numbers than those of orders: copying digits in their order takes the most steps to learn.
        numbers = [f"W{self._rng.randrange(10 ** (digits - 1), 10**digits)}" for digits in NUMBER_DIGITS]
        chosen = [exchange_values(each, numbers, self._rng) for each in copied]
        if begun:
            chosen += [vary(each, numbers, self._rng) for each in begun]
            self._rng.shuffle(chosen)
        return [piece for excerpt in chosen for piece in excerpt]


def _render(tokenizer: PreTrainedTokenizerBase, row: Mapping[str, Any], count: int, *, generate: bool) -> str:
    messages, tools = row["messages"][:count], row["tools"]
    return str(
        tokenizer.apply_chat_template(messages, tools=tools or None, add_generation_prompt=generate, tokenize=False)
    )


class Source(Protocol):
    """Conversations that share a prefix."""

    prefix: list[int]

    def draw(self, count: int) -> list[Conversation]: ...

    def conversations(self, count: int) -> list[Conversation]: ...


def train_on(
    model: PreTrainedModel,
    variants: Source,
    options: WarmUp,
    progress: Callable[[int, float], None],
) -> float:
    """Train the model on what `variants` draws; returns the last step's loss."""
    optimizers = _optimizers(model, options)
    prefix = torch.tensor([variants.prefix])
    value = float("nan")
    for step in range(options.steps):
        for optimizer, peak in optimizers.items():
            for group in optimizer.param_groups:
                group["lr"] = peak * _schedule(step, options)
        batch = variants.draw(options.batch_size)
        with torch.autocast("cpu", torch.bfloat16, enabled=options.bfloat16):
            past = model(input_ids=prefix, use_cache=True, logits_to_keep=1).past_key_values
            terms = [_loss(model, past, part, options.context_weight) for part in _by_length(batch)]
        loss = torch.stack([total for total, _ in terms]).sum() / sum(weight for _, weight in terms)
        model.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for optimizer in optimizers:
            optimizer.step()
        value = loss.item()
        progress(step + 1, value)
    return value


def _optimizers(model: PreTrainedModel, options: WarmUp) -> dict[torch.optim.Optimizer, float]:
    """The optimizers with their peak rates."""
    own = options.matrix_learning_rate
    weights = dict(model.named_parameters())
    muon = {name for name, weight in weights.items() if own is not None and weight.ndim == 2 and "embed" not in name}
    others = [weight for name, weight in weights.items() if name not in muon]
    found: dict[torch.optim.Optimizer, float] = {}
    if own is not None:
        found[torch.optim.Muon([weights[name] for name in weights if name in muon], weight_decay=0.01)] = own
    found[torch.optim.AdamW(others, betas=(0.9, 0.98), weight_decay=0.01)] = options.learning_rate
    return found


def _schedule(step: int, options: WarmUp) -> float:
    return min((step + 1) / options.rise, 1.0, (1 - step / options.steps) / 0.7)


def _by_length(batch: Sequence[Conversation]) -> Iterator[list[Conversation]]:
    """Split the batch by length into the two parts that need the least padding."""
    ordered = sorted(batch, key=lambda conversation: len(conversation.ids))
    longest = len(ordered[-1].ids)
    cut = max(range(1, len(ordered)), key=lambda cut: cut * (longest - len(ordered[cut - 1].ids)))
    yield ordered[:cut]
    yield ordered[cut:]


def _loss(
    model: PreTrainedModel, past: Cache, part: Sequence[Conversation], context_weight: float
) -> tuple[torch.Tensor, float]:
    """Return the weighted sum of the negative log-likelihoods after the prefix `past`, and the sum of the weights."""
    length = max(len(conversation.ids) for conversation in part)
    ids = torch.zeros(len(part), length, dtype=torch.long)
    weights = torch.zeros(len(part), length)
    for row, conversation in enumerate(part):
        ids[row, : len(conversation.ids)] = torch.tensor(conversation.ids)
        written = [1.0 if sampled else context_weight for sampled in conversation.sampled]
        weights[row, : len(written)] = torch.tensor(written)
    # Expanded, not copied, so that the prefix receives the gradients of all conversations.
    layers: list[Any] = past.layers
    copies = [tuple(kept.expand(len(part), -1, -1, -1) for kept in (layer.keys, layer.values)) for layer in layers]
    logits = model(input_ids=ids[:, :-1], past_key_values=DynamicCache(copies), use_cache=True).logits
    losses = cross_entropy(logits.transpose(1, 2), ids[:, 1:], reduction="none")
    return (losses * weights[:, 1:]).sum(), float(weights[:, 1:].sum())
