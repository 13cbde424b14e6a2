"""Results of `tools/call`: the short way through their validation and mcp's own come to the same."""

from typing import Any

import pytest
from mcp_types import methods
from mcp_types.version import KNOWN_PROTOCOL_VERSIONS, MODERN_PROTOCOL_VERSIONS

from mcp_rollout.gateway.transport import results
from mcp_rollout.gateway.transport.results import ANSWER, PlainResult, read_answer, read_result

TEXT = {"type": "text", "text": "x"}
IMAGE = {"type": "image", "data": "eA==", "mimeType": "image/png"}
CONTENTS: list[Any] = [
    [],
    [TEXT],
    [TEXT, TEXT],
    [TEXT, IMAGE],
    [{**TEXT, "annotations": {"priority": 1}}],
    [{**TEXT, "annotations": {"priority": "high"}}],
    [{**TEXT, "text": 3}],
    [{"type": "text"}],
    [{"type": "other", "text": "x"}],
    ["x"],
    {"0": TEXT},
    None,
]
MORE: list[dict[str, Any]] = [
    {},
    {"isError": True},
    {"isError": None},
    {"isError": "yes"},
    {"isError": 1},
    {"structuredContent": {"a": [1, {"b": None}]}},
    {"structuredContent": [1]},
    {"structuredContent": None},
    {"_meta": {"mcp-rollout/reward": 0.5}},
    {"_meta": None},
    {"_meta": 3},
    {"resultType": "complete"},
    {"resultType": "complete", "structuredContent": {"a": 1}, "isError": False, "_meta": {"k": "v"}},
    {"resultType": "complete", "structuredContent": [1], "unknown": 1},
    {"resultType": "odd"},
    {"resultType": 3},
    {"ttlMs": -1},
]


def by_mcp(raw: dict[str, Any], version: str) -> Any:
    """As mcp's session reads a raw result, in which null says what absence says, and structured content suffices."""
    raw = {name: value for name, value in raw.items() if value is not None}
    if "structuredContent" in raw:
        raw = {"content": [], **raw}
    try:
        methods.validate_server_result("tools/call", version, raw)
    except KeyError:
        pass
    if version not in MODERN_PROTOCOL_VERSIONS:
        raw = {name: value for name, value in raw.items() if name != "resultType"}
    return ANSWER.validate_python(raw, by_name=False)


def ours(answer: Any) -> Any:
    return read_result(answer, trusted=True, elapsed_s=0.0)


@pytest.mark.parametrize("version", KNOWN_PROTOCOL_VERSIONS)
def test_every_result_is_read_or_refused_as_by_mcp(version: str) -> None:
    plain = 0
    for content in CONTENTS:
        for more in MORE:
            raw = {**more, "content": content}
            try:
                expected = ours(by_mcp(raw, version))
            except ValueError:
                with pytest.raises(ValueError):
                    read_answer(raw, version)
                continue
            found = read_answer(raw, version)
            plain += isinstance(found, PlainResult)
            assert ours(found) == expected, raw
    assert plain  # both ways were taken
    with pytest.raises(ValueError):
        read_answer({"isError": False, "structuredContent": None}, version)


def test_the_short_way_is_for_what_it_knows() -> None:
    assert results.read_answer({"content": [TEXT]}, "2025-11-25") == PlainResult(
        content=ours(by_mcp({"content": [TEXT]}, "2025-11-25")).content,
        structured_content=None,
        is_error=False,
        meta={},
    )
    assert not isinstance(results.read_answer({"content": [IMAGE]}, "2025-11-25"), PlainResult)
