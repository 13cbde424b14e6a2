"""Redact a server's secrets: find them in its entry, and replace them in every text that leaves its connection."""

from __future__ import annotations

import base64
import json
import logging
import re
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, TypeVar, cast
from urllib.parse import parse_qsl, quote, quote_plus, unquote, urlsplit

from pydantic_core import to_json

from gateway.config.models import GatewayConfig, ServerConfig
from gateway.errors import GatewayError
from gateway.transport.link import Link
from gateway.types import ToolDefinition, ToolResult

REDACTED = "[secret]"
_SHORTEST = 6
"""Shorter values occur in too many innocent texts."""
_WORDS = frozenset(
    "key apikey token secret secrets password passwd passphrase pwd pass credential credentials auth authorization "
    "cookie bearer pat dsn".split()
)
_ENDINGS = ("password", "passwd", "passphrase", "token", "secret", "apikey", "credential", "credentials")
"""Ends of words that mean a secret although other words run into them, as in PGPASSWORD."""
_SPLIT = re.compile(r"[^A-Za-z0-9]+|(?<=[a-z0-9])(?=[A-Z])")
_USERINFO = re.compile(r"\w://(?:[^/\s:@]*:([^/\s@]+)|([^/\s:@]{16,}))@")
"""A password in a url, or a user as long as only a token is."""
_PAIR = re.compile(r"([A-Za-z_][\w.-]*)\s*[=:]\s*(\S.*)", re.DOTALL)
"""`NAME=value` and `Name: value`, as options take variables and headers."""
_SCHEME = re.compile(r"(?:Bearer|Basic|Token)\s+(.+)", re.IGNORECASE)


class Secrets:
    """The secret values of one server.

    A value is secret by its place: under a name that means one (`API_KEY`, `Authorization`, `--token`), as a password
    in a URL, or among client credentials. It is searched for as it is and as `secret_forms` spells it. Values of fewer
    than 6 characters are not searched for.
    """

    def __init__(self, config: ServerConfig) -> None:
        self.values = set[str]()
        """Empty where there is nothing to redact."""
        self._forms: list[str] = []
        """What is searched for: the values, and how they look in encoded texts; longer ones first."""
        self._in_json: list[str] = []
        """The same as a JSON text has them."""
        for value in _found(config):
            self.add(value)

    def add(self, value: str) -> None:
        if len(value) >= _SHORTEST and value not in self.values:
            self.values.add(value)
            self._forms = sorted({*self._forms, *forms_of(value)}, key=len, reverse=True)
            self._in_json = [json.dumps(form, ensure_ascii=False)[1:-1] for form in self._forms]

    def redact(self, text: str, *, cut_before: bool = False) -> str:
        """The text with every secret value replaced. Redact before cutting a text: half a secret is not found.

        Args:
            cut_before: Whether the text is the end of a longer one, and may begin with the rest of a secret.
        """
        if cut_before:
            text = text[max((_overlap(form, text) for form in self._forms), default=0) :]
        for form in self._forms:
            if form in text:
                text = text.replace(form, REDACTED)
        return text

    def redact_split(self, texts: Sequence[str]) -> list[str]:
        """Texts that are shown one after another, without the two parts of a secret that one ends and the next begins
        with; call `redact` for each of them as well."""
        found = list(texts)
        longest = len(self._forms[0]) - 1 if self._forms else 0
        for index in range(len(found) - 1):
            seam = found[index][-longest:] + found[index + 1][:longest]
            for form in self._forms:
                if form in seam and (size := _split_at(form, found[index], found[index + 1])):
                    found[index] = found[index][:-size] + REDACTED
                    found[index + 1] = found[index + 1][len(form) - size :]
        return found

    def redact_json(self, value: Any) -> Any:
        """The same for every string inside a JSON value, keys included."""
        if not self.values or not self._within(value):
            return value
        if isinstance(value, str):
            return self.redact(value)
        if isinstance(value, Mapping):
            items = cast("Mapping[str, Any]", value).items()
            return {self.redact(name): self.redact_json(inner) for name, inner in items}
        if isinstance(value, list):
            return [self.redact_json(inner) for inner in cast("list[Any]", value)]
        return value

    def _within(self, value: Any) -> bool:
        """Whether a JSON value may contain a secret: a search in its text takes a tenth of the time of a walk."""
        if isinstance(value, str) or not value:
            return True
        try:
            text = to_json(value).decode()
        except ValueError:
            return True
        return any(form in text for form in self._in_json)


Broken = TypeVar("Broken", bound=GatewayError)


