"""Texts and bytes that were whole once, and what arrives of them: cut, repeated, mixed up, in any pieces."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import strategies as st

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)
"""JSON values, half surrogate pairs left out."""


@st.composite
def mangled(draw: st.DrawFn, wholes: st.SearchStrategy[bytes], parts: Sequence[bytes] = (b"\0", b"\xff")) -> bytes:
    """Bytes with up to four changes; `parts` are what is put in."""
    data = draw(wholes)
    for _ in range(draw(st.integers(0, 4))):
        begin, end = sorted((draw(st.integers(0, len(data))), draw(st.integers(0, len(data)))))
        part = draw(st.sampled_from((b"", data[begin:end] * 2, *parts)) | st.binary(max_size=4))
        data = data[:begin] + part + data[end if draw(st.booleans()) else begin :]
    return data


@st.composite
def cut(draw: st.DrawFn, data: bytes) -> list[bytes]:
    """The same bytes in pieces, or one by one."""
    cuts = sorted(draw(st.sets(st.integers(0, len(data)), max_size=6) | st.just(range(len(data)))))
    return [data[begin:end] for begin, end in zip([0, *cuts], [*cuts, len(data)], strict=True)]
