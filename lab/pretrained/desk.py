"""The desk of `lab/worlds/desk`: an environment whose server has tasks, a score and experts of its own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from lab.demo.processes import command
from lab.pretrained.settings import EXPERT_ROWS, WarmedUpOn

_DESK = Path(__file__).resolve().parents[1] / "worlds" / "desk"


@dataclass(frozen=True)
class Desk:
    """As `World`."""

    home: Path
    name: str = "desk"

    @property
    def environments(self) -> Path:
        return _DESK

    def prepare(self, held_out: int) -> None:
        if (self.home / "tool_config.yaml").is_file():
            return
        desk, validation = _DESK / "desk.yaml", _DESK / "desk_validation.yaml"
        command("data", desk, "--split", "train", "-o", self.home / "train.parquet")
        for each in (desk, validation):
            command("data", each, "--split", "test", "-n", str(held_out), "-o", self.home / f"{each.stem}.parquet")
        command("tool-config", desk, validation, "-o", self.home / "tool_config.yaml")

    def played(self, environment: str, held_out: int) -> Sequence[object]:
        return _DESK / f"{environment}.yaml", "--split", "test", "-n", held_out

    def expert(self, kind: WarmedUpOn) -> Path:
        played, rows = self.home / f"expert-{kind}", self.home / f"expert-{kind}.jsonl"
        if not rows.is_file():
            more = ("--split", "train", "-n", str(EXPERT_ROWS), "--out", played, "--resume")
            command("run", _DESK / f"desk_{kind}.yaml", "--engine", "expert", *more)
            command("trace", "export", played, "--sft", "-o", rows)
        return rows
