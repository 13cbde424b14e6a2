"""Spans of a trajectory: the interface, and the one that makes none. `rollout.loop.otel` has that of OpenTelemetry."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Protocol

from opentelemetry.trace import ProxyTracerProvider, get_tracer_provider

from gateway.types import ToolResult
from rollout.types import Call

if TYPE_CHECKING:
    from rollout.trace.record import Trace

_OFF = nullcontext()


class Spans(Protocol):
    """The spans of one trajectory. What a block raises passes through."""

    def trajectory(self, trace: Trace) -> AbstractContextManager[None]:
        """Around everything, the lease and the score included."""
        ...

    def generation(self, trace: Trace, max_tokens: int) -> AbstractContextManager[None]:
        """Around a generation, which begins a turn; the turn's span lasts until the next one or the end."""
        ...

    def call(self, call: Call, index: int, results: Sequence[ToolResult]) -> AbstractContextManager[None]:
        """Around a tool call of the current turn; calls may overlap. Its result is at `index` when the block ends."""
        ...

    def user(self) -> AbstractContextManager[None]:
        """Around the user's reply to the current turn."""
        ...


class NoSpans:
    """Makes no spans."""

    def trajectory(self, trace: Trace) -> AbstractContextManager[None]:
        return _OFF

    def generation(self, trace: Trace, max_tokens: int) -> AbstractContextManager[None]:
        return _OFF

    def call(self, call: Call, index: int, results: Sequence[ToolResult]) -> AbstractContextManager[None]:
        return _OFF

    def user(self) -> AbstractContextManager[None]:
        return _OFF


NO_SPANS = NoSpans()


def spans_of_this_program() -> Spans:
    """Spans for one trajectory: those of OpenTelemetry, where this program has set a tracer provider."""
    if isinstance(get_tracer_provider(), ProxyTracerProvider):  # none is set
        return NO_SPANS
    from rollout.loop.otel import OtelSpans

    return OtelSpans()
