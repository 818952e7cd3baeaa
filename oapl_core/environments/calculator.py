"""A calculator: `calc(expression)`, sums and products of whole numbers and decimals, exactly. Pure.

Numbers and operators are read from Python's own syntax tree and nothing is executed, so it needs no sandbox. The size
of results is bounded.
"""

import ast
import math
import operator
from collections.abc import Callable, Sequence
from decimal import Context, Decimal
from fractions import Fraction

from oapl_core.environments.protocol import ToolError
from oapl_core.environments.tools import ToolEnvironment

_OPERATORS: dict[type[ast.operator], Callable[[Fraction, Fraction], Fraction | int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}
_LONGEST, _MOST_BITS, _DIGITS = 1000, 4096, 12
_FORM = "write numbers, + - * / // % ** and parentheses"


class Calculator(ToolEnvironment):
    """Environment with a single tool, `calc`."""

    def tools(self) -> Sequence[Callable[..., str]]:
        """Offer the calculator as the only tool."""
        return [calc]


def calc(expression: str) -> str:
    """Computes an arithmetic expression exactly.

    Args:
        expression: Numbers, + - * / // % ** and parentheses, for example (17 + 25) * 3.

    Returns:
        The value.
    """
    if len(expression) > _LONGEST:
        raise ToolError(f"the expression has more than {_LONGEST} characters")
    try:
        value = _value(ast.parse(expression.strip(), mode="eval").body)
    except (SyntaxError, ValueError, RecursionError, MemoryError):  # errors of the parser at a strange text
        raise ToolError(f"this is no expression; {_FORM}") from None
    except ZeroDivisionError:
        raise ToolError("division by zero") from None
    if value.denominator == 1:
        return str(value.numerator)
    try:
        rounded = float(value)
    except OverflowError:
        rounded = math.inf
    if 0.0 < abs(rounded) < math.inf:
        return f"{rounded:.{_DIGITS}g}"
    # beyond what a binary number holds: 1 / 2**2000 is not 0
    exact = Context(prec=_DIGITS, Emin=-_MOST_BITS, Emax=_MOST_BITS)
    return f"{exact.divide(Decimal(value.numerator), Decimal(value.denominator)):.{_DIGITS}g}"


def _value(node: ast.expr) -> Fraction:
    match node:
        case ast.Constant(value=int() | float() as number) if not isinstance(number, bool):
            result = Fraction(str(number))  # 0.1 is a tenth here, not the nearest binary number
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            result = -_value(operand)
        case ast.UnaryOp(op=ast.UAdd(), operand=operand):
            result = _value(operand)
        case ast.BinOp(left=left, op=ast.Pow(), right=right):
            result = _power(_value(left), _value(right))
        case ast.BinOp(left=left, op=known, right=right) if type(known) in _OPERATORS:
            result = Fraction(_OPERATORS[type(known)](_value(left), _value(right)))
        case _:
            raise ToolError(f"{type(node).__name__} cannot be computed; {_FORM}")
    if _bits(result) > _MOST_BITS:
        raise ToolError("the value has too many digits")
    return result


def _power(base: Fraction, exponent: Fraction) -> Fraction:
    # before it is computed: 9**9**9 would take the machine's memory
    if exponent.denominator != 1 or abs(exponent) * _bits(base) > _MOST_BITS:
        raise ToolError("the exponent must be a whole number, and not a large one")
    return Fraction(base**exponent.numerator)


def _bits(value: Fraction) -> int:
    return max(value.numerator.bit_length(), value.denominator.bit_length())
