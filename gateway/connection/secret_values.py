"""The secret values in a server's entry, found by the names they stand under and by their form."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, cast
from urllib.parse import parse_qsl, unquote, urlsplit

SHORTEST = 6
"""Shorter values occur in too many innocent texts."""
_WORDS = frozenset(
    "key apikey token secret secrets password passwd passphrase pwd pass credential credentials auth authorization "
    "cookie bearer pat dsn sig signature jwt".split()
)
_ENDINGS = ("password", "passwd", "passphrase", "token", "secret", "apikey", "credential", "credentials")
"""Ends of words that mean a secret although other words run into them, as in PGPASSWORD."""
_COLUMNS = frozenset("primary foreign sort partition public".split())
"""Words before `key` that make it the key of a table, or a public one."""
_IN_QUERIES = frozenset(("code",))
"""Names that mean a secret in the query of a URL, and elsewhere do not."""
_SPLIT = re.compile(r"[^A-Za-z0-9]+|(?<=[a-z0-9])(?=[A-Z])")
_USERINFO = re.compile(r"\w://(?:[^/\s:@]*:([^/\s@]+)|([^/\s:@]{16,}))@")
"""A password in a url, or a user as long as only a token is."""
_URL = re.compile(r"https?://[^\s\"'<>]+")
_PAIR = re.compile(r"([A-Za-z_][\w.-]*)\s*[=:]\s*(\S.*)", re.DOTALL)
"""`NAME=value` and `Name: value`, as options take variables and headers."""
_SCHEME = re.compile(r"(Bearer|Basic|Token)\s+(.+)", re.IGNORECASE)
_TOKEN = re.compile(
    r"eyJ[\w-]{8,}\.eyJ[\w-]{8,}\.[\w-]*"
    r"|\b(?:gh[oprsu]_|github_pat_|glpat-|xox[a-z]-|sk-|hf_|npm_|ntn_|pypi-)[\w-]{16,}"
)
"""A JSON Web Token, and tokens that begin as their issuers mark them."""
_OPAQUE = re.compile(
    r"(?=[A-Za-z]*\d)(?=\d*[A-Za-z])[A-Za-z0-9]{16,}|[0-9a-fA-F]{8}-(?:[0-9a-fA-F]{4}-){3}[0-9a-fA-F]{12}"
)
"""Letters and digits mixed as in no word, and UUIDs."""
_PEM = re.compile(r"-----BEGIN [^-]+-----\s*(.+?)\s*-----END", re.DOTALL)


def is_secret_name(name: str, named: Collection[str] = ()) -> bool:
    """Whether a variable, header, option, query key or member of this name holds a secret: by itself, or as named."""
    words = [word.lower() for word in _SPLIT.split(name)]
    found = [word for word in words if word in _WORDS or word.endswith(_ENDINGS)]
    return name.strip(" -") in named or (bool(found) and not (found == ["key"] and _COLUMNS.intersection(words)))


class EntryTexts:
    """The texts of a server's entry that may hold secrets.

    Args:
        values: Variables and headers, by key and name as in `env.API_KEY`.
        named: Names that the entry says are those of secrets.
    """

    def __init__(self, values: Mapping[str, str], args: Sequence[str], url: str | None, named: Collection[str]) -> None:
        self._values, self._args, self._url, self._named = values, args, url, named

    def secrets(self) -> Iterator[str]:
        """The secret values, some twice: whole ones, and the parts of them that are secret alone."""
        for _, value, secret in self._places():
            yield from self._within(value, secret)
        if self._url is not None:
            split = urlsplit(self._url)
            yield from _in_userinfo(split.username or "", split.password or "")

    def unnamed(self) -> list[str]:
        """Places whose value looks like a secret and is not taken for one."""
        known = [value for value in self.secrets() if len(value) >= SHORTEST]
        return [
            place
            for place, value, _ in self._places()
            if _OPAQUE.fullmatch(value) and not any(each in value for each in known)
        ]

    def in_json(self, value: Any, secret: bool = False) -> Iterator[str]:
        """The secrets in a JSON value, which is one as a whole if `secret`."""
        if isinstance(value, Mapping):
            for name, inner in cast("Mapping[str, Any]", value).items():
                yield from self.in_json(inner, is_secret_name(name, self._named))
        elif isinstance(value, list):
            for inner in cast("list[Any]", value):
                yield from self.in_json(inner, secret)
        elif isinstance(value, str):
            yield from self._within(value, secret)
        elif secret and value is not None:
            yield str(value)

    def _places(self) -> Iterator[tuple[str, str, bool]]:
        """Every text: its place, itself, and whether it is secret as a whole."""
        for place, value in self._values.items():
            yield place, value, is_secret_name(place.partition(".")[2], self._named)
        previous = ""
        for number, argument in enumerate(self._args):
            option, given, value = argument.partition("=")
            if not (given and option.startswith("-")):
                option, value = previous if previous.startswith("-") else "", argument
            yield f"args.{number}", value, is_secret_name(option, self._named)
            if match := _PAIR.fullmatch(value):
                yield f"args.{number}", match[2], is_secret_name(match[1], self._named)
            previous = argument
        if self._url is not None:
            yield "url", self._url, False

    def _within(self, text: str, secret: bool) -> Iterator[str]:
        """As `in_json`, for a text. What it calls gets shorter texts, so that it ends."""
        if secret:
            yield text
            if match := _SCHEME.match(text):
                yield match[2]
            yield from self._encoded(match[2] if match else text)
        for password, token in _USERINFO.findall(text):
            yield password or token
        yield from _TOKEN.findall(text)
        yield from _PEM.findall(text)
        for url in _URL.findall(text):
            yield from self._in_url(url)
        if text.lstrip()[:1] in ("{", "["):
            try:
                yield from self.in_json(json.loads(text))
            except (ValueError, RecursionError):
                pass  # it only looks like JSON
        else:
            yield from self._in_pairs(text, secret)

    def _encoded(self, text: str) -> Iterator[str]:
        """What a secret encodes in base64, if that is JSON, or a user with a password."""
        try:
            decoded = base64.b64decode(text, validate=True).decode()
        except ValueError:
            return
        if decoded.lstrip().startswith("{"):
            yield from self._within(decoded, False)
        elif decoded.isprintable() and ":" in decoded:
            yield decoded.partition(":")[2]

    def _in_url(self, url: str) -> Iterator[str]:
        try:
            split = urlsplit(url)
        except ValueError:
            return
        # A webhook's or a hosted server's key is often a part of its path.
        yield from (unquote(part) for part in split.path.split("/") if _OPAQUE.search(part))
        for name, value in parse_qsl(split.query):
            yield from self._within(value, name in _IN_QUERIES or is_secret_name(name, self._named))

    def _in_pairs(self, text: str, secret: bool) -> Iterator[str]:
        """Secrets among `name=value` pairs, as connection strings and cookies have them."""
        pairs = [part.partition("=") for part in (text.split(";") if ";" in text else text.split()) if "=" in part]
        # One pair alone is an option like any other.
        for name, _, value in pairs if len(pairs) > 1 or secret else ():
            inner = value.strip(" '\"")
            of_cookie = secret and _OPAQUE.search(inner) is not None
            yield from self._within(inner, of_cookie or is_secret_name(name, self._named))


def _in_userinfo(user: str, password: str) -> Iterator[str]:
    """As the URL spells it, decoded, and as it travels. A user without a password is a token."""
    yield from (password or user, unquote(password or user))
    if user or password:
        yield base64.b64encode(f"{unquote(user)}:{unquote(password)}".encode()).decode()
