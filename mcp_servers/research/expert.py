"""The scripted expert: searches and opens one document of the chain after the other, then answers."""

from __future__ import annotations

from mcp_servers.kit.answers import Call, Expert, ExpertTurn
from mcp_servers.research.library import Library
from mcp_servers.research.questions import Question


def expert(question: Question, library: Library) -> Expert:
    turns: list[ExpertTurn] = []
    for title in question.chain:
        search = Call(name="search", arguments={"query": title})
        read = Call(name="read", arguments={"document": library.ids[title]})
        turns.append(ExpertTurn(thinking=f"I look for {title}.", calls=[search]))
        turns.append(ExpertTurn(thinking=f"The article about {title} should say it.", calls=[read]))
    told = f"I followed it from article to article.\nAnswer: {question.answer}"
    return Expert(turns=[*turns, ExpertTurn(thinking="That is the answer.", content=told)])
