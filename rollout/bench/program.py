"""What the programs of `rollout.bench` have in common."""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Callable
from typing import Any

import structlog

from gateway.errors import ConfigError, GatewayError
from gateway.logs import configure_logs

_INTERRUPTED = 130


def print_figures(measured: Callable[[], Any]) -> None:
    """Print what was measured as JSON, and nothing else but errors, each in a line."""
    logging.disable(logging.WARNING)
    configure_logs(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
    try:
        found = measured()
    except KeyboardInterrupt:  # of the terminal, which interrupts the command as well; that says so
        raise SystemExit(_INTERRUPTED) from None
    except (ConfigError, GatewayError) as error:
        raise SystemExit(f"error: {error}") from None
    sys.stdout.write(json.dumps(found) + "\n")
