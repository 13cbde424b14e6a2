"""The page as a folder that opens from disk, without a server.

Browsers block modules, `fetch` and byte ranges for files, so the data lies in scripts that register their values. The
first script and the style are within the page; its policy has their digests, and `strict-dynamic` lets that script, and
nothing that a text could bring along, load the others.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from mcp_rollout.gateway.errors import ConfigError
from mcp_rollout.gateway.private_files import make_private, write_private
from mcp_rollout.rollout.trace.entries import Entry
from mcp_rollout.rollout.trace.reader import Traces
from mcp_rollout.rollout.viewer.assets import LICENSE, SCRIPT, STYLE, content, exported_page
from mcp_rollout.rollout.viewer.directory import GROUP
from mcp_rollout.rollout.viewer.explain import explain
from mcp_rollout.rollout.viewer.pages import LISTED, Pages, to_json

CHUNK_BYTES = 2**20
"""Size from which on a data file is complete: a browser loads one for each trajectory that is opened."""
LIST_ROWS = 1000
"""Rows of one file of the list."""
_DATA_FILE = re.compile(r"(summary|(list|t)-\d{5,})\.js")
_START = f"""
window.TRACE_EXPORT = true;
const script = document.createElement("script");
script.src = "assets/{SCRIPT}";
document.head.append(script);
"""


def export_html(traces: Traces, output: Path, *, where: str | None = None, tokenizer: Path | None = None) -> int:
    """Write the page with its data; returns the number of trajectories.

    Args:
        traces: the directory, up to date.
        output: a directory, which is made; an earlier export in it is replaced by a complete one.
        where: an SQL expression over the index's columns; all trajectories by default.
        tokenizer: as for `Pages`.

    Raises:
        OSError: a file cannot be written.
        ConfigError: `where` is not such an expression, a record is gone, or `data` in the directory has other files.
    """
    data = output / "data"
    _check_is_export(data)
    make_private(output)
    # An earlier export stays until this one is complete.
    with TemporaryDirectory(prefix=".data.", dir=output) as beside:
        new = Path(beside, "new")
        make_private(new)
        rows = _write_data(Pages(traces, tokenizer), new, where)
        if data.exists():
            data.rename(Path(beside, "old"))
        new.rename(data)
    make_private(output / "assets")
    for name in (SCRIPT, LICENSE):
        write_private(output / "assets" / name, content()[name][0])
    write_private(output / "index.html", _page())
    return rows


def _check_is_export(data: Path) -> None:
    """Raises ConfigError where a directory that is to be replaced has anything but files of an earlier export."""
    for path in data.iterdir() if data.exists() else ():
        if not _DATA_FILE.fullmatch(path.name):
            problem = f"has {path.name}, which is not of an earlier export"
            raise ConfigError(problem, file=data, key="--html", remedy="choose another directory")


def _write_data(pages: Pages, data: Path, where: str | None) -> int:
    """Write all data files; returns the number of trajectories."""
    rows, files = 0, 0
    listed: list[dict[str, Any]] = []
    for row in _written(pages, data, where):
        listed.append(row)
        rows += 1
        if len(listed) == LIST_ROWS:
            _write(data, f"list-{files:05d}", listed)
            listed, files = [], files + 1
    if listed or not files:
        _write(data, f"list-{files:05d}", listed)
        files += 1
    given = {"where": where} if where else {}
    summary = {
        "state": pages.state(given),
        "runs": pages.series(given),
        "explain": explain(pages, where).record(),
        "list_pages": files,
    }
    _write(data, "summary", summary)
    return rows


def _written(pages: Pages, data: Path, where: str | None) -> Iterator[dict[str, Any]]:
    """Write the trajectories, groups together; yields a row of the list for each."""
    number, size = 0, 0
    chunk = _chunk()
    # The page lists them as the server does: in the order of files and of writing, also among equals.
    order = {entry["id"]: place for place, entry in enumerate(pages.traces.entries(where=where, columns=["id"]))}
    for group in _groups(pages, where):
        siblings = pages.siblings(group[0]["id"])
        chunk["groups"].append(siblings)
        size += len(to_json(siblings))
        runs = pages.runs
        for entry in group:
            identity = entry["id"]
            parts = {"trajectory": pages.trajectory(identity), "tokens": pages.tokens(identity)}
            size += sum(len(to_json(part)) for part in parts.values())
            chunk["trajectories"][identity] = parts | {"siblings": len(chunk["groups"]) - 1}
            listed = {name: entry[name] for name in LISTED}
            yield listed | {"in": runs.name_of(entry["file"]), "chunk": number, "order": order[identity]}
        if size >= CHUNK_BYTES:
            _write(data, f"t-{number:05d}", chunk)
            number, size, chunk = number + 1, 0, _chunk()
    if chunk["groups"]:
        _write(data, f"t-{number:05d}", chunk)


def _chunk() -> dict[str, Any]:
    return {"trajectories": {}, "groups": []}


def _groups(pages: Pages, where: str | None) -> Iterator[list[Entry]]:
    """The entries by group, in the order of steps. Ids are collected first, since reading changes no order."""
    condition = f"WHERE ({where}\n)" if where else ""
    statement = f"""{pages.runs.table} SELECT json_group_array(id) AS ids
        FROM {pages.runs.source} {condition}
        GROUP BY run_number, environment, validate, step, {GROUP} ORDER BY step, environment, min(row)"""
    for row in list(pages.traces.query(statement)):
        yield [pages.entry(identity) for identity in json.loads(row["ids"])]


def _write(data: Path, name: str, value: Any) -> None:
    # JSON in ASCII is a JavaScript expression whatever texts it has.
    write_private(data / f"{name}.js", f"Viewer.register({json.dumps(name)},{to_json(value).decode()});\n")


def _page() -> str:
    style, script = content()[STYLE][0], _START
    policy = "; ".join(
        [
            "default-src 'none'",
            f"script-src '{_digest(script)}' 'strict-dynamic'",
            f"style-src '{_digest(style)}'",
            "base-uri 'none'",
            "form-action 'none'",
        ]
    )
    return exported_page(policy, style, script)


def _digest(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
