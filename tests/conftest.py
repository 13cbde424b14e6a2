"""For every test: asyncio alone, since that is what verl's workers run."""

import pytest


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    return "asyncio"
