"""Generate the published schemas of traces and cassettes.

    python tests/support/published_schemas.py docs/schemas

writes them; a test compares the files with the code.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from pydantic import TypeAdapter

from mcp_rollout.gateway.cassette.lines import json_schema as cassette_schema
from mcp_rollout.rollout.trace.columns import layout
from mcp_rollout.rollout.trace.journal import json_schema
from mcp_rollout.rollout.trace.run_record import RunRecord


def schemas() -> dict[str, str]:
    """The text of each file, by name."""
    return {
        "trace.schema.json": _json(json_schema()),
        "run.schema.json": _json(TypeAdapter(RunRecord).json_schema()),
        "columns.txt": layout(),
        "cassette.schema.json": _json(cassette_schema()),
    }


def _json(schema: object) -> str:
    return json.dumps(schema, indent=1, sort_keys=True, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    for name, text in schemas().items():
        (Path(sys.argv[1]) / name).write_text(text, encoding="utf-8")
