"""Worlds that exist for studies alone, with their environments: `--environments-dir lab/worlds`."""

from pathlib import Path

WORLDS = Path(__file__).resolve().parent
