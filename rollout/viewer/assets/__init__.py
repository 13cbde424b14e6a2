"""The page's files. Scripts are classic ones and need no build; `uPlot` is vendored, see `uPlot.LICENSE`."""

from __future__ import annotations

from pathlib import Path

_HERE = Path(__file__).parent
SCRIPTS = (
    "uPlot.iife.min.js",
    "text.js",
    "data.js",
    "filters.js",
    "plots.js",
    "overview.js",
    "runs.js",
    "list.js",
    "timeline.js",
    "conversation.js",
    "tokens.js",
    "siblings.js",
    "trajectory.js",
    "keyboard.js",
    "app.js",
)
"""In the order of loading."""
STYLES = ("uPlot.min.css", "viewer.css")
ASSETS = {name: _HERE / name for name in (*SCRIPTS, *STYLES)}
MEDIA_TYPES = {".js": "text/javascript", ".css": "text/css"}

_HEAD = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>Traces</title>
"""
_BODY = """</head>
<body>
<noscript>This page needs JavaScript.</noscript>
</body>
</html>
"""
_LINKS = [f'<link rel="stylesheet" href="assets/{name}">' for name in STYLES]
_LOADED = [f'<script defer src="assets/{name}"></script>' for name in SCRIPTS]
PAGE = _HEAD + "\n".join([*_LINKS, *_LOADED]) + "\n" + _BODY
"""The server's page."""


def exported_page(policy: str, style: str, script: str) -> str:
    """The page of an export, with its style and first script within it.

    Args:
        policy: the Content-Security-Policy, which has the digests of both.
    """
    meta = f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
    return f"{_HEAD.replace('<title>', meta + '<title>')}<style>{style}</style>\n{_BODY}".replace(
        "</body>", f"<script>{script}</script>\n</body>"
    )
