# ruff: noqa: RUF001
# Signs that look alike are what this is about.
"""Read a number as people and models write it; docs/write.md has the table of what is one and what is ambiguous.

In a text, a number is what stands alone between words and marks: "2 + 3", "3, 4" and "3-5" are not numbers.
"""

from __future__ import annotations

import re
import unicodedata
from dataclasses import dataclass
from fractions import Fraction

_PUNCTUATION = ".,;:!?\"'`*$ "
_LEFT, _RIGHT = ".,;:!?\"'`$ ([{~#&\\—", ".,;:!?\"'`$ ([{)]}~°/&\\—-"
"""What may stand before and behind a number within a text."""
_LONGEST = 1000
"""Characters of a number, and around the last digit of a text: Python takes quadratic time for those of a number."""
_OPERATOR = "√"
"""Stands for each function, operator and word which makes something else of the number that it touches."""
_SIGNS = str.maketrans("−‐–⁄∕‘’“”٫", "---//''\"\".")
_SCRIPTS = re.compile("([⁰¹²³⁴-⁹⁺⁻]+)|([₀-₉]+)|(?<=\\d)(?=[¼-¾⅐-⅞])|−\\s+(?=[\\d.])")
_DIGIT = re.compile(r"[\d¼-¾⅐-⅞]")
_TYPESET = {
    r"(?<=\d)(?:[\u00a0\u2006-\u200a\u202f٬]|\\,)(?=\d{3}(?!\d))": "'",
    r"\n[>*\s]*": " | ",
    r"(?<![\w)\]}*])\*++(?=\S)|(?<=\S)\*++(?!\.?[\w(+-])": "",  # **bold**
    r"\\!|\\(?=[%$])|\{(?=,\})|(?<=\{,)\}|\^\{?\\circ\}?": "",
    r"\\(?:text|mathrm|textbf|mathbf)\{([^{}]*)\}": r" \1 ",
    r"([-−+]?)\s?\\[dt]?frac\{(-?\d+)\}\{(\d+)\}": r" \1\2/\3",
    r"\\(?:times|cdot)(?![a-z])": "×",
    r"\\(?:[dt]?frac|[dt]?binom|sqrt|pm|[lgn]eq?|div|pi|infty?|log|ln)(?![a-z])": _OPERATOR,
}
_SPOKEN = {
    r"\s?(?<![^\W\d_])per ?cent\b": "%",
    r"\b(?:minus|negative) (?=[\d.])|(?<=[=≈(] )- (?=[\d.])": "-",
    r"(?<=\d) ?x ?(?=\d)": "×",
    r"(?<![^\W\d_])(?:hundred|thousand|million|billion|trillion|inf(?:inity)?)\b": _OPERATOR,
}
_APART = re.compile(
    r"""</?[a-z][\w-]*>|\|\s|\s\||\#{2,}|[-=]+>|[→⇒≈]|(?<![<>!≤≥])=|(?<=\S)[.:!?]\s|[)\]}]\s(?![-+*/^×÷·<>≤≥√])
    |(?:[^\W\d_]{2,}-|(?<![^\W_])[^\W\d_]\w*)\d\w*(?:[.,]\d+)*  # COVID-19, H2O, v1.25
    |(?<![^\W_])[^\W\d_xyzn]{1,3}\^\{?-?\d\}?(?!\d)            # m^2
    |[^\W\d_]{2,}+(?![-+.,_^]*\d)                              # a word, also of 5km
    |(?<![^\W\d_])(?<![-+*/^×÷·<>≤≥√{])(?<![-+*/^×÷·<>≤≥√]\s)  # a letter, but x in 3x and in x > 3
    (?:(?<!\d)[^\W\d_]|[^\W\d_xyzabenkπi])(?![^\W_]|\s?[-+*^×÷·<>≤≥√]|[/.,]\d)""",
    re.VERBOSE,
)
_NUMBER = re.compile(
    r"""(?P<sign>[-+])?(?:(?P<money>[$€£¥₹₩₽])\s?(?P<inner>[-+])?)?
    (?:(?P<whole>\d+)\s(?=\d+\s?/))?(?P<digits>[.,]?\d+(?:[.,'_]\d+)*)
    (?:\s?/\s?(?P<under>\d+)|e(?P<e>[-+]?\d{1,4})|(?:\s?(?P<times>[×*·⋅])\s?10)?(?:\^|\*\*)\{?(?P<power>[-+]?\d{1,4})\}?)?
    (?:\s?(?P<unit>[%‰€£¥₹₩₽]))?""",
    re.VERBOSE,
)
_PLAIN = re.compile(r"\d+(?:\.\d+)?|\.\d+")
_GROUPED = re.compile(r"((?!0)\d{1,3}([,.'_])\d{3}(?:\2\d{3})*)(?:([.,])(\d+))?")


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


def bare(text: str, before: str = _PUNCTUATION, after: str = _PUNCTUATION) -> str:
    """The text without what is around it; the point, separators and ellipsis of a number are no punctuation."""
    left = text.lstrip(before)
    inner, head = left.rstrip(after), text[: len(text) - len(left)]
    if inner[:1].isdigit() and head[-1:] in (".", ",") and head[-2:] != "..":
        inner = head[-1] + inner
    return inner + "..." if inner[-1:].isdigit() and left[len(inner) :].startswith("..") else inner


def whole_number(text: str) -> Number | None:
    """The number that the text is; None if it is not one, or could be read in several ways."""
    text = text.strip()
    return None if len(text) > _LONGEST else _read(bare(_spelt(text)))


def last_number(text: str) -> Number | None:
    """The last number in the text; None without one, and if that one is ambiguous or a part of something else."""
    last = _DIGIT.search(text[::-1])
    if last is None:
        return None
    at = len(text) - last.end()
    start = max(0, at - _LONGEST)
    # What is cut off may touch the number.
    parts = _APART.split(_spelt((_OPERATOR if start else "\n") + text[start : at + _LONGEST]))
    return _read(bare(next((part for part in reversed(parts) if _DIGIT.search(part)), ""), _LEFT, _RIGHT))


def _spelt(text: str) -> str:
    """The text in the form that `_NUMBER` reads."""
    for pattern, meaning in _TYPESET.items():
        text = re.sub(pattern, meaning, text)
    text = plain(text)
    for pattern, meaning in _SPOKEN.items():
        text = re.sub(pattern, meaning, text)
    return text


def _read(text: str) -> Number | None:
    found = _NUMBER.fullmatch(text)
    digits = _decimal(found["digits"]) if found else None
    if found is None or digits is None or (found["sign"] and found["inner"]):
        return None
    if found["power"] and not found["times"]:
        if digits != "10":
            return None
        digits = "1"
    under = int(found["under"] or 1)
    if not under:
        return None
    value = Fraction(f"{digits}e{found['e'] or found['power'] or 0}") / under
    if found["whole"]:  # 1 1/2
        if value >= 1:
            return None
        value += int(found["whole"])
    negative = "-" in (found["sign"], found["inner"])
    return Number(-value if negative else value, (found["unit"] or found["money"] or "").replace("$", ""))


def _decimal(written: str) -> str | None:
    """The digits with a decimal point and without separators of groups; None if they can be read in several ways."""
    if _PLAIN.fullmatch(written):
        return written
    found = _GROUPED.fullmatch(written)
    if found is None or found[2] == found[3]:
        return None
    return f"{re.sub(r'[^0-9]', '', found[1])}.{found[4] or 0}"
