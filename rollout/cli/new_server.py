"""`new-server`: a working environment from the template of `mcp_servers`."""

from __future__ import annotations

import keyword
import re
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import anyio
import typer

from mcp_rollout.gateway.errors import ConfigError
from mcp_rollout.rollout.cli.new_directory import new_directory
from mcp_rollout.rollout.cli.options import AsJson, print_result
from mcp_rollout.rollout.environment.config import load_environment
from mcp_rollout.rollout.environment.parquet import write_parquet
from mcp_rollout.rollout.environment.rows import environment_tasks
from mcp_rollout.rollout.environment.startup import opened_environment
from mcp_rollout.rollout.environment.task import SPLITS, Task
from mcp_rollout.rollout.extras import install_command

_NAME = re.compile(r"[a-z][a-z0-9_]{0,39}")
_FILES = {
    "server.py": "server.py",
    "environment.yaml": "{name}.yaml",
    "test_server.py": "test_{name}.py",
    "README.md": "README.md",
}


_HAS_PARQUET = find_spec("pyarrow") is not None

app = typer.Typer(add_completion=False)


@app.command()
def new_server(
    name: Annotated[str, typer.Argument(help="Lower-case letters, digits and _.")],
    out: Annotated[Path, typer.Option(help="Where its directory is made.")] = Path(),
    as_json: AsJson = False,
) -> int:
    """Write a new environment: a working server, its YAML, rows, a test and a README. Nothing is overwritten."""
    _check(name)
    target = out / name
    if target.exists():
        raise ConfigError("is there already", file=target, key="NAME", remedy="choose another name, or another --out")
    with new_directory(target) as made:
        written = [*_write(name, made), *_write_rows(name, made)]
    paths = [str(target / file) for file in written]
    # pytest comes with the development install only.
    has_pytest = find_spec("pytest") is not None
    test = f"pytest {target / f'test_{name}.py'}" if has_pytest else f"mcp-rollout check-env {target / f'{name}.yaml'}"
    following = f"next: {test}; then {target / 'README.md'}"
    if not _HAS_PARQUET:
        following += f"; rows for training need {install_command('parquet')}, then mcp-rollout data"
    text = "\n".join([*paths, following])
    print_result({"name": name, "directory": str(target), "files": paths}, text, as_json=as_json)
    return 0


def _check(name: str) -> None:
    if _NAME.fullmatch(name) and not keyword.iskeyword(name):
        return
    near = re.sub(r"[^a-z0-9]+", "_", name.lower()).strip("_").lstrip("0123456789_")[:40]
    usable = _NAME.fullmatch(near) and not keyword.iskeyword(near)
    remedy = f"for example {near}" if usable else "for example shop"
    form = "a lower-case letter, then lower-case letters, digits, _ (40 at most); no keyword"
    problem = f"{name!r} is not a usable name: {form}"
    raise ConfigError(problem, key="NAME", remedy=remedy)


def _write(name: str, directory: Path) -> list[str]:
    template = files("mcp_rollout.mcp_servers") / "template"
    written: list[str] = []
    for source, pattern in _FILES.items():
        text = (template / source).read_text(encoding="utf-8")
        file = pattern.format(name=name)
        text = text.replace("pytest test_server.py", f"pytest test_{name}.py").replace("NAME", name)
        (directory / file).write_text(text, encoding="utf-8")
        written.append(file)
    return written


def _write_rows(name: str, directory: Path) -> list[str]:
    written: list[str] = []
    if not _HAS_PARQUET:
        return written
    for split, tasks in anyio.run(_tasks, name, directory).items():
        write_parquet(directory / f"{split}.parquet", tasks, split=split, agent="mcp_agent")
        written.append(f"{split}.parquet")
    return written


async def _tasks(name: str, directory: Path) -> dict[str, list[Task]]:
    environment = load_environment(name, directory)
    async with opened_environment(environment) as gateway:
        return {split: await environment_tasks(environment, gateway, split, None) for split in SPLITS}
