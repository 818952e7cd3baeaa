"""The sandbox under test, started once."""

from collections.abc import Iterator

import pytest

from oapl_core.sandbox.sandbox import Sandbox
from tests import sandboxes


@pytest.fixture(scope="session")
def sandbox() -> Iterator[Sandbox]:
    with sandboxes.sandbox() as started:
        yield started
