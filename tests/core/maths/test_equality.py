r"""Maths answers that were once misjudged, and attempts to get around what was mended; docs/maths.md has the rules.

One list for each defect: the reproduction first, then variants of it in both directions.
"""

import pytest

from oapl_core.verdicts.workers.maths_pool import MathsPool


def pairs(text: str) -> list[tuple[str, str]]:
    """One gold || answer on each line."""
    lines = [line.strip().split(" || ") for line in text.strip().splitlines()]
    return [(gold, answer) for gold, answer in lines]


RELATIONS = (
    r"""
    5 || x = 5
    x=5 || 5
    x=5 || 5 = x
    x=5 || 2x = 10
    5 || A = \frac{10}{2} = 5
    5 || \text{Area} = 5
    5 || AB = 5
    5 || f(x) = 5
    y = 2x || 2x - y = 0
    5x - 7y + 11z + 4 = 0 || -5x + 7y - 11z - 4 = 0
    T = e^{t} || e^{t} = T
    r = \frac{1}{1 - c} || r(1 - c) = 1
    1 < x < 3 || 3 > x > 1
    x \ne 3 || 3 \neq x
    (-\infty,3) || x < 3
    (-\infty,3) || 3 > x
    x < 3 || (-\infty, 3)
    (0,1) || 0 < x < 1
    [-2,7] || -2 \le x \le 7
    x \in [-2,7] || [-2,7]
    x \in [-2,7] || -2 \leq x \leq 7
    (-\infty,2)\cup(3,\infty) || x<2 \text{ or } x>3
    (-\infty,3)\cup(3,\infty) || x \ne 3
    v = \begin{pmatrix} 1 \\ 2 \end{pmatrix} t || t\begin{pmatrix} 1 \\ 2 \end{pmatrix} = v
    x=1, y=2 || y=2, x=1
    """,
    r"""
    T = e^{t} || 0=1
    I = 3t || 0=1
    N = n || 0=1
    N = n || x = x
    N = n || n = n
    N = n || N = N
    y = 2x || 0 = 0
    y = 2x || y - y = 2x - 2x
    y = 2x || x^2 = -1
    y = 2x || y^2 + x^2 = -1
    y = 2x || y = y + 1
    y = 2x || y^2 = 4x^2
    y = 2x || (y - 2x)(y - x) = 0
    y = 2x || y = 2x + 1
    \begin{pmatrix} x \\ y \end{pmatrix} = \begin{pmatrix} 1 \\ 2 \end{pmatrix} t || 0 = 1
    x=1, y=2 || 0=1, 0=1
    x=1, y=2 || 0=1, 1=2
    x=5 || y=5
    x=5 || x^2 = 25
    x \in [-2,7] || X \in [-2,7]
    x < 3 || x \le 3
    x < 3 || x > 3
    x < 3 || -x < -3
    x < 3 || 0 < -1
    1 < x < 3 || 1 < x < 4
    (-\infty,3) || x \le 3
    (-3,3) || x^2 < 9
    \emptyset || x < x
    \mathbb{R} || x^2 \ge 0
    5 || x^2 = 5
    5 || 2 + 2 = 5
    5 || 0 = 5
    5 || x = 4 = 5
    5 || x + y = 5
    5 || xy = 5
    """,
)

