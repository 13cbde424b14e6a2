"""Environments of the laboratory, to be changed and written elsewhere."""

from __future__ import annotations

from typing import Any

import yaml

from lab.worlds import WORLDS


def raw_environment(name: str, **values: str) -> dict[str, Any]:
    """An environment's file, in which paths are whole; with values for its parameters, it has none any more."""
    text = (WORLDS / f"{name}.yaml").read_text(encoding="utf-8").replace("${here}", str(WORLDS))
    for parameter, value in values.items():
        text = text.replace(f"${{parameters.{parameter}}}", value)
    found: dict[str, Any] = yaml.safe_load(text)
    if values:
        del found["parameters"]
    return found
