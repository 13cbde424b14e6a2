"""The library as an MCP server: search and read are the policy's."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from typing import Annotated

from mcp.server.mcpserver import Context, MCPServer
from pydantic import BaseModel, Field

from mcp_servers.kit import READ, Expert, Harness, Message, Score, Split, TaskItem, ToolError
from mcp_servers.research import questions
from mcp_servers.research.expert import expert as scripted_expert
from mcp_servers.research.inquiry import MAX_OPENED, Inquiry
from mcp_servers.research.library import Library, make_library
from mcp_servers.research.questions import LIBRARIES

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


class Libraries:
    """Libraries that were made already; there are few, and trajectories only read them."""

    def __init__(self) -> None:
        self.get = lru_cache(maxsize=sum(LIBRARIES.values()))(make_library)

    def inquiry(self, task: str, seed: int) -> Inquiry:
        """Raises LookupError: there is no such task."""
        library: Library = self.get(*questions.library_of(task, seed))
        return Inquiry(question=questions.make_question(task, seed, library.facts), library=library)


def create_server() -> MCPServer:
    server = MCPServer("research", instructions=INSTRUCTIONS, log_level="WARNING")
    libraries = Libraries()
    harness = Harness(server, libraries.inquiry)
    _add_policy_tools(server, harness)
    _add_harness_tools(harness, libraries)
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

    # Opening is kept in order of the first time: the same call twice leaves what it left once.
    @server.tool(annotations=READ)
    async def read(
        document: Annotated[str, Field(description="An id from search, such as 3f09c1d2")], ctx: Context
    ) -> str:
        """Open an article."""
        try:
            found = harness.world(ctx).open(document)
        except LookupError as error:
            raise ToolError(str(error)) from error
        return f"{found.title}\n\n{found.text}"


def _add_harness_tools(harness: Harness[Inquiry], libraries: Libraries) -> None:
    @harness.tasks
    def tasks(split: Split) -> Iterator[TaskItem]:
        """The first `limit` tasks of a split."""
        for task in questions.TASKS.names(split):
            made = libraries.inquiry(task, questions.TASKS.seed(task)).question
            yield TaskItem(task=task, seed=made.seed, prompt=made.prompt, difficulty=made.difficulty)

    @harness.start
    def start(inquiry: Inquiry) -> str:
        """The question."""
        return inquiry.question.prompt

    @harness.score
    def score(inquiry: Inquiry, messages: list[Message]) -> Score:
        """Score the answer in the messages and what was opened."""
        return inquiry.score(messages)

    @harness.expert
    def expert(inquiry: Inquiry) -> Expert:
        """The scripted expert's turns for a task."""
        return scripted_expert(inquiry.question, inquiry.library)
