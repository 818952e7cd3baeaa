"""Known sets of maths answers: rewritten ones pass, wrong ones do not. Some problems of each; all with -m slow."""

import pytest

from bench.math500 import gsm8k
from bench.maths_rewritings import RIGHT, WRONG, Row, boxed
from oapl_core.verdicts.answers import answer_rules
from oapl_core.verdicts.workers.maths_pool import MathsPool
from tests.reference_sets import math500

CONVERSIONS = {"0.15", "4.5", ".35625"}
"""Answers to "write this fraction as a decimal": a rule by form does not see that the fraction is the question."""

MISREAD = {"12"}
r"""Formulas that the parser reads otherwise: `\cos^2 10^\circ` below a fraction (docs/maths.md)."""


def passes(pool: MathsPool, row: Row, response: str) -> bool:
    answer = answer_rules.maths(response)
    return answer is not None and pool.equal(row["answer"], answer, row["problem"])


@pytest.mark.parametrize("step", [10, pytest.param(1, marks=pytest.mark.slow)])
def test_math500_rewritten_rightly_passes(pool: MathsPool, step: int) -> None:
    cases = [(way.name, row, way.response(row)) for way in RIGHT for row in math500()[::step]]
    assert not [(name, row["answer"]) for name, row, text in cases if text and not passes(pool, row, text)]


@pytest.mark.parametrize("step", [10, pytest.param(1, marks=pytest.mark.slow)])
def test_math500_rewritten_wrongly_does_not(pool: MathsPool, step: int) -> None:
    cases = [(way.name, row, way.response(row)) for way in WRONG for row in math500()[::step]]
    found = [(name, row, text) for name, row, text in cases if text and passes(pool, row, text)]
    own = {boxed(row["answer"]) for row in math500()}
    odd = [(name, row["answer"]) for name, row, text in found if (text or "").replace("dfrac", "frac") not in own]
    known = [("echo", CONVERSIONS), ("echo: a long formula", MISREAD)]
    assert not [(name, gold) for name, gold in odd if not any(name.startswith(a) and gold in b for a, b in known)]


@pytest.mark.parametrize("step", [10, pytest.param(1, marks=pytest.mark.slow)])
def test_every_answer_of_gsm8k_passes_and_the_next_number_does_not(pool: MathsPool, step: int) -> None:
    rows = gsm8k()[::step]
    assert len(rows) > 8000 / step
    assert not [row for row in rows if not passes(pool, row, f"\\boxed{{\\${int(row['answer']):,}}}")]
    assert not [row for row in rows[::10] if passes(pool, row, f"\\boxed{{{int(row['answer']) + 1}}}")]