class Redactor:
    """Redacts what one connection passes on: errors, results, texts.

    Args:
        tokens: The access tokens issued for the server so far.
    """

    def __init__(self, config: ServerConfig, tokens: Callable[[], Iterable[str]] = tuple) -> None:
        self._secrets = Secrets(config)
        self._tokens = tokens if config.client_credentials is not None else None
        self.needed = bool(self._secrets.values) or self._tokens is not None
        """Whether there are secrets, or may be."""

    def error(self, error: Broken) -> Broken:
        """The same error; where its message contained a secret, without its cause too, which may quote it."""
        message = str(error)
        if (redacted := self.text(message)) != message:
            error.args, error.__cause__, error.__suppress_context__ = (redacted,), None, True
            error.problem = self.text(error.problem)
        return error

    def result(self, result: ToolResult) -> ToolResult:
        """The same result without secrets, which a trace would keep and a policy would learn."""
        secrets = self._current()
        texts = secrets.redact_split([block.text for block in result.content])
        content = tuple(
            replace(
                block,
                text=secrets.redact(text),
                uri=secrets.redact_json(block.uri),
                mime_type=secrets.redact_json(block.mime_type),
            )
            for block, text in zip(result.content, texts, strict=True)
        )
        meta, structured = secrets.redact_json(dict(result.meta)), secrets.redact_json(result.structured)
        return replace(result, content=content, structured=structured, meta=meta)

    def json(self, value: Any) -> Any:
        return self._current().redact_json(value)

    def text(self, text: str, *, cut_before: bool = False) -> str:
        return self._current().redact(text, cut_before=cut_before)

    def leaks(self, tool: ToolDefinition) -> bool:
        """Whether a tool's definition contains a secret. It is shown as sent: with another text it is another tool."""
        held = {"name": tool.name, **tool.pinned}
        return self.json(held) != held

    def _current(self) -> Secrets:
        for token in self._tokens() if self._tokens is not None else ():
            self._secrets.add(token)
        return self._secrets


_MCP_LOGGERS = ("mcp.client.streamable_http", "mcp.client.session")
"""They log text that they cannot read, at levels that are shown by default."""


class _RedactingFilter(logging.Filter):
    def __init__(self, link: Link) -> None:
        super().__init__()
        self._link = link

    def filter(self, record: logging.LogRecord) -> bool:
        record.msg, record.args = self._link.redact(record.getMessage()), ()
        # A traceback quotes what could not be read. The call it belongs to ends in an error of ours, which is redacted.
        record.exc_info = record.exc_text = None
        return True


@contextmanager
def redacted_mcp_logs(link: Link) -> Generator[None]:
    """Within the block mcp's own log lines have no secrets of `link`, and no tracebacks."""
    found, redacting = [logging.getLogger(name) for name in _MCP_LOGGERS], _RedactingFilter(link)
    for logger in found:
        logger.addFilter(redacting)
    try:
        yield
    finally:
        for logger in found:
            logger.removeFilter(redacting)


def _split_at(form: str, before: str, after: str) -> int:
    """How many characters of `form` end one text where the rest of it begins the next; 0 where they do not."""
    sizes = range(min(len(form) - 1, len(before)), 0, -1)
    return next((size for size in sizes if before.endswith(form[:size]) and after.startswith(form[size:])), 0)


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
    """As the URL spells it, decoded, and as it travels. A user without a password is a token."""
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


class CassetteSecrets:
    """The secrets of all servers of a configuration, which no cassette keeps."""

    def __init__(self, config: GatewayConfig) -> None:
        self._secrets = [Secrets(entry) for entry in config.servers.values()]

    def redact(self, value: Any) -> Any:
        """A JSON value without them."""
        for secrets in self._secrets:
            value = secrets.redact_json(value)
        return value


"""Shorter forms occur in too many innocent texts."""
_FOR_HTML = str.maketrans({"<": "\\u003c", ">": "\\u003e", "&": "\\u0026"})
_ESCAPE = re.compile(r"%[0-9A-F]{2}")


def forms_of(secret: str) -> tuple[str, ...]:
    """The secret itself, and the other texts that spell it; longer ones first, since one may contain another."""
    forms = {secret, *_percent_encoded(secret), *_in_json(secret), *_in_base64(secret.encode("utf-8", "replace"))}
    return tuple(sorted((form for form in forms if len(form) >= _SHORTEST), key=len, reverse=True))


def _percent_encoded(secret: str) -> Iterator[str]:
    for form in (quote(secret, safe=""), quote(secret), quote_plus(secret)):
        yield form
        yield _ESCAPE.sub(lambda escape: escape[0].lower(), form)


def _in_json(secret: str) -> Iterator[str]:
    """Within the quotes of a JSON string, as the common writers escape it."""
    for ascii_only in (False, True):
        form = json.dumps(secret, ensure_ascii=ascii_only)[1:-1]
        yield form
        yield form.replace("/", "\\/")
        yield form.translate(_FOR_HTML)


def _in_base64(secret: bytes) -> Iterator[str]:
    """Alone, and within longer data: of that, a secret determines different characters for each place modulo 3."""
    for encode in (base64.b64encode, base64.urlsafe_b64encode):
        yield encode(secret).decode()
        for before in range(3):
            text = encode(b"\0" * before + secret).decode()
            yield text[(before * 8 + 5) // 6 : (before + len(secret)) * 8 // 6]
