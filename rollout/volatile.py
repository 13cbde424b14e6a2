"""What differs in a server's answers from one call to the next although nothing was decided differently."""

from __future__ import annotations

import re

VOLATILE = re.compile(
    r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}"  # UUIDs
    r"|\b(localhost|127\.0\.0\.1|0\.0\.0\.0):\d+"  # ports that the system chose
    r"|\d{4}-\d\d-\d\d[T _]\d\d:?\d\d(:?\d\d)?([.,]\d+)?(Z|[+-]\d\d:?\d\d)?"  # moments
    r"|\b\d{1,2}:\d\d(:\d\d)?([.,]\d+)?( ?[AP]M)?\b"  # times of day
    r"|\b1[5-9]\d{8}(\d{3}|\d{6})?(\.\d+)?\b"  # seconds, milliseconds and microseconds since 1970
    r"|\b\d+(\.\d+)?\s?(ms|µs|us|ns|seconds?|secs?|s|MiB|MB|KiB|KB|GB|GiB)\b"  # durations and sizes
    r"|\b(?=[0-9a-f]*\d)[0-9a-f]{16,}(\.\d+)?\b"
    r"|, \d+ bytes\]",  # of a file, whose compressed size depends on the clock that it holds
    re.IGNORECASE,
)
