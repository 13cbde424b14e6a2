"""Files that appear whole or not at all, whoever else writes them."""

from __future__ import annotations

from pathlib import Path

import pytest

from mcp_rollout.gateway.private_files import replacing


def test_two_writers_of_one_file_do_not_remove_each_others_part(tmp_path: Path) -> None:
    file = tmp_path / "lock.json"
    with replacing(file) as first:
        first.write_text("first")
        with pytest.raises(OSError, match="full"), replacing(file) as second:
            second.write_text("half")
            raise OSError("the disk is full")
    assert file.read_text() == "first" and list(tmp_path.iterdir()) == [file]
