"""The encodings in which a secret can occur in a text: percent-encoded, base64, JSON string. No I/O."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterator
from urllib.parse import quote, quote_plus

_SHORTEST = 6
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
