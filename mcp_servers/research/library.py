"""A library: articles about all entities of its facts, and BM25 search over them."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from random import Random
from typing import Any

from mcp_rollout.mcp_servers.kit import Split
from mcp_rollout.mcp_servers.research.facts import Entity, descriptions, make_facts

try:
    import bm25s  # pyright: ignore[reportMissingTypeStubs]
except ImportError as error:
    raise ImportError("mcp_rollout.mcp_servers.research needs bm25s: pip install 'mcp-rollout[research]'") from error

_WORD = re.compile(r"\w+")


@dataclass(frozen=True, slots=True)
class Document:
    id: str
    title: str
    text: str

    @property
    def excerpt(self) -> str:
        """The first sentence, which states what the title is and no fact that a question asks for."""
        return self.text.partition(".")[0] + "."


class SearchIndex:
    """Texts by id, ranked by BM25 with bm25s's defaults (Lucene's variant, k1 1.5, b 0.75) over lower-case words."""

    def __init__(self, texts: Mapping[str, str]) -> None:
        self._ids = list(texts)
        tokens = [_words(text) for text in texts.values()]
        self._known = {word for words in tokens for word in words}
        # numpy explicitly: by default bm25s uses jax if it is installed, whose sums differ in the last digit.
        self._bm25: Any = bm25s.BM25(backend="numpy")
        self._bm25.index(tokens, show_progress=False)

    def search(self, query: str, limit: int) -> list[str]:
        """Ids of at most `limit` texts that share a word with the query, best first; ties in the order of the ids."""
        words = [word for word in _words(query) if word in self._known]
        if not words:
            return []
        scores: list[float] = self._bm25.get_scores(words).tolist()
        best = sorted(range(len(scores)), key=lambda index: (-scores[index], index))
        return [self._ids[index] for index in best[:limit] if scores[index] > 0]


@dataclass(frozen=True, kw_only=True, slots=True)
class Library:
    facts: Mapping[str, Entity]
    """By name."""
    documents: Mapping[str, Document]
    """By id."""
    ids: Mapping[str, str]
    """Document ids by title, which is the entity's name."""
    index: SearchIndex

    def search(self, query: str, limit: int) -> list[Document]:
        """At most `limit` documents, best first; none if the library has no word of the query."""
        return [self.documents[found] for found in self.index.search(query, limit)]


def make_library(split: Split, number: int) -> Library:
    """Library `number` of a split, the same in every process. The splits' libraries share no name."""
    name = f"{split}-{number}"
    rng = Random(f"library/{name}")
    facts = make_facts(rng, 0 if split == "train" else 1)
    documents: dict[str, Document] = {}
    for title, entity in facts.items():
        # Ids are hashes, so that finding a document takes a search.
        found = hashlib.sha256(f"{name}/{title}".encode()).hexdigest()[:8]
        documents[found] = Document(id=found, title=title, text=article(rng, entity))
    in_order = sorted(documents)
    return Library(
        facts=facts,
        documents={key: documents[key] for key in in_order},
        ids={document.title: key for key, document in documents.items()},
        # The title is repeated so that it weighs more than one mention in another text.
        index=SearchIndex({key: f"{documents[key].title} " * 3 + documents[key].text for key in in_order}),
    )


def article(rng: Random, entity: Entity) -> str:
    """All facts of the entity in a random order, and none of another entity."""
    described = descriptions()[entity.kind]
    it = entity.name.rpartition(" ")[2] if entity.kind == "person" else "It"
    sentences = [rng.choice(described.remarks)]
    for relation in described.relations:
        value = entity.facts[relation.name]
        sentences.append(relation.sentence.format(it=it, value=value, a_value=_a(value)))
    rng.shuffle(sentences)
    return " ".join([described.opening.format(name=entity.name, a_genre=_a(entity.genre)), *sentences])


def _a(noun: str) -> str:
    return f"{'an' if noun[:1] in tuple('aeiou') else 'a'} {noun}"


def _words(text: str) -> list[str]:
    return _WORD.findall(text.lower())
