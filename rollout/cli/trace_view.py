"""`trace view` and `trace explain`: show recorded trajectories as a page, and report unusual ones."""

from __future__ import annotations

import secrets
import webbrowser
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated

import typer
from rich.console import Group, RenderableType
from rich.panel import Panel
from rich.text import Text

from mcp_rollout.gateway.errors import ConfigError
from mcp_rollout.rollout.cli.options import AsJson, TraceDirectory, print_json
from mcp_rollout.rollout.cli.output import Console
from mcp_rollout.rollout.trace.reader import Traces, check_directory
from mcp_rollout.rollout.viewer.directory import Directory
from mcp_rollout.rollout.viewer.explain import Explanation
from mcp_rollout.rollout.viewer.explain import explain as explanation_of
from mcp_rollout.rollout.viewer.finding import Example, ExampleGroup, Finding
from mcp_rollout.rollout.viewer.server import listen, serve

SHORT_ID = 12
TokenizerPath = Annotated[
    Path | None,
    typer.Option(metavar="PATH", help="A model's directory or its tokenizer.json, instead of the recorded one."),
]


def view(
    directory: TraceDirectory,
    port: Annotated[int, typer.Option(help="The port on the loopback interface; 0 takes a free one.")] = 0,
    tokenizer: TokenizerPath = None,
    browser: Annotated[bool, typer.Option("--browser", help="Open the page in a browser.")] = False,
) -> int:
    """Serve a page with runs, conversations, tokens and siblings, to this user only, until interrupted.

    The printed address has a token; requests without it are refused.
    """
    check_directory(directory)
    listening, token = listen(port), secrets.token_urlsafe(24)
    address = f"http://localhost:{listening.getsockname()[1]}/?token={token}"
    typer.echo(f"{directory}: {address} (interrupt to end)")
    with TemporaryDirectory() as home:
        if browser:
            # Every user of this machine can read the arguments of the browser's process, but not this file.
            start = Path(home, "start.html")
            start.write_text(f'<meta http-equiv="refresh" content="0;url={address}">')
            webbrowser.open(start.as_uri())
        try:
            serve(directory, listening, token=token, tokenizer=tokenizer)
        except KeyboardInterrupt:
            typer.echo("")
    return 0


def explain(directory: TraceDirectory, tokenizer: TokenizerPath = None, as_json: AsJson = False) -> int:
    """Report what is unusual: kinds of errors, stuck rewards, groups without spread, failing tools, drift and more.

    Each finding names three trajectories; `trace view` shows the same on its first page. Exit status 1 where something
    was found.
    """
    with Traces(directory) as traces:
        if not traces.count():
            raise ConfigError("has no trajectories", file=directory, remedy="name the directory of a run's traces")
        found = explanation_of(Directory(traces, tokenizer))
    if as_json:
        print_json(found.record())
    else:
        Console().print(_report(found, directory))
    return int(bool(found.findings))


def _report(found: Explanation, directory: Path) -> RenderableType:
    blocks: list[RenderableType] = [_finding(each, directory) for each in found.findings]
    if not blocks:
        blocks.append(Text("Nothing unusual was found."))
    if found.absent:
        blocks.append(Text("\nLooked for and not found:", style="bold"))
        blocks += [Text(f"  {check.title} (reported when {check.threshold})", style="dim") for check in found.absent]
    return Group(*blocks)


def _finding(finding: Finding, directory: Path) -> RenderableType:
    lines = [_text(finding.detail)]
    for group in finding.groups:
        lines += _group(group, directory)
    lines.append(Text(f"Reported when: {finding.threshold}.", style="dim"))
    style = "red" if finding.weight == "problem" else "blue"
    title = finding.title + (f" ({finding.scope})" if finding.scope else "")
    return Panel(Group(*lines), title=Text(title, style="bold"), title_align="left", border_style=style)


def _group(group: ExampleGroup, directory: Path) -> list[Text]:
    total = f", {group.total:,} in all" if group.total > len(group.examples) else ""
    lines = [Text(f"{group.title[:1].upper()}{group.title[1:]}{total}:", style="bold")]
    for example in group.examples:
        lines += _example(example, directory)
    return lines


def _example(example: Example, directory: Path) -> list[Text]:
    reward = "" if example.reward is None else f"  reward {example.reward:.2f}"
    option = " --tokens" if example.tokens else ""
    lines = [
        Text.assemble("  ", (_flat(example.title), "cyan"), reward),
        *([_text(f"    {example.note}")] if example.note else []),
        *([_pushed(example)] if example.tokens else []),
        Text(f"    mcp-rollout trace show {directory} {_flat(example.id[:SHORT_ID])}{option}", style="dim"),
    ]
    return lines


def _pushed(example: Example) -> Text:
    parts: list[tuple[str, str] | str] = ["    pushed down most: "]
    for token in example.tokens:
        text = _flat(token.text).strip() or f"id {token.id}"
        parts += [(text, "bold red"), f" (probability {token.probability:.2f}, advantage {token.advantage:.2f})  "]
    return Text.assemble(*parts)


def _text(text: str) -> Text:
    return Text(_flat(text) if not text.startswith(" ") else "    " + _flat(text))


def _flat(text: str) -> str:
    """A text on one line."""
    return " ".join(text.split())
