"""The page's files. Scripts are classic ones and need no build; `uPlot` is vendored, see `uPlot.LICENSE`."""

from __future__ import annotations

from collections.abc import Sequence
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
    "token_values.js",
    "tokens.js",
    "siblings.js",
    "trajectory.js",
    "keyboard.js",
    "app.js",
)
"""In the order of loading."""
STYLES = ("uPlot.min.css", "viewer.css")
LICENSE = "uPlot.LICENSE"
SCRIPT, STYLE = "viewer.js", "viewer.css"


def joined(names: Sequence[str]) -> str:
    """The files as one, which a page loads at once."""
    return "\n".join((_HERE / name).read_text() for name in names)


def content() -> dict[str, tuple[str, str]]:
    """Text and media type of each file that a page loads, by name; and uPlot's license."""
    return {
        SCRIPT: (joined(SCRIPTS), "text/javascript"),
        STYLE: (joined(STYLES), "text/css"),
        LICENSE: (joined([LICENSE]), "text/plain"),
    }


PAGE = f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>Traces</title>
<link rel="icon" href="data:,">
<link rel="stylesheet" href="assets/{STYLE}">
<script defer src="assets/{SCRIPT}"></script>
</head>
<body>
<noscript>This page needs JavaScript.</noscript>
</body>
</html>
"""
