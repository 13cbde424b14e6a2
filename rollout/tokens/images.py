"""Decode the images in messages for verl's processors."""

from __future__ import annotations

import base64
import io
import struct
from collections.abc import Sequence
from typing import Any

from PIL import Image, UnidentifiedImageError

from mcp_rollout.rollout.types import Message

_UNREADABLE = (
    UnidentifiedImageError,
    OSError,
    ValueError,
    SyntaxError,
    EOFError,
    struct.error,
    Image.DecompressionBombError,
)
"""Raised by Pillow for files that are broken, truncated, or made to fill the memory."""

MAX_PIXELS = 4096 * 4096
"""A file of twenty kilobytes can decode to a gigabyte; vision processors scale down to far less than this."""


def read_image(data: bytes) -> Image.Image | None:
    """Decode an image; None for data that is not one, or is too large."""
    try:
        with Image.open(io.BytesIO(data)) as image:
            if image.width * image.height > MAX_PIXELS:
                return None
            return image.convert("RGB")
    except _UNREADABLE:
        return None


def from_data_url(url: str) -> Image.Image:
    """Decode a data URL. Raises ValueError for anything but an image."""
    image = read_image(base64.b64decode(url.partition(",")[2], validate=True))
    if image is None:
        raise ValueError("not an image")
    return image


def image_urls(messages: Sequence[Message]) -> list[str]:
    """The data URLs of all images in messages, in order."""
    return [block["image"] for message in messages for block in _blocks(message) if block.get("type") == "image"]


class DecodedImages:
    """The images of a growing conversation, each decoded once."""

    def __init__(self, messages: Sequence[Message]) -> None:
        self._messages = messages
        self._urls: list[str] = []
        self._decoded: list[Image.Image] = []

    def first(self, count: int) -> list[Image.Image]:
        """The first `count` images: those of a context that holds so many."""
        for place, url in enumerate(image_urls(self._messages)[:count]):
            # A trajectory that begins again has other images at the same places of the same list.
            if self._urls[place : place + 1] != [url]:
                self._urls[place:], self._decoded[place:] = [url], [from_data_url(url)]
        return self._decoded[:count]


def with_images(messages: Sequence[Message]) -> list[Message]:
    """The messages with decoded images in place of data URLs."""
    return [
        message | {"content": [_decoded(block) for block in message["content"]]} if _blocks(message) else message
        for message in messages
    ]


def _blocks(message: Message) -> list[dict[str, Any]]:
    content = message["content"]
    return content if isinstance(content, list) else []


def _decoded(block: dict[str, Any]) -> dict[str, Any]:
    return {**block, "image": from_data_url(block["image"])} if block.get("type") == "image" else block
