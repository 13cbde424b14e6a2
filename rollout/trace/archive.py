# pyright: basic
# pyarrow ships no types.
"""Archived journals: the same lines, compressed in frames of zstd that are read one at a time.

    python -m mcp_rollout.rollout.trace.archive JOURNAL

archives one journal, in a separate process so that the rollout's event loop goes on. The archive appears whole or not
at all, and the journal is removed only after it is on disk: at every moment one of them has the records.

An archive has zstd's seekable format (`contrib/seekable_format` of its repository), so `zstd -dc` prints the journal:
frames of lines, a frame that decoders skip with the entries of the index, and the table of all frames' sizes.
"""

from __future__ import annotations

import json
import os
import struct
import sys
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from itertools import accumulate
from pathlib import Path
from typing import Any

import pyarrow as pa
import structlog

from mcp_rollout.gateway.errors import ConfigError
from mcp_rollout.gateway.private_files import private
from mcp_rollout.rollout.trace.entries import COLUMNS, VERSION, Entry, entry_of
from mcp_rollout.rollout.trace.files import ARCHIVE_END, ARCHIVE_MARK, TornArchive, archive_of
from mcp_rollout.rollout.trace.journal import NotARecord, from_json

log = structlog.get_logger(__name__)

_LEVEL = 12
_FRAME = 16 << 20
"""Bytes of lines that are unpacked to read one. Larger frames are smaller together: records repeat each other."""
_MOST = 1 << 30
"""Bytes of lines that an archive can have: a hostile one of some kilobytes could have any number."""
_ENTRIES, _TABLE = 0x184D2A50, 0x184D2A5E
"""Magic numbers of frames that decoders skip."""
_PAIR, _LENGTH = struct.Struct("<II"), struct.Struct("<I")


def archive(journal: Path) -> Path:
    """Replace a journal by its archive and return that.

    Raises:
        OSError: the archive cannot be written; the journal stays.
        ConfigError: a record is of another version, or the journal is too long; the journal stays.
    """
    if journal.stat().st_size > _MOST:
        raise ConfigError("is longer than an archive can be", file=journal)
    path = archive_of(journal)
    partial = path.with_name(path.name + ".partial")
    codec, sizes = pa.Codec("zstd", _LEVEL), list[tuple[int, int]]()
    # By column, since its values are alike and so smaller together.
    entries: dict[str, list[Any]] = {name: [] for name in ("place", *COLUMNS)}
    with journal.open("rb") as lines, open(partial, "wb", opener=private) as file:
        for content in _frames(lines, entries):
            sizes.append((file.write(codec.compress(content, asbytes=True)), len(content)))
        text = json.dumps({"version": VERSION, **entries}).encode()
        packed = _LENGTH.pack(len(text)) + codec.compress(text, asbytes=True)
        sizes.append((file.write(_PAIR.pack(_ENTRIES, len(packed)) + packed), 0))
        table = b"".join(_PAIR.pack(*each) for each in sizes) + ARCHIVE_END.pack(len(sizes), 0, ARCHIVE_MARK)
        file.write(_PAIR.pack(_TABLE, len(table)) + table)
    # The content before the name, and the name before the journal is removed: a crash at any point leaves one of them
    # whole.
    _synchronise(partial)
    partial.replace(path)
    _synchronise(path.parent)
    journal.unlink()
    return path


def _frames(lines: Iterable[bytes], entries: dict[str, list[Any]]) -> Iterator[bytes]:
    """The content of each frame, whole lines. The records' entries are added to `entries`."""
    content, place = bytearray(), 0
    for line in lines:
        try:
            entry = entry_of(from_json(line, where=str(place)))
        except NotARecord as error:
            log.warning("not a record", problem=str(error))
        else:
            for name, value in {"place": place, **entry}.items():
                entries[name].append(value)
        content += line
        place += len(line)
        if len(content) >= _FRAME:
            yield bytes(content)
            content.clear()
    if content:
        yield bytes(content)


