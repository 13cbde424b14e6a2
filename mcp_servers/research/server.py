"""The library as an MCP server; `search` and `read` are the policy's tools."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Annotated

from mcp.server.mcpserver import Context, MCPServer
from pydantic import BaseModel, Field

from mcp_rollout.mcp_servers.kit import (
    READ,
    Call,
    Expert,
    ExpertTurn,
    Harness,
    Message,
    Score,
    ToolError,
    texts_for_user,
)
from mcp_rollout.mcp_servers.research.library import Document, Library, make_library
from mcp_rollout.mcp_servers.research.questions import LIBRARIES, TASKS, Question, library_of, make_question

MAX_OPENED = 5
"""Number of documents that count as read, the first ones; further ones can be opened but do not count."""
EVIDENCE_SHARE = 0.1

# Not `\W`, which takes time quadratic in empty lines: other trajectories wait for this server.
_ANSWER = re.compile(r"^[^\w\n]*Answer:[ \t]*(.*)$", re.MULTILINE | re.IGNORECASE)


@dataclass(kw_only=True, slots=True)
class Inquiry:
    """A question, its library and the documents that the agent opened."""

    question: Question
    library: Library
    opened: dict[str, None] = field(default_factory=dict[str, None])
    """Document ids in the order of their first opening."""

    def open(self, document: str) -> Document:
        """Opens a document. Raises `ToolError` if there is no such document."""
        if document not in self.library.documents:
            raise ToolError(f"there is no document {document!r}; search gives the ids")
        self.opened.setdefault(document)
        return self.library.documents[document]

    def score(self, messages: Sequence[Message]) -> Score:
        """``evidence * (0.1 + 0.9 * answer)``.

        `evidence` is the share of the chain's documents among the first `MAX_OPENED` opened ones. `answer` is 1 for an
        exact match, after normalisation, in the last message that the user reads, and counts only if the document
        that states it was opened. So guessing scores 0, and opening documents at random scores little.
        """
        counted = list(self.opened)[:MAX_OPENED]
        read = [self.library.ids[title] in counted for title in self.question.chain]
        texts = texts_for_user(messages)
        right = bool(texts) and answer_in(texts[-1]) == normalised(self.question.answer)
        evidence, answer = sum(read) / len(read), float(right and read[-1])
        total = evidence * (EVIDENCE_SHARE + (1 - EVIDENCE_SHARE) * answer)
        return Score(score=total, parts={"answer": answer, "evidence": evidence})


def expert(inquiry: Inquiry) -> Expert:
    """Searches for and opens each document of the chain, then answers."""
    turns: list[ExpertTurn] = []
    for title in inquiry.question.chain:
        search = Call(name="search", arguments={"query": title})
        read = Call(name="read", arguments={"document": inquiry.library.ids[title]})
        turns.append(ExpertTurn(thinking=f"I look for {title}.", calls=[search]))
        turns.append(ExpertTurn(thinking=f"The article about {title} should say it.", calls=[read]))
    told = f"I followed it from article to article.\nAnswer: {inquiry.question.answer}"
    return Expert(turns=[*turns, ExpertTurn(thinking="That is the answer.", content=told)])


def answer_in(message: str) -> str | None:
    """The message's answer, normalised; None if two answers differ, or listing many would pay."""
    answers = {normalised(found) for found in _ANSWER.findall(message)}
    return answers.pop() if len(answers) == 1 else None


def normalised(text: str) -> str:
    """Lower case without punctuation, articles and repeated white space, as usual for exact match."""
    plain = "".join(c if c.isalnum() else " " for c in unicodedata.normalize("NFKC", text).casefold())
    return " ".join(word for word in plain.split() if word not in ("a", "an", "the"))


INSTRUCTIONS = f"""\
You answer questions from a library of short articles. Each question takes several: search for what the question names,
open the article, and search for what it leads to. Search shows titles only; the facts are in the articles. Only what
you have opened counts as read, and of that the first {MAX_OPENED} articles. When you know the answer, give it with a
last line of exactly this form:
Answer: ..."""


class Hit(BaseModel):
    """A document that was found."""

    document: str
    title: str
    excerpt: str


class Hits(BaseModel):
    hits: list[Hit]


def create_server() -> MCPServer:
    server = MCPServer("research", instructions=INSTRUCTIONS, log_level="WARNING")
    # There are few libraries and trajectories only read them, so each is made once.
    library = lru_cache(maxsize=sum(LIBRARIES.values()))(make_library)

    def begin(task: str, seed: int) -> Inquiry:
        found = library(*library_of(task, seed))
        return Inquiry(question=make_question(task, seed, found.facts), library=found)

    def question(task: str, seed: int) -> Question:
        return begin(task, seed).question

    harness = Harness(server, begin)
    harness.tasks(lambda split: TASKS.items(split, question))
    harness.start(lambda inquiry: inquiry.question.prompt)
    harness.score(Inquiry.score)
    harness.expert(expert)
    _add_policy_tools(server, harness)
    return server


def _add_policy_tools(server: MCPServer, harness: Harness[Inquiry]) -> None:
    @server.tool(annotations=READ)
    async def search(
        query: Annotated[str, Field(min_length=1, max_length=400, description="Words to look for")],
        ctx: Context,
        limit: Annotated[int, Field(ge=1, le=10)] = 5,
    ) -> Hits:
        """Find articles by words in their titles and texts, the best first."""
        found = harness.world(ctx).library.search(query, limit)
        return Hits(hits=[Hit(document=one.id, title=one.title, excerpt=one.excerpt) for one in found])

    # READ, because only the first opening is recorded: a repeated call leaves the same state.
    @server.tool(annotations=READ)
    async def read(
        document: Annotated[str, Field(description="An id from search, such as 3f09c1d2")], ctx: Context
    ) -> str:
        """Open an article."""
        found = harness.world(ctx).open(document)
        return f"{found.title}\n\n{found.text}"
