"""Reference pages of the site, made while it is built: every configuration key and every command with its options.

mkdocs calls `on_files` (`hooks` in mkdocs.yml). Keys come from the pydantic models and the docstrings under their
fields, options from the commands themselves, so that neither page can differ from the program.
"""

from __future__ import annotations

import ast
import inspect
import re
import textwrap
from collections.abc import Iterator
from enum import Enum
from importlib import import_module
from itertools import pairwise
from pathlib import Path
from typing import Any, get_args

import typer
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined
from typer.cli import get_docs_for_click

import mcp_rollout
from mcp_rollout.gateway.config.models import GatewayConfig, ServerConfig
from mcp_rollout.gateway.config.tool_selection import ToolSelection
from mcp_rollout.gateway.serve.config import ServeConfig, TokenLimits
from mcp_rollout.rollout.areal.settings import Settings as ArealSettings
from mcp_rollout.rollout.cli.app import COMMANDS
from mcp_rollout.rollout.environment.config import Environment
from mcp_rollout.rollout.environment.sections import LimitsConfig
from mcp_rollout.rollout.training.settings import TrainingSettings
from mcp_rollout.rollout.verl.settings import AdvantagesConfig
from mcp_rollout.rollout.verl.settings import Settings as VerlSettings

API = Path(__file__).with_name("api.md")
SIGNATURES = re.compile(r"(?<=<!-- signatures -->\n\n).*?(?=\n<!-- end -->)", re.DOTALL)
"""The part of api.md that `python docs/reference.py` writes; a test compares it."""

FIRST_TEN = {
    (Environment, "servers"),
    (Environment, "user"),
    (Environment, "reward"),
    (Environment, "tasks"),
    (Environment, "max_sessions"),
    (ServerConfig, "command"),
    (ServerConfig, "url"),
    (ServerConfig, "scope"),
    (ServerConfig, "call_timeout_s"),
    (LimitsConfig, "assistant_turns"),
}
"""The keys that most environments need; marked with a star."""

CONFIGURATION = """# Configuration keys

An environment is a YAML file with the keys of `Environment`; an `mcpServers` file has the keys of `ServerConfig` for
each server. The keys marked ★ are the ones that most environments need. The last sections have the keys of
[training](../train.md) and of `mcp-rollout serve`.
"""
SECTIONS: tuple[tuple[str, type[BaseModel]], ...] = (
    ("Training", TrainingSettings),
    ("Training with verl: actor_rollout_ref.rollout.custom.mcp", VerlSettings),
    ("AdvantagesConfig", AdvantagesConfig),
    ("Training with AReaL: mcp", ArealSettings),
    ("Serving a gateway", ServeConfig),
    ("TokenLimits", TokenLimits),
)
"""Title and model of further sections. A trainer's own section leaves out the keys of `TrainingSettings`."""
COMMAND_LINE = "# Commands\n\nEvery command of `mcp-rollout`, with its arguments and options.\n"


def on_files(files: Files, *, config: MkDocsConfig) -> Files:
    """Add the generated pages."""
    pages = {"reference/configuration.md": configuration_page(), "reference/commands.md": commands_page()}
    for path, text in pages.items():
        files.append(File.generated(config, path, content=text))
    return files


def configuration_page() -> str:
    models = list(dict.fromkeys([Environment, ServerConfig, ToolSelection, *_nested(Environment)]))
    sections = [_section(model) for model in models if model is not GatewayConfig]
    sections += [_section(model, title, shared=_shared(model)) for title, model in SECTIONS]
    return CONFIGURATION + "".join(sections)


def _shared(model: type[BaseModel]) -> frozenset[str]:
    """Keys that another section has already."""
    is_trainers = issubclass(model, TrainingSettings) and model is not TrainingSettings
    return frozenset(TrainingSettings.model_fields) if is_trainers else frozenset()


def _nested(model: type[BaseModel]) -> Iterator[type[BaseModel]]:
    """The models that fields refer to, parents first."""
    for field in model.model_fields.values():
        for found in _models_in(field.annotation):
            yield found
            yield from _nested(found)


def _models_in(annotation: Any) -> Iterator[type[BaseModel]]:
    if inspect.isclass(annotation) and issubclass(annotation, BaseModel):
        yield annotation
    for argument in get_args(annotation):
        yield from _models_in(argument)


def _section(model: type[BaseModel], title: str = "", *, shared: frozenset[str] = frozenset()) -> str:
    about = inspect.getdoc(model) or ""
    docs = {name: text for base in reversed(model.__mro__) for name, text in _field_docs(base).items()}
    rows = "".join(
        f"| {'★ ' if (model, name) in FIRST_TEN else ''}`{name}` | {_type(field)} | {_default(field)} "
        f"| {_cell(docs.get(name) or _meaning(field))} |\n"
        for name, field in model.model_fields.items()
        if name not in shared
    )
    return f"\n## {title or model.__name__}\n\n{about}\n\n| key | type | default | meaning |\n|---|---|---|---|\n{rows}"


