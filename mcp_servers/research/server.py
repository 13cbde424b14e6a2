"""The library as an MCP server: search and read are the policy's."""

from __future__ import annotations

from functools import lru_cache
from typing import Annotated

from mcp.server.mcpserver import Context, MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from pydantic import BaseModel, Field

from mcp_servers.kit.answers import Done, Expert, Opening, Score, Split, TaskItem, TaskList
from mcp_servers.kit.messages import Message
from mcp_servers.kit.roles import READ, harness_tool
from mcp_servers.kit.state import TrajectoryState
from mcp_servers.research import questions
from mcp_servers.research.expert import expert as scripted_expert
from mcp_servers.research.inquiry import MAX_OPENED, Inquiry
from mcp_servers.research.library import Library, make_library
from mcp_servers.research.questions import LIBRARIES, Question

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
        """Raises ToolError: there is no such task."""
        try:
            library: Library = self.get(*questions.library_of(task, seed))
            return Inquiry(question=questions.make_question(task, seed, library.facts), library=library)
        except LookupError as error:
            raise ToolError(str(error)) from error


def create_server() -> MCPServer:
    server = MCPServer("research", instructions=INSTRUCTIONS, log_level="WARNING")
    state = TrajectoryState[Inquiry]()
    _add_policy_tools(server, state)
    _add_harness_tools(server, state, Libraries())
    return server


def _add_policy_tools(server: MCPServer, state: TrajectoryState[Inquiry]) -> None:
    @server.tool(annotations=READ)
    async def search(
        query: Annotated[str, Field(min_length=1, max_length=400, description="Words to look for")],
        ctx: Context,
        limit: Annotated[int, Field(ge=1, le=10)] = 5,
    ) -> Hits:
        """Find articles by words in their titles and texts, the best first."""
        found = state.of(ctx).library.search(query, limit)
        return Hits(hits=[Hit(document=one.id, title=one.title, excerpt=one.excerpt) for one in found])

    # Opening is kept in order of the first time: the same call twice leaves what it left once.
    @server.tool(annotations=READ)
    async def read(
        document: Annotated[str, Field(description="An id from search, such as 3f09c1d2")], ctx: Context
    ) -> str:
        """Open an article."""
        try:
            found = state.of(ctx).open(document)
        except LookupError as error:
            raise ToolError(str(error)) from error
        return f"{found.title}\n\n{found.text}"


def _add_harness_tools(server: MCPServer, state: TrajectoryState[Inquiry], libraries: Libraries) -> None:
    @harness_tool(server, "tasks")
    async def tasks(split: Split, limit: Annotated[int, Field(ge=0)]) -> TaskList:
        """The first `limit` tasks of a split."""
        names = questions.task_names(split)[:limit]
        return TaskList(tasks=[_item(libraries.inquiry(name, questions.default_seed(name)).question) for name in names])

    @harness_tool(server, "reset")
    async def reset(task: str, seed: int, ctx: Context) -> Done:
        """Begin a task: its library, nothing opened."""
        state.reset(ctx, libraries.inquiry(task, seed))
        return Done()

    @harness_tool(server, "start")
    async def start(ctx: Context) -> Opening:
        """The question."""
        return Opening(message=state.of(ctx).question.prompt)

    @harness_tool(server, "score")
    async def score(messages: list[Message], ctx: Context) -> Score:
        """Score the answer in the messages and what was opened."""
        return state.of(ctx).score(messages)

    @harness_tool(server, "release")
    async def release(ctx: Context) -> Done:
        """End the trajectory."""
        state.drop(ctx)
        return Done()

    @harness_tool(server, "expert")
    async def expert(task: str, seed: int) -> Expert:
        """The scripted expert's turns for a task."""
        inquiry = libraries.inquiry(task, seed)
        return scripted_expert(inquiry.question, inquiry.library)


def _item(question: Question) -> TaskItem:
    return TaskItem(task=question.task, seed=question.seed, prompt=question.prompt, difficulty=question.difficulty)
