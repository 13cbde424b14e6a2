"""The desk at a terminal: shows the oldest open question, reads a line, sends it."""

from __future__ import annotations

import time
from typing import Any, TextIO

import httpx2

LEAVE = "/leave"
_LOOK_EVERY_S = 0.5


def answer_questions(url: str, *, wait_s: float, given: TextIO, shown: TextIO) -> int:
    """Until `given` ends or nobody asks anything for `wait_s` seconds. A line that ends in `/leave` is the last one.

    Returns an exit status: 0, or 1 where the desk is not there.
    """
    with httpx2.Client(base_url=url, timeout=10) as desk:
        asked = time.monotonic()
        try:
            while time.monotonic() - asked < wait_s:
                questions: list[dict[str, Any]] = desk.get("/questions").raise_for_status().json()
                if not questions:
                    time.sleep(_LOOK_EVERY_S)
                    continue
                _show(questions[0], shown)
                line = given.readline()
                if not line:
                    return 0
                text = line.strip()
                body = {"message": text.removesuffix(LEAVE).strip(), "done": text.endswith(LEAVE)}
                sent = desk.post(f"/questions/{questions[0]['id']}", json=body)
                if sent.status_code != 200:
                    shown.write(f"not sent: {sent.json().get('error')}\n")
                asked = time.monotonic()
        except httpx2.HTTPError as error:
            shown.write(f"no desk at {url}: {error}\n")
            return 1
    return 0


def _show(question: dict[str, Any], shown: TextIO) -> None:
    for title, text in question["about"].items():
        shown.write(f"{title}: {text}\n")
    for line in question["said"]:
        shown.write(f"{'you' if line['by'] == 'user' else 'assistant'}> {line['text']}\n")
    shown.write(f"you ({LEAVE} at the end to leave)> ")
    shown.flush()
