"""What must not be read in a log, a trace or an error: found in a server's entry, taken out of every text it sends."""

from __future__ import annotations

import base64
import re
from collections.abc import Iterator, Mapping
from typing import Any, cast
from urllib.parse import parse_qsl, unquote, urlsplit

from gateway.config.models import ServerConfig

SHOWN = "[secret]"
_SHORTEST = 6
"""Shorter values stand in too many innocent texts."""
_WORDS = frozenset(
    "key apikey token secret secrets password passwd passphrase pwd pass credential credentials auth authorization "
    "cookie bearer pat dsn".split()
)
_ENDINGS = ("password", "passwd", "passphrase", "token", "secret", "apikey", "credential", "credentials")
"""Of a word that says so although others run into it, as in PGPASSWORD."""
_SPLIT = re.compile(r"[^A-Za-z0-9]+|(?<=[a-z0-9])(?=[A-Z])")
_USERINFO = re.compile(r"\w://(?:[^/\s:@]*:([^/\s@]+)|([^/\s:@]{16,}))@")
"""A password in a url, or a user as long as only a token is."""
_PAIR = re.compile(r"([A-Za-z_][\w.-]*)\s*[=:]\s*(\S.*)", re.DOTALL)
"""`NAME=value` and `Name: value`, as options take variables and headers."""
_SCHEME = re.compile(r"(?:Bearer|Basic|Token)\s+(.+)", re.IGNORECASE)


class Secrets:
    """The secret values of one server.

    A value is secret by where it stands: under a name that says so (`API_KEY`, `Authorization`, `--token`), as a
    password in a url, or among client credentials. Values of fewer than 6 characters are not looked for.
    """

    def __init__(self, config: ServerConfig) -> None:
        self._values: list[str] = []
        for value in _found(config):
            self.add(value)

    def add(self, value: str) -> None:
        if len(value) >= _SHORTEST and value not in self._values:
            self._values.append(value)
            self._values.sort(key=len, reverse=True)

    def clean(self, text: str, *, cut_before: bool = False) -> str:
        """The text with every secret value in it replaced. Clean first, cut then: half a secret is not found.

        Args:
            cut_before: Something stood before the text: what it begins with may be the end of a secret.
        """
        if cut_before:
            text = text[max((_overlap(value, text) for value in self._values), default=0) :]
        for value in self._values:
            if value in text:
                text = text.replace(value, SHOWN)
        return text

    def clean_json(self, value: Any) -> Any:
        """The same for every string inside a JSON value, keys included."""
        if not self._values:
            return value
        if isinstance(value, str):
            return self.clean(value)
        if isinstance(value, Mapping):
            items = cast("Mapping[str, Any]", value).items()
            return {self.clean(name): self.clean_json(inner) for name, inner in items}
        if isinstance(value, list):
            return [self.clean_json(inner) for inner in cast("list[Any]", value)]
        return value

    def __bool__(self) -> bool:
        return bool(self._values)


def _overlap(secret: str, text: str) -> int:
    """How many characters of the text's beginning end the secret."""
    return next((size for size in range(len(secret) - 1, 0, -1) if text.startswith(secret[-size:])), 0)


def _found(config: ServerConfig) -> Iterator[str]:
    for name, value in (*config.env.items(), *config.headers.items()):
        yield from _in_value(value, secret=is_secret_name(name))
    yield from _in_arguments(config.args)
    if config.url is not None:
        split = urlsplit(config.url)
        yield from _in_userinfo(split.username or "", split.password or "")
        for name, value in parse_qsl(split.query):
            yield from _in_value(value, secret=is_secret_name(name))
    for change in config.tools.change.values():
        for name, value in change.fixed.items():
            if isinstance(value, str):
                yield from _in_value(value, secret=is_secret_name(name))
    if config.client_credentials is not None:
        yield config.client_credentials.client_secret.get_secret_value()


def _in_userinfo(user: str, password: str) -> Iterator[str]:
    """As the url spells it, as it reads, and as it travels. A user without a password is a token."""
    yield from (password or user, unquote(password or user))
    if user or password:
        yield base64.b64encode(f"{unquote(user)}:{unquote(password)}".encode()).decode()


def _in_arguments(arguments: tuple[str, ...]) -> Iterator[str]:
    previous = ""
    for argument in arguments:
        option, given, value = argument.partition("=")
        if option.startswith("-") and given:
            yield from _in_value(value, secret=is_secret_name(option))
            yield from _in_pair(value)
        else:
            yield from _in_value(argument, secret=previous.startswith("-") and is_secret_name(previous))
            yield from _in_pair(argument)
        previous = argument


def _in_pair(text: str) -> Iterator[str]:
    if match := _PAIR.fullmatch(text):
        yield from _in_value(match[2], secret=is_secret_name(match[1]))


def _in_value(value: str, *, secret: bool) -> Iterator[str]:
    for password, token in _USERINFO.findall(value):
        yield password or token
    if secret:
        yield value
        if match := _SCHEME.match(value):
            yield match.group(1)


def is_secret_name(name: str) -> bool:
    """Whether a variable, header, option or query key of this name holds a secret."""
    words = [word.lower() for word in _SPLIT.split(name)]
    return any(word in _WORDS or word.endswith(_ENDINGS) for word in words)