TYPOGRAPHY = (
    r"""
    5 || 5.
    \text{Evelyn} || \text{Evelyn}.
    3\sqrt{13} || 3\sqrt{13} ;
    1000 || 1 000
    1000 || 1{,}000
    1000 || 1\,000
    10,\!080 || 10080
    -58,500 || -58\,500
    5 || €5
    5 || $5$
    5 || \$5
    5 || 5\ \text{dollars}
    5 || 5 km/h
    \sqrt{2} || √2
    2\sqrt{3} || 2√3
    \sqrt{x+1} || √(x+1)
    \frac{1}{6} || 0.1\overline{6}
    \frac{1}{3} || 0.\bar{3}
    \frac{3}{2} || 1 1/2
    -\frac{3}{2} || -1\frac12
    6 || 2(3)
    6 || (2)(3)
    60 || \binom{5}{2}\binom{4}{2}
    20 || 2\binom{5}{2}
    \frac83 || 2\frac43
    \frac{3x}{2} || 1\frac12 x
    \frac{3}{2} || 1½
    \frac12 || \sin 30^\circ
    \frac12 || \cos(60°)
    30^\circ, 150^\circ || 30, 150
    5 || \underline{5}
    5 || {\bf 5}
    5 || \textbf{5}
    \frac12 || \mathbf{\frac{1}{2}}
    \frac12 || \boldsymbol{\dfrac12}
    5 || \color{red}{5}
    5 || \textcolor{blue}{\mathrm{5}}
    \emptyset || \varnothing
    \emptyset || \{\}
    \mathbb{R} || \mathbb R
    \mathbb{R} || ℝ
    x^2 || x²
    2\times 3 || 2×3
    (-\infty, 0] || (−∞, 0]
    \begin{pmatrix} -1/3 \\ 2/3 \end{pmatrix} || \begin{bmatrix} -\frac13 \\ \frac23 \end{bmatrix}
    \begin{pmatrix} -1/3 \\ 2/3 \end{pmatrix} || (-\frac13, \frac23)^\top
    \begin{pmatrix} -1/3 \\ 2/3 \end{pmatrix} || \left(-\frac13, \frac23\right)
    \begin{pmatrix} 1 \\ 2 \end{pmatrix} || \left[\begin{array}{c} 1 \\ 2 \\ \end{array}\right]
    \begin{pmatrix} 1 \\ 2 \end{pmatrix} || \langle 1, 2 \rangle
    864 \mbox{ inches}^2 || 864 \text{ square inches}
    864 \mbox{ inches}^2 || 864\ \mathrm{in}^2
    \$32,\!348 || 32,348 dollars
    5 \text{ m/s} || 5 meters per second
    5 \text{ m} || 5\,\mathrm{m}
    12 \text{ apples} || 12
    12 || 12 apples
    """,
    r"""
    5 || 5!
    5 || .5.
    1000 || 1,0000
    1000 || 10 00
    1001 || 1 000
    \sqrt{2} || √3
    \sqrt{12} || \sqrt12
    \frac13 || 0.3
    \frac13 || 0.\overline{34}
    \frac13 || 0.333\ldots
    \frac32 || 1 1/3
    5 || 2(3)
    16 || \binom{5}{2}\binom{4}{2}
    \frac12 || \sin 30
    \frac12 || \sin 60^\circ
    5 \text{ km} || 5 \text{ m}
    5 \text{ km} || 5 km/h
    5 \text{ m} || 5\,\mathrm{s}
    5 \text{ cm}^2 || 5 \text{ cm}
    864 \mbox{ inches}^2 || 864 \text{ cubic inches}
    \$5 || £5
    \$5 || 5 cents
    90^\circ || 90 \text{ radians}
    37^\circ\text{C} || 37^\circ\text{F}
    5 || 5 \text{ million}
    5 || 5 \text{ dozen}
    5 || 5 \text{ plus one}
    5 || 5 \text{ and a half}
    5m || 5
    5t || 5
    \mathbb{R} || \mathbb{Z}
    \begin{pmatrix} 1 \\ 2 \end{pmatrix} || (2,1)
    \begin{pmatrix} 1 \\ 2 \end{pmatrix} || (1,2,0)
    \begin{pmatrix} 1 \\ 2 \end{pmatrix} || \{1,2\}
    (1,2) || [1,2]
    (1,2) || (2,1)
    [1,2) || (1,2]
    """,
)

GUESSES = (
    r"""
    3, 5 || 3 \text{ or } 5
    3, 5 || \{5, 3\}
    1 \pm \sqrt{2} || 1 + \sqrt2, 1 - \sqrt2
    \frac12 || \frac12 \text{ or } 0.5
    """,
    r"""
    5 || 5 \text{ (or maybe 6)}
    5 || 5 \text{ or maybe six}
    5 || 5 \text{ or } 6
    5 || 5 \lor 6
    5 || 5 (6)
    5 || 5 \; 6
    5 || 5/6
    5 || 5 \text{ [6]}
    4 || 3, 4
    4 || \{3, 4\}
    4 || (3, 4)
    4 || [3, 4]
    4 || 4 \pm 1
    4 || 3 < x < 5
    4 || x \in \{3, 4\}
    4 || x = 3, x = 4
    4 || 3 \cup 4
    4 || \begin{pmatrix} 3 \\ 4 \end{pmatrix}
    """,
)

