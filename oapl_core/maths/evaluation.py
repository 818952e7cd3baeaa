"""Parsed maths made ready for comparison: letters and decimals told apart from numbers, and numbers computed."""

from __future__ import annotations

import zlib
from typing import Any

_DIGITS = 30


def clean(expression: Any) -> Any:
    """Make decimals fractions, i the imaginary unit, and letters that sympy reads as numbers letters again."""
    import sympy

    renamed = {
        sympy.I: sympy.Symbol("I", real=True),
        sympy.Symbol("i", real=True): sympy.I,
        sympy.EulerGamma: sympy.Symbol("gamma", real=True),
    }
    changes = {old: new for old, new in renamed.items() if expression.has(old)}
    changes |= {decimal: sympy.Rational(str(decimal)) for decimal in expression.atoms(sympy.Float)}
    return expression.xreplace(changes) if changes else expression


def evaluated(expression: Any, shift: int = 0) -> Any:
    """Compute an expression's number where its symbols have fixed positive values; None if it is none there."""
    import sympy

    # what the parser has computed, a greatest common divisor for one, stands in the last of them
    if expression.has(sympy.Limit, sympy.Derivative, sympy.Integral, sympy.Sum, sympy.Product, sympy.UnevaluatedExpr):
        expression = expression.doit()
    # Positive, so that roots and logarithms are real. A checksum of the name, not hash(): two workers must judge alike.
    values = {
        symbol: sympy.Rational(zlib.crc32(f"{symbol.name}{shift}".encode()) % 9001 + 1000, 3571)
        for symbol in expression.free_symbols
    }
    number = sympy.N(expression.xreplace(values), _DIGITS)
    return number if number.is_number and number.is_finite else None
