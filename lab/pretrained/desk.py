"""The desk: an environment whose server has tasks, a score and experts of its own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from lab.demo.processes import command
from lab.pretrained.settings import EXPERT_ROWS, WarmedUpOn
from lab.worlds import WORLDS

_DESK = WORLDS / "desk.yaml"
_EVALUATED = {"desk": f"{_DESK}:slice=fitting", "desk_validation": f"{_DESK}:slice=validation"}
"""By name, where a model is evaluated."""


@dataclass(frozen=True)
class Desk:
    """As `World`."""

    home: Path
    name: str = "desk"

    @property
    def environments(self) -> Path:
        return WORLDS

    def prepare(self, held_out: int) -> None:
        if (self.home / "tool_config.yaml").is_file():
            return
        command("data", _DESK, "--split", "train", "-o", self.home / "train.parquet")
        for name, desk in _EVALUATED.items():
            command("data", desk, "--split", "test", "-n", str(held_out), "-o", self.home / f"{name}.parquet")
        command("tool-config", *_EVALUATED.values(), "-o", self.home / "tool_config.yaml")

    def played(self, environment: str, held_out: int) -> Sequence[object]:
        return _EVALUATED[environment], "--split", "test", "-n", held_out

    def expert(self, kind: WarmedUpOn) -> Path:
        played, rows = self.home / f"expert-{kind}", self.home / f"expert-{kind}.jsonl"
        if not rows.is_file():
            more = ("--split", "train", "-n", str(EXPERT_ROWS), "--out", played, "--resume")
            command("run", f"{_DESK}:slice={kind}", "--engine", "expert", *more)
            command("trace", "export", played, "--sft", "-o", rows)
        return rows
