"""One maths worker for the verifiers of a module: each would start its own, whose imports take three seconds."""

from collections.abc import Iterator

import pytest

from oapl_core.verdicts.workers.maths_pool import MathsPool


@pytest.fixture(scope="module")
def lasting_maths() -> Iterator[None]:
    """For tests that are not about the pool: its counters begin where the test before left them."""
    pool = MathsPool(workers=1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("oapl_core.verdicts.answers.kinds.MathsPool", lambda _workers: pool)
        patch.setattr(pool, "close", lambda: None)
        yield
    pool.close()
