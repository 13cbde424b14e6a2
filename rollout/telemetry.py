"""Export OpenTelemetry spans to a collector; needs the extra `otel`."""

from __future__ import annotations

from collections.abc import Callable

from gateway.errors import ConfigError


def export_spans(*, key: str) -> Callable[[], None]:
    """Set this program's tracer provider: spans go to a collector over OTLP/HTTP, as OTEL_* variables say.

    A provider that the program has set already stays, and gets no exporter.

    Args:
        key: the option or configuration key that asks for it, for errors.

    Returns:
        Sends what is left and stops; at most the exporter's own timeout of seconds.

    Raises:
        ConfigError: the extra is not installed.
    """
    from opentelemetry.trace import ProxyTracerProvider, get_tracer_provider, set_tracer_provider

    if not isinstance(get_tracer_provider(), ProxyTracerProvider):
        return lambda: None
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ImportError as error:
        remedy = "pip install 'mcp-rollout[otel]'"
        raise ConfigError(f"needs {error.name}, which is not installed", key=key, remedy=remedy) from error
    # OTEL_SERVICE_NAME and OTEL_RESOURCE_ATTRIBUTES take precedence.
    provider = TracerProvider(resource=Resource({"service.name": "mcp-rollout"}).merge(Resource.create()))
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    set_tracer_provider(provider)
    return provider.shutdown
