"""What seeds of the same run say together."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

_T95 = {2: 12.706, 3: 4.303, 4: 3.182, 5: 2.776}
"""Of Student's distribution for so many seeds."""


def over_seeds(values: Sequence[float]) -> tuple[float, float] | None:
    """The 95% interval of the mean over seeds, after Student; None for one seed, or more than are tabulated."""
    if len(values) not in _T95:
        return None
    mean = statistics.fmean(values)
    half = _T95[len(values)] * statistics.stdev(values) / math.sqrt(len(values))
    return mean - half, mean + half
