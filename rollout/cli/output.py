"""What commands print, on both streams: texts of servers and models act on no terminal.

`protect_terminal` puts a filter in front of the standard streams, so that whatever is written to them is text: control
characters, escape sequences, bidirectional controls and invisible characters are spelled out, as in `<U+001B>`. Rich
writes past it, since its own sequences are such characters; `Console` spells out the texts that it draws instead.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Generator, Iterable
from contextlib import contextmanager
from typing import Any, TextIO

from rich.console import Console as RichConsole
from rich.console import ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.table import Table
from rich.text import Span, Text

from mcp_rollout.gateway.catalogue.hidden_text import visible


class Printed:
    """A text stream whose texts have their hidden characters spelled out; otherwise as the stream itself."""

    def __init__(self, stream: TextIO) -> None:
        self.rich_proxied_file = stream
        """Where consoles of rich write, which look for this name."""

    def write(self, text: str) -> int:
        self.rich_proxied_file.write(visible(text))
        return len(text)

    def writelines(self, lines: Iterable[str]) -> None:
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.rich_proxied_file, name)


@contextmanager
def protect_terminal() -> Generator[None]:
    """Filter what is written to the standard streams within the block."""
    before: tuple[Any, Any] = sys.stdout, sys.stderr
    # A stream that the user has closed is None.
    within = sys.stdout, sys.stderr = tuple[Any, Any](stream and Printed(stream) for stream in before)
    try:
        yield
    finally:
        # Not where click has replaced a stream whose reader is gone: flushing the one before would fail.
        if (sys.stdout, sys.stderr) == within:
            sys.stdout, sys.stderr = before


class Console(RichConsole):
    """A console that reads no markup in texts, and spells out their hidden characters."""

    def __init__(self, *, stderr: bool = False, width: int | None = None) -> None:
        super().__init__(stderr=stderr, width=width, markup=False, emoji=False, highlight=False)

    def print_whole(self, table: Table) -> None:
        """Print a table; in a file or a pipe, none of its cells is folded or cut."""
        if not self.is_terminal:
            whole = self.measure(table, options=self.options.update(width=100_000)).maximum
            self.width = max(self.width, whole)
        self.print(table)

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        # Before the layout, so that nothing is cut; and after it, for what is drawn otherwise.
        given = _spelled_out(renderable) if isinstance(renderable, Text) else renderable
        for text, style, control in super().render(given, options):
            yield Segment(text if control else visible(text), style, control)


def _spelled_out(text: Text) -> Text:
    """The text with its hidden characters spelled out, in their styles."""
    if visible(text.plain) == text.plain:
        return text
    shown = text.blank_copy()
    for part in text.divide(sorted({at for start, end, _ in text.spans for at in (start, end)})):
        plain = visible(part.plain)
        # Of spans that cover all of the part.
        shown.append_text(Text(plain, spans=[Span(0, len(plain), style) for _, _, style in part.spans]))
    return shown


def json_visible(text: str) -> str:
    """A JSON text with escapes of JSON for its hidden characters, so that it reads back as it was."""
    return visible(text, lambda point: json.dumps(chr(point))[1:-1])
