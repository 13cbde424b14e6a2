"""The environment variables of a server process."""

from __future__ import annotations

import os
from collections.abc import Mapping

INHERITED_ENV = frozenset(
    "PATH HOME USER LOGNAME SHELL TERM LANG LANGUAGE TZ TMPDIR TMP TEMP "
    "VIRTUAL_ENV PYTHONPATH LD_LIBRARY_PATH XDG_CACHE_HOME XDG_CONFIG_HOME XDG_DATA_HOME "
    "SSL_CERT_FILE SSL_CERT_DIR NODE_EXTRA_CA_CERTS "
    "SYSTEMROOT SYSTEMDRIVE COMSPEC PATHEXT WINDIR USERPROFILE APPDATA LOCALAPPDATA PROGRAMFILES".split()
)
"""Variables that a server process inherits, in addition to `LC_*` and its entry's `env`. All others, for example tokens
and proxy addresses with credentials, stay with the trainer."""


def child_env(entry: Mapping[str, str]) -> dict[str, str]:
    """The environment of a server process: the allow-list (see `INHERITED_ENV`) and what its entry names."""
    inherited = {
        name: value
        for name, value in os.environ.items()
        if name.upper() in INHERITED_ENV or name.upper().startswith("LC_")
    }
    return inherited | dict(entry)
