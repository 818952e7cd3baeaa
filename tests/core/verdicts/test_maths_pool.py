"""Maths answers: equal ones pass, unequal ones do not, and no answer can hang or break the pool."""

import os
import signal
import time
from collections.abc import Iterator

import pytest

from oapl_core.verdicts.maths_pool import MathsPool
from tests import sandboxes


@pytest.fixture(scope="module")
def pool() -> Iterator[MathsPool]:
    started = MathsPool(workers=1, cpu_s=1.0)
    yield started
    started.close()


@pytest.mark.parametrize(
    ("gold", "answer"),
    [
        ("x^2 + 8x + 16", "(x+4)^2"),
        (r"\frac{1}{2}", "0.5"),
        (r"\frac{1}{2}", "1/2"),
        (r"\left( 3, \frac{\pi}{2} \right)", r"(3, \pi/2)"),
        (r"\text{Evelyn}", r"\text{Evelyn}"),
        ("2\\sqrt{3}", "\\sqrt{12}"),
    ],
)
def test_equal(pool: MathsPool, gold: str, answer: str) -> None:
    assert pool.equal(gold, answer)


@pytest.mark.parametrize(
    ("gold", "answer"),
    [
        ("7", "8"),
        ("x^2", "x^3"),
        (r"\frac{1}{2}", "0.51"),
        ("7", r"\text{seven}"),
        ("7", "__import__('os').getcwd()"),
        ("7", "{{{"),
    ],
)
def test_unequal(pool: MathsPool, gold: str, answer: str) -> None:
    assert not pool.equal(gold, answer)


def test_an_explosive_answer_is_wrong_within_its_time_and_counted(pool: MathsPool) -> None:
    before, start = pool.too_slow, time.monotonic()
    assert not pool.equal("3", "9^{9^{9^{9}}}")
    assert time.monotonic() - start < 10
    assert pool.too_slow == before + 1
    assert pool.equal("1/2", "0.5")


def test_a_killed_worker_is_replaced_and_the_answer_judged(pool: MathsPool) -> None:
    assert pool.equal("1/2", "0.5")
    deaths = pool.deaths
    (worker,) = pool.pids
    os.kill(worker, signal.SIGKILL)
    assert pool.equal("1/3", "2/6")
    assert pool.deaths == deaths + 1


def test_closing_leaves_no_process() -> None:
    before = sandboxes.descendants(os.getpid())
    pool = MathsPool(workers=2)
    pool.judge("1", "2")
    pool.close()
    assert sandboxes.descendants(os.getpid()) <= before
