"""The secret values in a server's entry, found by the names they stand under and by their form."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Collection, Iterator, Mapping
from typing import Any, Protocol, cast
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
_DEEPEST = 8
"""JSON and URLs within a value."""


class Entry(Protocol):
    """The parts of a server's entry that hold texts, as `ServerConfig` has them."""

    @property
    def env(self) -> Mapping[str, str]: ...

    @property
    def headers(self) -> Mapping[str, str]: ...

    @property
    def args(self) -> tuple[str, ...]: ...

    @property
    def url(self) -> str | None: ...

    @property
    def secrets(self) -> tuple[str, ...] | None: ...


def is_secret_name(name: str) -> bool:
    """Whether a variable, header, option, query key or member of an object of this name holds a secret."""
    words = [word.lower() for word in _SPLIT.split(name)]
    found = [word for word in words if word in _WORDS or word.endswith(_ENDINGS)]
    return bool(found) and not (found == ["key"] and _COLUMNS.intersection(words))


def secret_values(entry: Entry, fixed: Collection[Mapping[str, Any]] = ()) -> Iterator[str]:
    """The secret values of an entry, some twice: whole ones, and the parts of them that are secret alone.

    Args:
        fixed: Arguments that the entry adds to calls.
    """
    finder = _Finder(entry.secrets or ())
    for _, value, secret in _places(entry, finder):
        yield from finder.within(value, secret=secret)
    if entry.url is not None:
        split = urlsplit(entry.url)
        yield from _in_userinfo(split.username or "", split.password or "")
    for arguments in fixed:
        yield from finder.members(arguments)


def unnamed_secrets(entry: Entry) -> list[str]:
    """Places of an entry with a value that looks like a secret and is not taken for one; none if it has `secrets`."""
    if entry.secrets is not None:
        return []
    known = [value for value in secret_values(entry) if len(value) >= SHORTEST]
    return [
        place
        for place, value, _ in _places(entry, _Finder(()))
        if _OPAQUE.fullmatch(value) and not any(each in value for each in known)
    ]


def _places(entry: Entry, finder: _Finder) -> Iterator[tuple[str, str, bool]]:
    """Every text of an entry that may hold secrets: its place, itself, and whether it is secret as a whole."""
    for key, values in (("env", entry.env), ("headers", entry.headers)):
        for name, value in values.items():
            yield f"{key}.{name}", value, finder.is_secret(name)
    previous = ""
    for number, argument in enumerate(entry.args):
        option, given, value = argument.partition("=")
        if option.startswith("-") and given:
            yield f"args.{number}", value, finder.is_secret(option)
        else:
            secret = previous.startswith("-") and finder.is_secret(previous)
            value = argument
            yield f"args.{number}", value, secret
        if match := _PAIR.fullmatch(value):
            yield f"args.{number}", match[2], finder.is_secret(match[1])
        previous = argument
    if entry.url is not None:
        yield "url", entry.url, False


def _in_userinfo(user: str, password: str) -> Iterator[str]:
    """As the URL spells it, decoded, and as it travels. A user without a password is a token."""
    yield from (password or user, unquote(password or user))
    if user or password:
        yield base64.b64encode(f"{unquote(user)}:{unquote(password)}".encode()).decode()


class _Finder:
    """Finds secrets in values: in JSON, connection strings, URLs, cookies and what base64 encodes.

    Args:
        named: Names that the entry says are those of secrets.
    """

    def __init__(self, named: Collection[str]) -> None:
        self._named = frozenset(named)

    def is_secret(self, name: str) -> bool:
        return is_secret_name(name) or name.lstrip("-") in self._named

    def within(self, text: str, *, secret: bool, depth: int = 0) -> Iterator[str]:
        """The secrets in a text, which is one as a whole if `secret`."""
        if depth > _DEEPEST:
            return
        if secret:
            yield text
            if match := _SCHEME.match(text):
                yield match[2]
            yield from self._encoded(match[2] if match else text, depth)
        for password, token in _USERINFO.findall(text):
            yield password or token
        yield from _TOKEN.findall(text)
        yield from _PEM.findall(text)
        for url in _URL.findall(text):
            yield from self._in_url(url, depth)
        if text.lstrip()[:1] in ("{", "["):
            try:
                yield from self.members(json.loads(text), depth=depth + 1)
            except (ValueError, RecursionError):
                pass  # it only looks like JSON
        else:
            yield from self._in_pairs(text, secret, depth)

    def members(self, value: Any, *, secret: bool = False, depth: int = 0) -> Iterator[str]:
        """The secrets in a JSON value."""
        if depth > _DEEPEST:
            return
        if isinstance(value, Mapping):
            for name, inner in cast("Mapping[str, Any]", value).items():
                yield from self.members(inner, secret=self.is_secret(name), depth=depth + 1)
        elif isinstance(value, list):
            for inner in cast("list[Any]", value):
                yield from self.members(inner, secret=secret, depth=depth + 1)
        elif isinstance(value, str):
            yield from self.within(value, secret=secret, depth=depth + 1)
        elif secret and value is not None:
            yield str(value)

    def _encoded(self, text: str, depth: int) -> Iterator[str]:
        """What a secret encodes in base64, if that is a user with a password, or JSON."""
        try:
            decoded = base64.b64decode(text, validate=True).decode()
        except ValueError:
            return
        if decoded.lstrip().startswith("{"):
            yield from self.within(decoded, secret=False, depth=depth + 1)
        elif decoded.isprintable() and ":" in decoded:
            yield decoded.partition(":")[2]

    def _in_url(self, url: str, depth: int) -> Iterator[str]:
        try:
            split = urlsplit(url)
        except ValueError:
            return
        # A webhook's or a hosted server's key is often a part of its path.
        yield from (unquote(part) for part in split.path.split("/") if _OPAQUE.search(part))
        for name, value in parse_qsl(split.query):
            yield from self.within(value, secret=self.is_secret(name) or name in _IN_QUERIES, depth=depth + 1)

    def _in_pairs(self, text: str, secret: bool, depth: int) -> Iterator[str]:
        """Secrets among `name=value` pairs, as connection strings and cookies have them."""
        parts = text.split(";") if ";" in text else text.split()
        pairs = [part.partition("=") for part in parts if "=" in part]
        # One pair alone is an option like any other.
        for name, _, value in pairs if len(pairs) > 1 or secret else ():
            inner = value.strip(" '\"")
            of_cookie = secret and _OPAQUE.search(inner) is not None
            yield from self.within(inner, secret=self.is_secret(name) or of_cookie, depth=depth + 1)
