# ruff: noqa: RUF001
# Signs that look alike are what this is about.
"""Read a number as people and models write it; docs/write.md has the table of what is one and what is ambiguous."""

from __future__ import annotations

import re
import unicodedata
from collections import deque
from dataclasses import dataclass
from fractions import Fraction

_PUNCTUATION = ".,;:!?\"'`*$ "
_LONGEST = 1000
"""Characters of a number: Python takes quadratic time for those of its digits."""
_NEAR = 10_000
"""Characters around the last digit of a text in which its last number is looked for first."""
_CONTEXT = 40
"""Characters before a number that decide whether it stands for itself."""
_SIGNS = str.maketrans("−‐–⁄∕‘’“”٫", "---//''\"\".")
_SCRIPTS = re.compile("([⁰¹²³⁴-⁹⁺⁻]+)|([₀-₉]+)|(?<=\\d)(?=[¼-¾⅐-⅞])|−\\s+(?=[\\d.])")
_SEPARATORS = re.compile(r"(?<=\d)(?:[\u00a0\u2006-\u200a\u202f٬]|\\,)(?=\d{3}(?!\d))")
_MARKUP = re.compile(r"\\!|\\(?=[%$])|\{(?=,\})|(?<=\{,)\}")
_TAG = re.compile(r"</?[A-Za-z][\w-]*>")
_FRACTION = re.compile(r"(?:([-−+])\s?)?\\[dt]?frac\{(-?\d+)\}\{(\d+)\}")
_LAST_DIGIT = re.compile(r"[\d¼-¾⅐-⅞](?=[^\d¼-¾⅐-⅞]*\Z)")
_NUMBER = re.compile(
    r"""(?<![^\W_])(?<![^\W\d_][-+*/^])  # not within a word: H2O, COVID-19, x+3
    (?:(?P<sign>[-+](?P<gap>\s)?|(?:minus|negative)\s))?
    (?:(?P<money>[$€£¥₹₩₽])\s?(?P<inner>[-+])?)?
    (?:(?P<whole>\d++)\s(?=\d+\s?/\s?\d))?
    (?P<digits>(?:(?<![\w.)\]])[.,])?\d++(?:[.,'_]\d++)*+)
    (?:\s?/\s?(?P<under>\d++)|e(?P<e>[-+]?\d{1,4})(?!\w)
      |(?:\s?(?P<times>[x×*·⋅]|\\times|\\cdot)\s?10)?(?:\^|\*\*)(?P<open>\{)?(?P<power>[-+]?\d{1,4})(?!\w)(?(open)\}))?
    (?:\s?(?P<unit>%|‰|percent\b|per\scent\b|[€£¥₹₩₽]))?""",
    re.VERBOSE,
)
_PLAIN = re.compile(r"\d+(?:\.\d+)?|\.\d+")
_GROUPED = re.compile(r"((?!0)\d{1,3}([,.'_])\d{3}(?:\2\d{3})*)(?:([.,])(\d+))?")
_BEFORE = re.compile(
    r"""(?:[^\W_](?:[.,]|_\{?)|\d:|\d\s:\s                             # fig.5, x_5, 3:30
    |\d\s?(?:[-+/^×÷·⋅—]|\\(?:times|cdot|div))\s?|[\d)]\*\*?|\d\s\*\s|[)\]}][-+/^]  # 2/3, 2*3
    |[√∛±^≤≥≠]\s?\{?|[\w)]\s?[<>]=?\s?|\}\{|\\(?:sqrt|pm|[lgn]eq?)\s?\{?             # x > 3
    )$""",
    re.VERBOSE,
)
_AFTER = re.compile(
    r"""\s?(?:[\^÷×·⋅√]|\\(?:times|cdot|sqrt|pi|div)|/\s?[\d(]|[-+*/]\s?[xyzn]\b)|\*\w|[xyzabenkπi]\b
    |\s?(?:hundred|thousand|million|billion|trillion)\b|[,;]\s?[-+]?(?:∞|\\?inf)""",
    re.VERBOSE,
)
_OPERAND = re.compile(r"\d\s?$|[)\]}]$")
_ITEM_BEFORE, _ITEM_AFTER = re.compile(r"(?:\d|∞|inf|infty)\s?[,;]\s?$"), re.compile(r"\s?(?:\\right)?\\?[)\]}\[]")
_GROUP_BEFORE, _GROUP = re.compile(r"(?<![\d.,])\d{1,3}\s$"), re.compile(r"\d{3}(?!\d)")


