"""The certificates that every HTTP client here trusts."""

from __future__ import annotations

import ssl
from functools import cache

import httpx2


@cache
def certificates() -> ssl.SSLContext:
    """Loading them costs some 50 ms and 800 KB; one set serves every client."""
    return httpx2.create_ssl_context()
