"""The file format of the frozen corpus: JSON values and arrays in one frame of zstd, and how two of them differ."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

_ARRAY = "$array"
_MAGIC = b"frozen corpus 1\n"


def write(path: Path, value: Any) -> None:
    """Write a value of dicts, lists, JSON values and arrays."""
    arrays: list[np.ndarray[Any, Any]] = []
    text = json.dumps(_without(value, arrays), ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    kinds = [[each.dtype.str, list(each.shape)] for each in arrays]
    head = json.dumps([kinds, len(text.encode(errors="surrogatepass"))]).encode()
    blob = b"".join((head, b"\n", text.encode(errors="surrogatepass"), *(each.tobytes() for each in arrays)))
    packed = pa.Codec("zstd", compression_level=22).compress(blob, asbytes=True)
    path.write_bytes(b"".join((_MAGIC, len(blob).to_bytes(8, "little"), packed)))


def read(path: Path) -> Any:
    raw = path.read_bytes()
    assert raw.startswith(_MAGIC), f"{path} is no corpus"
    begin = len(_MAGIC)
    size = int.from_bytes(raw[begin : begin + 8], "little")
    blob = pa.Codec("zstd").decompress(raw[begin + 8 :], decompressed_size=size, asbytes=True)
    end = blob.index(b"\n")
    kinds, length = json.loads(blob[:end])
    text = blob[end + 1 : end + 1 + length].decode(errors="surrogatepass")
    arrays: list[Any] = []
    at = end + 1 + length
    for dtype, shape in kinds:
        count = int(np.prod(shape))
        arrays.append(np.frombuffer(blob, dtype=dtype, count=count, offset=at).reshape(shape))
        at += arrays[-1].nbytes
    return json.loads(text, object_hook=lambda found: arrays[found[_ARRAY]] if _ARRAY in found else found)


def differences(path: str, old: Any, new: Any) -> Iterator[str]:
    """Where two values differ: a path and both values, for an array the first place and how many there are."""
    if isinstance(old, np.ndarray) and isinstance(new, np.ndarray):
        if old.dtype == new.dtype and old.shape == new.shape:
            same = old.view(np.uint8).tobytes() == new.view(np.uint8).tobytes() if old.size else True
            if not same:
                places = np.flatnonzero(old != new)
                at = int(places[0]) if len(places) else 0
                yield f"{path}[{at}]: {old.flat[at]!r} is now {new.flat[at]!r}, {len(places)} of {old.size} differ"
        else:
            shared = min(old.size, new.size)
            at = next((int(at) for at in np.flatnonzero(old.flat[:shared] != new.flat[:shared])), shared)
            yield f"{path}: {_kind(old)} is now {_kind(new)}, the first {at} are the same"
    elif isinstance(old, Mapping) and isinstance(new, Mapping):
        for key in [*old, *(key for key in new if key not in old)]:
            if key not in new:
                yield f"{path}/{key}: is gone"
            elif key not in old:
                yield f"{path}/{key}: is new"
            else:
                yield from differences(f"{path}/{key}", old[key], new[key])
    elif isinstance(old, list) and isinstance(new, list):
        if len(old) != len(new):
            yield f"{path}: {len(old)} elements are now {len(new)}"
        for at, (one, other) in enumerate(zip(old, new, strict=False)):
            yield from differences(f"{path}/{at}", one, other)
    elif isinstance(old, np.ndarray) or isinstance(new, np.ndarray):
        yield f"{path}: {_kind(old)} is now {_kind(new)}"
    elif old != new or isinstance(old, bool) != isinstance(new, bool):
        yield f"{path}: {old!r} is now {new!r}"


def _kind(value: Any) -> str:
    return f"{value.dtype}{list(value.shape)}" if isinstance(value, np.ndarray) else repr(value)


def _without(value: Any, arrays: list[np.ndarray[Any, Any]]) -> Any:
    if isinstance(value, np.ndarray):
        arrays.append(np.ascontiguousarray(value))
        return {_ARRAY: len(arrays) - 1}
    if isinstance(value, Mapping):
        return {key: _without(each, arrays) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_without(each, arrays) for each in value]
    return value