TOLERANCE = (
    r"""
    2^{-98} || \frac{1}{2^{98}}
    10^{-20} || \frac{1}{10^{20}}
    .0000672 || 6.72 \times 10^{-5}
    0.15 || \frac{3}{20}
    \frac13 || 0.333333
    \frac23 || .666667
    \pi || 3.141593
    \frac{20000}{\pi} || 6366.197724
    \sqrt{2}\cdot\sqrt{3} || \sqrt{6}
    2^{-98} x || \frac{x}{2^{98}}
    0 || \sqrt{2}^2 - 2
    6 - 5i || -5i + 6
    \frac{1+i}{2} || \frac{1}{1-i}
    """,
    r"""
    2^{-99} || 2^{-98}
    10^{-20} || 2 \times 10^{-20}
    10^{-20} || 0
    0 || 10^{-30}
    1 || 1 + 10^{-40}
    \sqrt{2} || \sqrt{2} + 10^{-40}
    2^{-99} x || 2^{-98} x
    (2^{-99}, 1) || (2^{-98}, 1)
    .0000672 || .0000671
    0.15 || 0.1500001
    \frac13 || 0.3333
    \frac13 || \frac{333333}{1000000}
    \frac{1}{3000000} || 0.000000333
    \pi || 3.1416
    \pi || \frac{355}{113}
    10^{20} || 10^{20} + 1
    """,
)

LETTERS = (
    r"""
    101_3 || 101_{3}
    101_3 || 101_{\text{three}}
    101_3 || 101
    \text{east} || east
    \text{east} || \text{East}
    \text{Yes} || yes
    YES || Yes
    \text{(C)} || C
    \text{(C)} || \mathrm{(C)}
    \text{(C)} || \textbf{C}
    ABC || \text{ABC}
    xy || y \cdot x
    2xy || 2yx
    R^2 || R \cdot R
    f'(x) || f^{\prime}(x)
    x_1 || x_{1}
    \text{no solution} || No solution
    \text{June 20} || June 20
    9:00 \text{ a.m.} || \text{9:00 a.m.}
    \text{(A), (C)} || \text{(A), (C)}
    """,
    r"""
    101_2 || 101_3
    101_2 || 101_3 + 0
    101_2 || 5
    101_2 || 101_{10}
    52 || 52_8
    19 || 19_8
    \text{east} || seat
    \text{east} || \text{eats}
    \text{east} || e \cdot a \cdot s \cdot t
    east || seat
    ABC || CAB
    ABC || abc
    \text{(C)} || (c)
    \text{(C)} || (B)
    \text{(C)} || (B), (C)
    C || c
    x || X
    3R^2 || 3r^2
    2k+2 || 2K+2
    x_1 || x_2
    5 || 5'
    5 || 5''
    5 || 5^{\prime}
    f'(x) || f(x)
    f'(x) || f''(x)
    \text{Yes} || No
    \text{even} || \text{not even}
    \text{June 20} || \text{June 21}
    9:00 \text{ a.m.} || 9:00 \text{ p.m.}
    9:00 \text{ a.m.} || 9:00
    20 || \text{June 20}
    """,
)

ALL = (RELATIONS, TYPOGRAPHY, GUESSES, TOLERANCE, LETTERS)


@pytest.mark.parametrize(("gold", "answer"), [pair for accepted, _ in ALL for pair in pairs(accepted)])
def test_equal(pool: MathsPool, gold: str, answer: str) -> None:
    assert pool.equal(gold, answer)


@pytest.mark.parametrize(("gold", "answer"), [pair for _, rejected in ALL for pair in pairs(rejected)])
def test_unequal(pool: MathsPool, gold: str, answer: str) -> None:
    assert not pool.equal(gold, answer)


def test_no_pair_above_broke_a_library_or_ran_out_of_time(pool: MathsPool) -> None:
    assert (pool.broken, pool.too_slow, pool.deaths) == (0, 0, 0)


STATEMENT = r"Let $f(x) = x^2 + 1$. Compute \[\sum_{k=1}^{3} f(k) + \sqrt{49} \cdot 2^{10} = N.\] Find $N$."


