"""One trajectory: its question, what it opened, and what that comes to."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass, field

from mcp_servers.kit.answers import Score
from mcp_servers.kit.messages import Message
from mcp_servers.research.library import Document, Library
from mcp_servers.research.questions import Question

MAX_OPENED = 12
"""Documents that count as read, the first ones; later ones may be read all the same."""
EVIDENCE_SHARE = 0.2

_ANSWER = re.compile(r"^\W*Answer:[ \t]*(.*)$", re.MULTILINE | re.IGNORECASE)


@dataclass(kw_only=True, slots=True)
class Inquiry:
    question: Question
    library: Library
    opened: dict[str, None] = field(default_factory=dict[str, None])
    """Ids in the order in which they were opened first."""

    def open(self, document: str) -> Document:
        """Raises LookupError: there is no such document."""
        if document not in self.library.documents:
            raise LookupError(f"there is no document {document!r}; search gives the ids")
        self.opened.setdefault(document)
        return self.library.documents[document]

    def score(self, messages: Sequence[Message]) -> Score:
        """``evidence * (0.2 + 0.8 * answer)``.

        `evidence` is the share of the chain's documents among the first `MAX_OPENED` that were opened; `answer` is 1
        for an exact match, after normalisation, in the last message that the user got to read, and counts only if the
        document that states it was opened. So guessing is worth nothing, and opening whatever there is little.
        """
        counted = list(self.opened)[:MAX_OPENED]
        read = [self.library.ids[title] in counted for title in self.question.chain]
        said = [message.text for message in messages if message.is_told]
        right = bool(said) and answer_in(said[-1]) == normalised(self.question.answer)
        evidence, answer = sum(read) / len(read), float(right and read[-1])
        total = evidence * (EVIDENCE_SHARE + (1 - EVIDENCE_SHARE) * answer)
        return Score(score=total, parts={"answer": answer, "evidence": evidence})


def answer_in(message: str) -> str | None:
    """The message's one answer, normalised; two different ones are none, or naming many would pay."""
    answers = {normalised(found) for found in _ANSWER.findall(message)}
    return answers.pop() if len(answers) == 1 else None


def normalised(text: str) -> str:
    """Lower case, without punctuation, articles and runs of white space, as exact match is usually read."""
    plain = "".join(c if c.isalnum() else " " for c in unicodedata.normalize("NFKC", text).casefold())
    return " ".join(word for word in plain.split() if word not in ("a", "an", "the"))
