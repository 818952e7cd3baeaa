"""A pool of maths workers, which the tests of a file share."""

from collections.abc import Iterator

import pytest

from oapl_core.verdicts.workers.maths_pool import MathsPool


@pytest.fixture(scope="module")
def pool() -> Iterator[MathsPool]:
    started = MathsPool(workers=1)
    yield started
    started.close()
