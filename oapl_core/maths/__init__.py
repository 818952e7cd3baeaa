r"""Equality of maths answers by meaning: whether ``0.5`` answers a problem whose gold is ``\frac{1}{2}``.

    from oapl_core.maths import MathsJudge
    MathsJudge().judge(r"\frac{1}{2}", "0.5", "Write one half as a decimal.")["equal"]   # True

Reads texts: a gold, an answer (LaTeX or plain, without its box), and the problem's statement where there is one. The
statement tells whether "m" is metres or a variable, and that an answer only repeats the question; without it the
narrower reading holds. docs/maths.md has every rule, with examples.

Returns a dict of true-or-false words:

    equal     they mean the same, and the answer is no echo
    parsed    both could be read; what could not be is unequal
    same      both are the same plain text, read or not: a caller may accept it
    echo      the answer means the same but only repeats a formula of the statement
    error     a library raised, whatever the text was; the pair is unequal

Raises nothing for a text. ImportError without math-verify and sympy, which the first judge imports (a second).
Text is parsed and compared, never executed.

Bounds neither time nor memory: `9^{9^{9}}` would take for ever. A caller that judges untrusted answers does it in a
process that it can end, as ``oapl_core/verdicts/workers/maths_pool.py`` does. The package imports nothing else of
this project.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from oapl_core.maths.judge import MathsJudge

__all__ = ["MathsJudge"]


def __getattr__(name: str) -> Any:
    """Import the judge when it is asked for: who only finds an answer in a response needs one file of the package."""
    if name in __all__:
        return getattr(import_module("oapl_core.maths.judge"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
