"""A trajectory's state and score, and the scripted expert."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass, field

from mcp_servers.kit import Call, Expert, ExpertTurn, Message, Score, ToolError, texts_for_user
from mcp_servers.research.library import Document, Library
from mcp_servers.research.questions import Question

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