class Archive:
    """Reads an archive; their positions in the journal are the places of its lines. Keeps the last frame unpacked.

    Raises:
        TornArchive: the file is not a whole archive; its methods raise it at a damaged part.
        OSError: the file cannot be read.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        with path.open("rb") as file:
            end = file.seek(0, os.SEEK_END) - ARCHIVE_END.size
            file.seek(max(0, end))
            tail = file.read()
            count, _, mark = ARCHIVE_END.unpack(tail) if end >= 0 else (0, 0, 0)
            begin = end - count * _PAIR.size
            file.seek(max(0, begin))
            sizes = list(_PAIR.iter_unpack(file.read(count * _PAIR.size))) if begin >= 0 else []
        if mark != ARCHIVE_MARK or not sizes or sum(packed for packed, _ in sizes) + _PAIR.size != begin:
            raise TornArchive("is not a whole archive", file=path, remedy="copy it again")
        self._offsets = [0, *accumulate(packed for packed, _ in sizes)]
        self._places = [0, *accumulate(size for _, size in sizes[:-1])]
        if self._places[-1] > _MOST:
            raise TornArchive("unpacks to far more than its size", file=path)
        self._kept = -1, b""

    def lines(self, start: int = 0) -> Iterator[tuple[int, bytes]]:
        """The lines from a place on, each with its place; those behind a damaged part before its error is raised."""
        begin, damage = bisect_right(self._places, start) - 1, None
        for number in range(begin, len(self._places) - 1):
            try:
                first, content = self._places[number], self._content(number)
            except TornArchive as error:
                if start > 0 and number == begin:  # of a record: the next one is another
                    raise
                damage = damage or error
                continue
            place = max(start, first)
            while place < self._places[number + 1]:
                end = first + (content.find(b"\n", place - first) + 1 or len(content))
                yield place, content[place - first : end - first]
                place = end
        if damage is not None:
            raise damage

    def entries(self) -> list[tuple[int, Entry]] | None:
        """The place of each record and its entry, as the archiver made them; None if they are of another version."""
        packed = self._packed(len(self._places) - 1)[_PAIR.size :]
        (length,) = _LENGTH.unpack(packed[: _LENGTH.size].ljust(_LENGTH.size))
        found = self._unpacked(packed[_LENGTH.size :], min(length, _MOST))
        try:
            columns = json.loads(found)
            if columns["version"] != VERSION:
                return None
            rows = zip(*(columns[name] for name in ("place", *COLUMNS)), strict=True)
            return [(place, dict(zip(COLUMNS, values, strict=True))) for place, *values in rows]
        except (ValueError, TypeError, LookupError) as error:
            raise TornArchive(f"has damaged entries: {error}", file=self.path) from error

    def _content(self, number: int) -> bytes:
        if self._kept[0] != number:
            size = self._places[number + 1] - self._places[number]
            self._kept = number, self._unpacked(self._packed(number), size)
        return self._kept[1]

    def _packed(self, number: int) -> bytes:
        with self.path.open("rb") as file:
            file.seek(self._offsets[number])
            return file.read(self._offsets[number + 1] - self._offsets[number])

    def _unpacked(self, packed: bytes, size: int) -> bytes:
        try:
            return pa.Codec("zstd").decompress(packed, decompressed_size=size, asbytes=True)
        except (pa.ArrowException, OSError) as error:
            raise TornArchive(f"has a damaged part: {error}", file=self.path) from error


def _synchronise(path: Path) -> None:
    """Wait until a file, or a directory's entries, are on disk."""
    number = os.open(path, os.O_RDONLY)
    try:
        os.fsync(number)
    finally:
        os.close(number)


def main(journal: str) -> int:
    """Archive one journal; returns the exit status."""
    try:
        archive(Path(journal))
    except (OSError, ConfigError, pa.ArrowException) as error:
        log.warning("journal not archived", journal=journal, problem=str(error))
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
