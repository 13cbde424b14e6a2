"""The replayed user: repeats the user's messages of a trace or of a recording written by hand."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from mcp_rollout.mcp_servers.kit import Elicited, Reply

ARCHIVE_SUFFIX = ".jsonl.zst"
"""Of trace journals that were compressed since they are large."""


class Recording(BaseModel):
    """One line of a recording file."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    task: str
    seed: int
    opening: str
    replies: tuple[Reply, ...]


class _Read(BaseModel):
    model_config = ConfigDict(extra="ignore")


class _UserTurn(_Read):
    message: str
    done: bool
    reward: float | None = None


class _Turn(_Read):
    begins_at: int
    user: _UserTurn | None = None


class _Task(_Read):
    task: str
    seed: int


class _Trace(_Read):
    """The fields that are read of a trace, a line that `mcp-rollout run` or training wrote."""

    task: _Task
    messages: list[dict[str, Any]]
    turns: list[_Turn]

    def recording(self) -> Recording:
        users = [turn.user for turn in self.turns if turn.user is not None]
        before = self.turns[0].begins_at if self.turns else len(self.messages)
        opening = next((m["content"] for m in reversed(self.messages[:before]) if m["role"] == "user"), "")
        replies = tuple(Reply(message=turn.message, done=turn.done, reward=turn.reward) for turn in users)
        return Recording(task=self.task.task, seed=self.task.seed, opening=str(opening), replies=replies)


class ReplayedUser:
    """A `SimulatedUser` that gives the recorded replies in order, whatever the agent says, and then leaves."""

    def __init__(self, recording: Recording) -> None:
        self._recording = recording
        self._left = iter(recording.replies)

    def opening(self) -> str:
        return self._recording.opening

    def reply(self, message: str) -> Reply:
        return next(self._left, None) or Reply(message="(The recording ends here.)", done=True)

    def elicit(self, question: str) -> Elicited:
        return Elicited(action="decline")


def load_recordings(source: str) -> Callable[[str, int], Recording]:
    """Reads recordings or traces from a `.jsonl` file or a directory of such files and of trace archives.

    Returns:
        A function (task, seed) -> recording, the first one of that task and seed. It raises LookupError if there is
        none.

    Raises:
        ValueError: There is no file, or a line is neither a recording nor a trace; the message names file and line.
    """
    found: dict[tuple[str, int], Recording] = {}
    for recording in _recordings(Path(source)):
        found.setdefault((recording.task, recording.seed), recording)

    def recorded(task: str, seed: int) -> Recording:
        if (task, seed) not in found:
            raise LookupError(f"there is no recording of task {task!r} with seed {seed}")
        return found[task, seed]

    return recorded


def _recordings(source: Path) -> Iterator[Recording]:
    files = sorted([*source.glob("*.jsonl"), *source.glob(f"*{ARCHIVE_SUFFIX}")]) if source.is_dir() else [source]
    if not files:
        raise ValueError(f"{source}: no .jsonl file in it")
    for file in files:
        try:
            # As bytes: `str.splitlines` also cuts at U+2028 and others, which texts in JSON may contain.
            lines = (_unpacked(file) if file.name.endswith(ARCHIVE_SUFFIX) else file.read_bytes()).splitlines()
        except OSError as error:
            raise ValueError(f"{file}: {error.strerror or error}") from error
        for number, line in enumerate(lines, 1):
            yield _recording(line, where=f"{file}:{number}")


def _unpacked(file: Path) -> bytes:
    """The lines of an archive. Raises OSError if the file cannot be read."""
    try:
        import pyarrow  # pyright: ignore  # here, because the import takes half a second
    except ImportError as error:
        raise ValueError(f"{file}: an archive needs pyarrow, which is not installed: pip install pyarrow") from error
    with pyarrow.input_stream(str(file), compression="zstd") as opened:  # pyright: ignore  # pyarrow has no types
        return bytes(opened.read())  # pyright: ignore


def _recording(line: bytes | str, *, where: str) -> Recording:
    problems: list[str] = []
    for model in (Recording, _Trace):
        try:
            read = model.model_validate_json(line)
        except ValidationError as error:
            problems.append(str(error.errors()[0]["msg"]))
            continue
        return read.recording() if isinstance(read, _Trace) else read
    raise ValueError(f"{where}: neither a recording ({problems[0]}) nor a trace ({problems[1]})")
