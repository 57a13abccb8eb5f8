"""Fixtures that several folders of tests share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from streams.embedded import EmbeddedStack


@pytest.fixture(scope="session")
def embedded_stack() -> Iterator[EmbeddedStack]:
    """One stack for all tests: use topics, groups, pools and databases of your own."""
    with EmbeddedStack() as stack:
        yield stack