@pytest.mark.parametrize(
    ("statement", "gold", "answer"),
    [
        (r"Compute $\frac{3 \cdot 4!}{2}$.", "36", r"\frac{3 \cdot 4!}{2}"),
        (r"Compute $\frac{3 \cdot 4!}{2}$.", "36", r"\dfrac{3 \times 4!}{2}"),
        (r"Compute $\frac{3 \cdot 4!}{2}$.", "36", r"x = \left(\frac{4! \cdot 3}{2}\right) + 0"),
        (
            r"Compute $\frac{3 \cdot 4!}{2}$.",
            "36",
            r"\frac{6 \cdot 4!}{2^2} \cdot \frac{3 \cdot 4!}{2} \div (3 \cdot 4!) \cdot 2",
        ),
        (r"Simplify $\sqrt{242}$.", r"11\sqrt{2}", r"\sqrt{242}"),
        (r"What is \(\binom{31}{28}\)?", "4495", r"\dbinom{31}{28}"),
        (r"Find $\arcsin \left( -\frac{1}{2} \right).$", r"-\frac{\pi}{6}", r"\arcsin\left(-\frac{1}{2}\right)"),
        (r"What is 17 * 3 + 4?", "55", "17 * 3 + 4"),
        (r"Solve \begin{align*} x &= 2^5 - 3 \end{align*}", "29", "2^5 - 3"),
        (STATEMENT, "7185", r"17 + \sqrt{49} \cdot 2^{10}"),
        (r"Compute $\gcd(8,12)$.", "4", r"\gcd(12,8)"),
        (r"Compute $\operatorname{lcm}(4,6)$.", "12", r"\operatorname{lcm}(6,4)"),
        (r"Find $\begin{vmatrix}3&1\\2&3\end{vmatrix}$.", "7", r"\begin{vmatrix}3&1\\2&3\end{vmatrix}"),
        (r"Find $\begin{vmatrix}3&1\\2&3\end{vmatrix}$.", "7", r"\begin{vmatrix}3&2\\1&3\end{vmatrix}"),
        ("Compute $|3-8|$.", "5", "|8-3|"),
        ("Compute $|3+4i|$.", "5", "|3-4i|"),
        ("Compute $2^{10}+3$.", "1027", "(-2)^{10}+3"),
        (r"Compute $\sum_{k=1}^{10} k^2$.", "385", r"\sum_{n=1}^{10} n^2"),
        (r"Find $\lim_{x \to 0} \frac{\sin x}{x}$.", "1", r"\lim_{t \to 0} \frac{\sin t}{t}"),
        ("Solve: -5 * -6 - 460 =", "-430", "-5 * -6 - 460"),
        ("Compute 2^{10}+3.", "1027", "2^{10}+3"),
        ("Compute 2¹⁰ + 3", "1027", "2^{10}+3"),
    ],
)
def test_repeating_the_question_is_no_answer(pool: MathsPool, statement: str, gold: str, answer: str) -> None:
    assert pool.equal(gold, answer)
    assert not pool.equal(gold, answer, statement)


@pytest.mark.parametrize(
    ("statement", "gold", "answer"),
    [
        (r"Which is larger, $\sqrt{53}$ or $\sqrt{52}$?", r"\sqrt{53}", "√53"),
        (r"A coin shows heads with probability $1/2$. And tails?", r"\frac{1}{2}", "1/2"),
        (r"A coin shows heads with probability $1/2$. And tails?", "0.5", "1/2"),
        (r"If $x = 5$, what is $x$?", "5", "x = 5"),
        (r"Expand $(x+4)^2$.", "x^2 + 8x + 16", "x^2 + 16 + 8x"),
        (r"Expand $x(x^2 + 1)$.", "x^3 + x", "x^3 + x^2 \\cdot \\frac{1}{x}"),
        (r"Add $2$ and $3$.", "5", "2 + 3"),
        (r"Solve $\frac{x}{2} + \frac{x}{3} = 5$.", "6", r"\frac{2(6)}{2}"),
        (STATEMENT, "7185", "7000 + 185"),
        (STATEMENT, "7185", "N = 7185"),
        (r"Compute $\binom{8}{3}$.", "56", "7 \\cdot 8"),
        ("Let $a = x + y$ and $b = 2x$. Find $a$ for $y = x$.", "2x", "x + x"),
        ("Is it 5-3, or -5?", "-5", "-5.0"),
        (r"Find $\sum_{k=1}^{n} k$.", r"\frac{n(n+1)}{2}", r"\frac{n^2+n}{2}"),
        (r"Is $\gcd(8,12)$ odd? Give it.", "4", "2^2"),
    ],
)
def test_other_forms_of_the_answer_are_no_echo(pool: MathsPool, statement: str, gold: str, answer: str) -> None:
    assert pool.equal(gold, answer, statement)


def test_a_statement_does_not_make_a_wrong_answer_right(pool: MathsPool) -> None:
    assert not pool.equal("7185", "7184", STATEMENT)
    assert not pool.equal("5", "6", "$" * 501 + r"\boxed{6} \[ \( $$")


def test_echoes_are_counted(pool: MathsPool) -> None:
    before = pool.echoes
    assert not pool.equal("8", "2^2 + 2^2", "Compute $2^2 + 2^2$.")
    assert pool.echoes == before + 1
