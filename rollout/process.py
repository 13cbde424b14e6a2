"""Settings of a whole process: its garbage collector, and where its OpenTelemetry spans go (extra `otel`)."""

from __future__ import annotations

import ctypes
import gc
from collections.abc import Callable
from typing import Any

from mcp_rollout.rollout.extras import needed

THRESHOLDS = (500_000, 20, 100)
"""Allocations per collection of the youngest generation; collections of a generation per collection of the next."""

_untrack: Any = ctypes.pythonapi.PyObject_GC_UnTrack
_untrack.argtypes, _untrack.restype = (ctypes.py_object,), None


def tune_collector() -> None:
    """Exempts what exists now from garbage collection, and collects less often.

    A collection walks every object that a process holds: modules, catalogues, and each waiting trajectory. Nearly
    nothing that a turn makes is part of a cycle, so that walking them more often frees nothing more.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(*THRESHOLDS)


def exempt(numbers: list[int] | list[float]) -> None:
    """Exempts a list of numbers from garbage collection, also what is appended to it later.

    Numbers are part of no cycle. A collection would look at each of them all the same: at millions, where hundreds of
    trajectories wait for their engine.
    """
    # What other people's token builders return may be no list; the interpreter would write beyond some objects.
    if isinstance(numbers, list):  # pyright: ignore[reportUnnecessaryIsInstance]
        _untrack(numbers)


def export_spans(*, key: str) -> Callable[[], object]:
    """Set this program's tracer provider: spans go to a collector over OTLP/HTTP, as OTEL_* variables say.

    A provider that the program has set already stays, and gets no exporter. It lasts until the program ends: several
    event loops of a process may make spans, and one of them may end before the others.

    Args:
        key: the option or configuration key that asks for it, for errors.

    Returns:
        Sends what there is so far, within the exporter's own timeout.

    Raises:
        ConfigError: the extra is not installed.
    """
    from opentelemetry.trace import ProxyTracerProvider, get_tracer_provider, set_tracer_provider

    present = get_tracer_provider()
    if not isinstance(present, ProxyTracerProvider):
        return getattr(present, "force_flush", lambda: None)
    with needed("otel", key=key):
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    # OTEL_SERVICE_NAME and OTEL_RESOURCE_ATTRIBUTES take precedence.
    provider = TracerProvider(resource=Resource({"service.name": "mcp-rollout"}).merge(Resource.create()))
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    set_tracer_provider(provider)
    return provider.force_flush
