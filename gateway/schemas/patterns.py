"""Regular expressions of servers, held to an engine whose time is linear in the text, and to a size.

The engine is the `regex` crate's, by way of jsonschema-rs: no backtracking, hence no look-around and no
back-references. Python's `re` matches nothing with a server's expression.
"""

from __future__ import annotations

import re

from jsonschema_rs import RegexOptions, ValidationError, validator_for

SIZES = (32 << 10, 256 << 10, 1 << 20)
"""What one compiled expression may take, in bytes; the first that is enough is what it is counted as."""
_TOKEN = re.compile(r"\\.|\[(?:\\.|[^\]\\])*\]|\{(\d{1,6})(,?)(\d{0,6})\}|.", re.DOTALL)


def options(size: int) -> RegexOptions:
    return RegexOptions(size_limit=size, dfa_size_limit=size)


def compiled_size(pattern: str, room: int) -> int | None:
    """How many bytes a pattern is counted as, at most `room`; None where it is not linear or needs more."""
    for size in SIZES:
        if size > room:
            return None
        try:
            validator_for({"pattern": pattern}, offline=True, pattern_options=options(size))
        except (ValidationError, ValueError):
            continue
        return size
    return None


def states(pattern: str) -> int:
    """How many places in the pattern one character of the text may have to be compared with, repeats written out."""
    total, last = [1], [0]  # by depth of the group; the last part is what a repeat repeats
    for token in _TOKEN.finditer(pattern):
        match token.group():
            case "(":
                total.append(1)
                last.append(0)
            case ")" if len(total) > 1:
                last.pop()
                last[-1] = total.pop()
                total[-1] += last[-1]
            case "|" | "^" | "$" | "*" | "+" | "?" | ")":
                pass
            case _ if token.group(1) is not None:
                times = max(int(token.group(1)) + (token.group(2) == ","), int(token.group(3) or 0))
                total[-1] += last[-1] * max(0, times - 1)
                last[-1] *= max(1, times)
            case _:
                last[-1] = 1
                total[-1] += 1
    return sum(total)
