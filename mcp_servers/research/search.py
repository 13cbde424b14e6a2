"""BM25 over a few hundred texts, by the library bm25s."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

try:
    import bm25s  # pyright: ignore[reportMissingTypeStubs]
except ImportError as error:
    raise ImportError("mcp_servers.research needs bm25s: pip install 'mcp-rollout[research]'") from error

_WORD = re.compile(r"\w+")


class SearchIndex:
    """Texts by id, ranked by BM25 with bm25s's defaults (Lucene's variant, k1 1.5, b 0.75) over lower-case words."""

    def __init__(self, texts: Mapping[str, str]) -> None:
        self._ids = list(texts)
        tokens = [_words(text) for text in texts.values()]
        self._known = {word for words in tokens for word in words}
        # numpy by name: otherwise bm25s takes jax where that is installed, whose sums differ in the last digit.
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


def _words(text: str) -> list[str]:
    return _WORD.findall(text.lower())
