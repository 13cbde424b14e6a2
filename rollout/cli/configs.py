"""`configs`: copy the included training configuration, to edit it."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Annotated

import typer

from mcp_rollout.gateway.errors import ConfigError
from mcp_rollout.rollout.cli.options import AsJson, print_result
from mcp_rollout.rollout.environment.config import INCLUDED_CONFIGS

_REFERENCE = re.compile(r"((?:--config-dir|--config|-f|:) |`)configs(?=[/ `])")

app = typer.Typer(add_completion=False)


@app.command()
def configs(
    out: Annotated[Path, typer.Argument(metavar="DIR", help="A directory that does not exist yet.")] = Path("configs"),
    as_json: AsJson = False,
) -> int:
    """Copy the included training configuration and environments, to edit them. Nothing is overwritten."""
    if out.exists():
        raise ConfigError("is there already", file=out, key="DIR", remedy="name a new directory")
    try:
        shutil.copytree(INCLUDED_CONFIGS, out)
        # What the files say of each other begins at the working directory, as `out` does.
        for path in out.rglob("*.yaml"):
            text = path.read_text(encoding="utf-8")
            path.write_text(_REFERENCE.sub(lambda found: found[1] + out.as_posix(), text), encoding="utf-8")
    except OSError as error:
        raise ConfigError(
            f"cannot be written: {error}", file=out, key="DIR", remedy="name another directory"
        ) from error
    written = sorted(str(path) for path in out.rglob("*.yaml"))
    print_result({"written": written}, "\n".join(["wrote", *written]), as_json=as_json)
    return 0
