r"""Several inequalities in one answer, and sets and vectors in spellings of their own; docs/maths.md has the rules."""

import pytest

from oapl_core.verdicts.workers.maths_pool import MathsPool
from tests.core.maths.test_equality import pairs

ALIKE = r"""
x<2 \text{ or } x>3 || (-\infty,2)\cup(3,\infty)
x<2 \text{ or } x>3 || x>3 \lor x<2
x<2 \text{ or } x>3 || x<2, x>3
x<2, x>3 || (-\infty,2)\cup(3,\infty)
x<2, x>3 || x > 3 \text{ or } x < 2
(2,3) || x>2 \text{ and } x<3
(2,3) || x>2 \land x<3
(2,3) || x>2, x<3
2<x<3 || x>2 \text{ and } x<3
2<x<3 || x<3 \wedge 2<x
x<2 \text{ or } x>3 || x<2, or x>3
x>2 \text{ and } x<3 || (2,3)
x>2 \text{ and } x<3 || 2<x<3
a<x<b || x>a \text{ and } x<b
x<a \text{ or } x>b || b<x \text{ or } x<a
(-\infty,0)\cup(0,1] || x\le 1, x\ne 0
(-\infty,0)\cup(0,1] || x\le 1 \text{ and } x\ne 0
x\le 1, x\ne 0 || (-\infty,0)\cup(0,1]
x\le 1, x\ne 0 || x\ne 0, x\le 1
\mathbb{R}\setminus\{1,2\} || x\neq 1, x\neq 2
\mathbb{R}\setminus\{1,2\} || x\neq 1 \text{ and } x\neq 2
x\neq 1, x\neq 2 || \mathbb{R}\setminus\{1,2\}
x\neq 1, x\neq 2 || (-\infty,1)\cup(1,2)\cup(2,\infty)
(0,1)\cup(2,3) || 0<x<1 \text{ or } 2<x<3
0<x<1 \text{ or } 2<x<3 || (0,1)\cup(2,3)
(0,1)\cup(2,3) || x>0 \text{ and } x<1 \text{ or } x>2 \text{ and } x<3
(-\infty,1)\cup(2,5)\cup(5,\infty) || x<1, x>2, x\ne 5
(\frac12,3) || x>0.5 \text{ and } x<3
x>0, y>0 || y>0 \text{ and } x>0
x=1 \text{ and } y=2 || y=2, x=1
x<2 \text{ and } x>3 || x<2 \text{ and } x>3
(0,1) || ]0,1[
[0,1) || \left[0,1\right[
]-\infty,0[\cup]1,2] || (-\infty,0)\cup(1,2]
(0,1] || x \in ]0,1]
\begin{pmatrix} 2 \\ 3 \end{pmatrix} || 2\mathbf{i}+3\mathbf{j}
(2,-3,1) || 2\hat{i}-3\hat{j}+\hat{k}
(0,2) || 2\vec{j}
2\hat{i}+3\hat{j} || (2,3)
(2t,3) || 2t\mathbf{i}+3\mathbf{j}
\text{no solution} || \emptyset
\emptyset || \text{No real solutions}
[2,2] || [2, 2]
[\sqrt{2},\sqrt{2}] || [\sqrt2,\sqrt2]
x<-2 \text{ and } x>2 || x>2 \text{ or } x<-2
x > 5 \text{ and } x < 1 || x<1, x>5
"""
APART = r"""
x<2 \text{ or } x>3 || x<2 \text{ and } x>3
x<2 \text{ or } x>3 || x<2,\text{ and } x>3
(-\infty,2)\cup(3,\infty) || x<2 \text{ and } x>3
(-\infty,2)\cup(3,\infty) || x<2 \land x>3
x<2, x>3 || x<2 \text{ and } x>3
x<2 \text{ or } x>3 || (-\infty,2]\cup(3,\infty)
x<2 \text{ or } x>3 || y<2 \text{ or } y>3
(-\infty,2)\cup(3,\infty) || x<2 \text{ or } y>3
x<2 \text{ or } x>3 || (2,3)
(2,3) || x>2 \text{ or } x<3
2<x<3 || x>2 \text{ or } x<3
2<x<3 || y>2 \text{ and } y<3
x>2, x<3 || x>2 \text{ or } x<3
\mathbb{R} || x>2, x<3
x\neq 1, x\neq 2 || x\neq 1 \text{ or } x\neq 2
\mathbb{R}\setminus\{1,2\} || x\neq 1 \text{ or } x\neq 2
\mathbb{R}\setminus\{1,2\} || x\neq 1
(-\infty,0)\cup(0,1] || x\le 1 \text{ or } x\ne 0
(-\infty,0)\cup(0,1] || x<1, x\ne 0
(2,\infty) || x>1, x>2
(1,\infty) || x>1, x>2
a<x<b || x>a \text{ or } x<b
x<a \text{ or } x>b || x<a \text{ and } x>b
\emptyset || x<2 \text{ and } x>3
[2,2] || 2
[2,2] || \{2\}
2 || [2,2]
(0,1) || [0,1[
(0,1) || ]0,1]
[0,1] || ]0,1[
(2,3) || 3\mathbf{i}+2\mathbf{j}
(2,3) || 2i+3
i+j || (1,1)
(2,3) || 2\mathbf{i}+3\mathbf{j}+\mathbf{k}
(2,3) || (2\mathbf{i})(3\mathbf{j})
(2,3,0) || 2i+3j+4m
\text{no real solution} || \text{no solution exists yet}
\emptyset || \text{one solution}
x = 2 || \emptyset
"""


@pytest.mark.parametrize(("gold", "answer"), pairs(ALIKE))
def test_alike(pool: MathsPool, gold: str, answer: str) -> None:
    assert pool.equal(gold, answer)


@pytest.mark.parametrize(("gold", "answer"), pairs(APART))
def test_apart(pool: MathsPool, gold: str, answer: str) -> None:
    assert not pool.equal(gold, answer)


def test_none_broke_a_library_or_ran_out_of_time(pool: MathsPool) -> None:
    assert (pool.broken, pool.too_slow, pool.deaths) == (0, 0, 0)
