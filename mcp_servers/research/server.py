"""The library as an MCP server; `search` and `read` are the policy's tools."""

from __future__ import annotations

from functools import lru_cache
from typing import Annotated

from mcp.server.mcpserver import Context, MCPServer
from pydantic import BaseModel, Field

from mcp_servers.kit import READ, Harness
from mcp_servers.research.inquiry import MAX_OPENED, Inquiry, expert
from mcp_servers.research.library import make_library
from mcp_servers.research.questions import LIBRARIES, TASKS, Question, library_of, make_question

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
