"""Spans of trajectories with OpenTelemetry, by its semantic conventions for generative AI.

A trajectory is an `invoke_agent` span, each turn in it a span, in which the generation is `chat` and each call
`execute_tool`. mcp's client makes a span of each request below them, and hands its context to the server in `_meta`
(`traceparent`), so that spans of servers that use mcp's SDK belong to the same trace. No text of prompts, completions,
arguments or results is in a span.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext

from opentelemetry.context import Context
from opentelemetry.trace import (
    ProxyTracerProvider,
    Span,
    SpanKind,
    StatusCode,
    get_tracer,
    get_tracer_provider,
    set_span_in_context,
)
from opentelemetry.util.types import AttributeValue

from mcp_rollout.gateway.errors import CodedError
from mcp_rollout.gateway.types import ToolResult
from mcp_rollout.rollout.trace.record import Trace
from mcp_rollout.rollout.types import Call

TRACER = "mcp-rollout"
_OFF = nullcontext()


class Spans:
    """The spans of one trajectory; this class makes none. What a block raises passes through."""

    def trajectory(self, trace: Trace) -> AbstractContextManager[None]:
        """Around everything, the lease and the score included."""
        return _OFF

    def generation(self, trace: Trace, max_tokens: int) -> AbstractContextManager[None]:
        """Around a generation, which begins a turn; the turn's span lasts until the next one or the end."""
        return _OFF

    def call(self, call: Call, index: int, results: Sequence[ToolResult]) -> AbstractContextManager[None]:
        """Around a tool call of the current turn; calls may overlap. Its result is at `index` when the block ends."""
        return _OFF

    def user(self) -> AbstractContextManager[None]:
        """Around the user's reply to the current turn."""
        return _OFF


NO_SPANS = Spans()


class OtelSpans(Spans):
    """The spans of one trajectory with OpenTelemetry."""

    def __init__(self) -> None:
        self._tracer = get_tracer(TRACER)
        self._turn: Span | None = None
        """The span of the current turn. It is never the current span: an agent may take its turns in several tasks."""

    @contextmanager
    def trajectory(self, trace: Trace) -> Generator[None]:
        task, origin = trace.task, trace.origin
        attributes: dict[str, AttributeValue] = {
            "gen_ai.operation.name": "invoke_agent",
            "gen_ai.agent.name": task.environment,
            "gen_ai.conversation.id": trace.id,
            "mcp_rollout.task": task.task,
            "mcp_rollout.seed": str(task.seed),
            "mcp_rollout.sample": origin.sample,
            "mcp_rollout.attempt": origin.attempt,
            "mcp_rollout.step": origin.step,
        }
        with self._span(f"invoke_agent {task.environment}", None, attributes) as span:
            try:
                yield
            finally:
                self._end_turn(trace)
                self._describe(span, trace)

    @contextmanager
    def generation(self, trace: Trace, max_tokens: int) -> Generator[None]:
        self._end_turn(trace)
        number, model = len(trace.turns), trace.origin.engine
        self._turn = self._tracer.start_span(f"turn {number}", attributes={"mcp_rollout.turn": number})
        attributes: dict[str, AttributeValue] = {
            "gen_ai.operation.name": "chat",
            "gen_ai.provider.name": model.partition(":")[0],
            "gen_ai.request.model": model.partition(":")[2] or model,
            "gen_ai.request.max_tokens": max_tokens,
            "gen_ai.usage.input_tokens": len(trace.context),
        }
        name = f"chat {attributes['gen_ai.request.model']}"
        with self._span(name, self._within_turn(), attributes, SpanKind.CLIENT) as span:
            yield
            turn = trace.turns[-1]
            span.set_attribute("gen_ai.usage.output_tokens", turn.sampled)
            span.set_attribute("gen_ai.response.finish_reasons", [str(turn.finish_reason)])

    @contextmanager
    def call(self, call: Call, index: int, results: Sequence[ToolResult]) -> Generator[None]:
        attributes: dict[str, AttributeValue] = {
            "gen_ai.operation.name": "execute_tool",
            "gen_ai.tool.name": call.name,
            "gen_ai.tool.type": "function",
            "mcp_rollout.call": index,
        }
        if call.id is not None:
            attributes["gen_ai.tool.call.id"] = call.id
        with self._span(f"execute_tool {call.name}", self._within_turn(), attributes) as span:
            yield
            if results[index].is_error:
                _fail(span, str(results[index].fault or "tool_error"))

    @contextmanager
    def user(self) -> Generator[None]:
        with self._span("ask_user", self._within_turn(), {}):
            yield

    @contextmanager
    def _span(
        self,
        name: str,
        parent: Context | None,
        attributes: Mapping[str, AttributeValue],
        kind: SpanKind = SpanKind.INTERNAL,
    ) -> Generator[Span]:
        """The current span within the block; an exception becomes its `error.type`, without a text that may quote."""
        with self._tracer.start_as_current_span(
            name, parent, kind, attributes=attributes, record_exception=False, set_status_on_exception=False
        ) as span:
            try:
                yield span
            except Exception as error:  # observed, not handled: the span names its class
                _fail(span, error.code if isinstance(error, CodedError) else type(error).__name__)
                raise

    def _within_turn(self) -> Context | None:
        """The parent of what happens in the turn; the current span, where there is no turn."""
        return set_span_in_context(self._turn) if self._turn is not None else None

    def _end_turn(self, trace: Trace) -> None:
        if self._turn is None:
            return
        if trace.turns:
            turn = trace.turns[-1]
            errors = sum(event.is_error for event in turn.tools)
            self._turn.set_attributes({"mcp_rollout.tool_calls": len(turn.tools), "mcp_rollout.tool_errors": errors})
        self._turn.end()
        self._turn = None

    def _describe(self, span: Span, trace: Trace) -> None:
        span.set_attributes({"mcp_rollout.turns": len(trace.turns), "mcp_rollout.tool_calls": trace.tool_calls})
        if trace.stop_reason is not None:
            span.set_attribute("mcp_rollout.stop_reason", str(trace.stop_reason))
        if trace.reward is not None:
            span.set_attribute("mcp_rollout.reward", trace.reward.score)


def _fail(span: Span, kind: str) -> None:
    span.set_attribute("error.type", kind)
    span.set_status(StatusCode.ERROR)


def spans_of_this_program() -> Spans:
    """Spans for one trajectory: those of OpenTelemetry, where this program has set a tracer provider."""
    if isinstance(get_tracer_provider(), ProxyTracerProvider):  # none is set
        return NO_SPANS
    return OtelSpans()