@dataclass(frozen=True, slots=True)
class Number:
    """A number that can be read in one way only."""

    value: Fraction
    unit: str = ""
    """`%`, `‰` or the sign of a currency, but for $."""


def plain(text: str) -> str:
    """The text without regard to case and typesetting: one form of digits, signs and quotes; 10² is 10^2."""
    marked = _SCRIPTS.sub(lambda at: f"^{at[0]}" if at[1] else f"_{at[0]}" if at[2] else "−" if at[0] else " ", text)
    return " ".join(unicodedata.normalize("NFKC", marked).translate(_SIGNS).casefold().split())


def bare(text: str) -> str:
    """The text without punctuation around it; the point, separators and ellipsis of a number are no punctuation."""
    left = text.lstrip(_PUNCTUATION)
    inner, head = left.rstrip(_PUNCTUATION), text[: len(text) - len(left)]
    if inner[:1].isdigit() and head[-1:] in (".", ",") and head[-2:] != "..":
        inner = head[-1] + inner
    return inner + "..." if inner[-1:].isdigit() and left[len(inner) :].startswith("..") else inner


def _spelt(text: str) -> str:
    """The text in the form that `_NUMBER` reads."""
    # A space before it: 1\frac{1}{2} is 1 1/2. With two signs it stays as it is, which nothing reads.
    found = _FRACTION.sub(_fraction, _MARKUP.sub("", _SEPARATORS.sub("'", text)))
    return plain(found)


def _fraction(found: re.Match[str]) -> str:
    sign, over, under = found.groups()
    return found[0] if sign and over.startswith("-") else f"{sign or ' '}{over}/{under}"


def whole_number(text: str) -> Number | None:
    """The number that the text is; None if it is not one, or could be read in several ways."""
    if len(text := text.strip()) > 2 * _LONGEST:
        return None
    found = _NUMBER.fullmatch(bare(_spelt(text)))
    return None if found is None or found["gap"] else _read(found)


def last_number(text: str) -> Number | None:
    """The last number in the text; None without one, and if that one is ambiguous or a part of something else."""
    last = _LAST_DIGIT.search(text)
    if last is None:
        return None
    for start in (max(0, last.start() - _NEAR), 0):
        end = _spelt(_TAG.sub(" ", text[start : last.end() + _NEAR]))
        found = next(iter(deque(_NUMBER.finditer(end), maxlen=1)), None)
        if found is not None and (not start or found.start() > _NEAR / 2 or len(found[0]) > _LONGEST):
            return None if _is_part(found, end) else _read(found)
    return None


def _is_part(found: re.Match[str], text: str) -> bool:
    """Whether a number in a text belongs to something larger: an expression, a range, a list in brackets, a date."""
    before, end = text[max(0, found.start() - _CONTEXT) : found.start()], found.end()
    signed = _OPERAND.search(before) or (found["gap"] and not before.rstrip().endswith(("=", "≈", "(")))
    return bool(
        _BEFORE.search(before)
        or _AFTER.match(text, end)
        or (found["sign"] and signed)
        or (_ITEM_BEFORE.search(before) and _ITEM_AFTER.match(text, end))
        or (_GROUP_BEFORE.search(before) and _GROUP.match(text, found.start("digits")))
        or ("." in found["digits"] and text.startswith("..", end))
    )


def _read(found: re.Match[str]) -> Number | None:
    digits, is_power = _decimal(found["digits"]), found["power"] and not found["times"]
    if digits is None or (is_power and digits != "10") or (found["sign"] and found["inner"]):
        return None
    if is_power:
        digits = "1"
    value = Fraction(f"{digits}e{found['e'] or found['power'] or 0}")
    if under := found["under"]:
        if len(under) > _LONGEST or not int(under):
            return None
        value /= int(under)
        if found["whole"]:  # 1 1/2
            if value >= 1 or len(found["whole"]) > _LONGEST:
                return None
            value += int(found["whole"])
    negative = (found["sign"] or found["inner"] or "+") != "+"
    unit = (found["unit"] or found["money"] or "").replace("$", "")
    return Number(-value if negative else value, "%" if unit.startswith("per") else unit)


def _decimal(written: str) -> str | None:
    """The digits with a decimal point and without separators of groups; None if they can be read in several ways."""
    if len(written) > _LONGEST:
        return None
    if _PLAIN.fullmatch(written):
        return written
    found = _GROUPED.fullmatch(written)
    if found is None or found[2] == found[3]:
        return None
    return f"{re.sub(r'[^0-9]', '', found[1])}.{found[4] or 0}"
