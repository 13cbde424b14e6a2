"""Environments of the laboratory, to be changed and written elsewhere."""

from __future__ import annotations

from typing import Any

import yaml

from lab.worlds import WORLDS


def raw_environment(name: str) -> dict[str, Any]:
    """An environment's file, in which paths are whole."""
    text = (WORLDS / f"{name}.yaml").read_text(encoding="utf-8")
    return yaml.safe_load(text.replace("${here}", str(WORLDS)))
