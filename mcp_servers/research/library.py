"""A library: the articles about all entities of its facts, and the search over them."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from random import Random

from mcp_servers.kit.answers import Split
from mcp_servers.research.articles import article
from mcp_servers.research.facts import Facts, make_facts
from mcp_servers.research.search import SearchIndex


@dataclass(frozen=True, slots=True)
class Document:
    id: str
    title: str
    text: str

    @property
    def excerpt(self) -> str:
        """The first sentence, which says what the title is and nothing that a question asks for."""
        return self.text.partition(".")[0] + "."


@dataclass(frozen=True, kw_only=True, slots=True)
class Library:
    facts: Facts
    documents: Mapping[str, Document]
    """By id."""
    ids: Mapping[str, str]
    """By title, which is the entity's name."""
    index: SearchIndex

    def search(self, query: str, limit: int) -> list[Document]:
        """The documents that fit best, best first; none where no word of the query is in the library."""
        return [self.documents[found] for found in self.index.search(query, limit)]


def make_library(split: Split, number: int) -> Library:
    """The library number `number` of a split, the same in every process. The splits' libraries share no name."""
    name = f"{split}-{number}"
    rng = Random(f"library/{name}")
    facts = make_facts(rng, 0 if split == "train" else 1)
    documents: dict[str, Document] = {}
    for title, entity in facts.all().items():
        # The ids say nothing, so that finding a document takes a search.
        found = hashlib.sha256(f"{name}/{title}".encode()).hexdigest()[:8]
        documents[found] = Document(id=found, title=title, text=article(rng, entity))
    in_order = sorted(documents)
    return Library(
        facts=facts,
        documents={key: documents[key] for key in in_order},
        ids={document.title: key for key, document in documents.items()},
        # The title counts more than one mention among many.
        index=SearchIndex({key: f"{documents[key].title} " * 3 + documents[key].text for key in in_order}),
    )
