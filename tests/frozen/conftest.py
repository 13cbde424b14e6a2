"""What these tests share."""

from __future__ import annotations

import importlib.util

# Without the verl extra there is nothing here to test.
collect_ignore_glob = [] if importlib.util.find_spec("verl") else ["test_*.py"]