def _meaning(field: FieldInfo) -> str:
    """The meaning of a key without a docstring: its type's."""
    for found in (field.annotation, *get_args(field.annotation)):
        if inspect.isclass(found) and issubclass(found, BaseModel):
            return f"See [{found.__name__}](#{found.__name__.lower()})."
        if inspect.isclass(found) and issubclass(found, Enum):
            return " ".join((inspect.getdoc(found) or "").split())
    return ""


def _field_docs(model: type) -> dict[str, str]:
    """The docstring under each field of one class, read from its source."""
    if not issubclass(model, BaseModel) or model is BaseModel:
        return {}
    [definition] = ast.parse(textwrap.dedent(inspect.getsource(model))).body
    assert isinstance(definition, ast.ClassDef)
    return {
        field.target.id: " ".join(text.value.value.split())
        for field, text in pairwise(definition.body)
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name)
        if isinstance(text, ast.Expr) and isinstance(text.value, ast.Constant) and isinstance(text.value.value, str)
    }


def _type(field: FieldInfo) -> str:
    annotation = field.annotation
    if inspect.isclass(annotation) and issubclass(annotation, Enum):
        return " or ".join(f"`{member.value}`" for member in annotation)
    name = annotation.__name__ if inspect.isclass(annotation) and not get_args(annotation) else str(annotation)
    return f"`{_cell(re.sub(r'[a-z_]+[.](?=[A-Za-z_])', '', name))}`"


def _default(field: FieldInfo) -> str:
    if field.default is PydanticUndefined:
        return "required" if field.default_factory is None else ""
    default: Any = field.default
    if isinstance(default, BaseModel) or default is None or not (default or isinstance(default, bool)):
        return ""
    return f"`{str(default).lower() if isinstance(default, bool) else default}`"


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def commands_page() -> str:
    sections = [COMMAND_LINE]
    for name in COMMANDS:
        command = typer.main.get_command(import_module(f"mcp_rollout.rollout.cli.{name.replace('-', '_')}").app)
        context = typer.Context(command, info_name=name)
        sections.append(get_docs_for_click(obj=command, ctx=context, indent=1, name=f"mcp-rollout {name}"))
    return "\n".join(sections)


def signatures() -> str:
    """Every public name of `mcp_rollout` as its source declares it: arguments, fields, methods, and a line on each."""
    return "\n\n".join(
        _declared(name, getattr(mcp_rollout, name)) for name in sorted(mcp_rollout.__all__, key=str.lower)
    )


def _declared(name: str, found: Any) -> str:
    node = ast.parse(textwrap.dedent(inspect.getsource(found))).body[0]
    assert isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
    if isinstance(node, ast.ClassDef):
        bases = ", ".join(ast.unparse(base) for base in node.bases if ast.unparse(base) != "BaseModel")
        lines = [f"class {name}({bases}):" if bases else f"class {name}:"]
        # The keys of configuration files have a page of their own.
        is_file = isinstance(found, type) and issubclass(found, GatewayConfig | ServerConfig)
        lines += [f"    {line}" for each in node.body for line in _member(each, with_fields=not is_file)]
        lines += ["    # fields: the keys of its file, see Configuration"] if is_file else []
    else:
        lines = [_function(node)]
    summary = (ast.get_docstring(node) or "").split("\n\n")[0].replace("\n", " ")
    return "\n".join([f"### {name}", "", summary, "", "```text", *lines, "```"])


def _member(node: ast.stmt, *, with_fields: bool) -> Iterator[str]:
    if isinstance(node, ast.AnnAssign) and with_fields and not ast.unparse(node.target).startswith("_"):
        if not ast.unparse(node.annotation).startswith(("ClassVar", "Annotated[list[int], Field(exclude")):
            yield ast.unparse(ast.AnnAssign(node.target, node.annotation, None, 1))
    elif isinstance(node, ast.Assign) and ast.unparse(node.targets[0]).isupper():
        yield ast.unparse(node)
    elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and (node.name == "__init__" or node.name[0] != "_"):
        decorators = [ast.unparse(each) for each in node.decorator_list]
        if not any("validator" in each or "serializer" in each for each in decorators):
            kind = next((f"@{each} " for each in ("property", "classmethod", "staticmethod") if each in decorators), "")
            yield kind + _function(node)


def _function(node: ast.stmt) -> str:
    assert isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    kind = "async def" if isinstance(node, ast.AsyncFunctionDef) else "def"
    returned = f" -> {ast.unparse(node.returns)}" if node.returns is not None else ""
    return f"{kind} {node.name}({ast.unparse(node.args)}){returned}"


if __name__ == "__main__":
    written = signatures()
    API.write_text(SIGNATURES.sub(lambda _: written, API.read_text()))
