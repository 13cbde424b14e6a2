"""Options that record the servers' answers and replay them, for the commands that play trajectories."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from gateway.cassette.reading import Cassette
from gateway.cassette.recording import Recorder
from gateway.cassette.replaying import Missing, Replay

Record = Annotated[Path | None, typer.Option(metavar="FILE", help="Write the servers' answers to a new cassette.")]
ReplayFrom = Annotated[
    Path | None, typer.Option("--replay", metavar="FILE", help="Answer from a cassette, or a directory of some.")
]
ReplayMissing = Annotated[
    Missing, typer.Option(help="What a replay does where the cassette differs: fail, or go on with the servers.")
]


@dataclass(frozen=True, kw_only=True, slots=True)
class Cassettes:
    """What a command records and replays."""

    record: Path | None
    replay: Path | None
    missing: Missing

    @contextmanager
    def opened(self) -> Generator[tuple[Recorder | None, Replay | None]]:
        """The recorder and the replay. Raises ConfigError where a file cannot be written or read."""
        replay = None if self.replay is None else Replay(Cassette.read(self.replay), self.missing)
        recorder = None if self.record is None else Recorder(self.record, key="--record")
        try:
            yield recorder, replay
        finally:
            if recorder is not None:
                recorder.close()
