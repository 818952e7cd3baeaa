"""Trusted functions that accept any of several correct outputs, named by the column `checker` of a problem.

A checker is ``checker(test_input, expected, printed) -> bool``, of three texts. They are the program's input, the
problem set's expected output, and the text that the program printed. For kind `function` they are arguments, expected
and returned value as JSON. For kind `math` they are an empty text, the gold answer and the answer.

A checker replaces the comparison, runs inside the verifier and sees hostile text. It must be pure and quick, and return
False for text that it cannot read. An exception in it is a verifier error, never a 0. A problem names one of these
functions, or one of its own as ``module:function``, importable where the problems are prepared and where answers are
verified. It is looked up as kind ``checker`` of oapl_core/plugins. A function of one's own needs the mark ``@checker``:
a row may be somebody else's, and would else choose what runs here.
"""

from collections.abc import Callable

Checker = Callable[[str, str, str], bool]


def checker(function: Checker) -> Checker:
    """Mark a function of one's own, so that rows of problem sets may name it."""
    function.is_oapl_checker = True  # type: ignore[attr-defined]
    return function


def unordered_lines(test_input: str, expected: str, printed: str) -> bool:
    """Accept the expected lines in any order; blanks at the ends of lines do not count."""
    return sorted(_lines(printed)) == sorted(_lines(expected))


def unordered_tokens(test_input: str, expected: str, printed: str) -> bool:
    """Accept the expected numbers or words in any order, whatever the line breaks."""
    return sorted(printed.split()) == sorted(expected.split())


def any_line(test_input: str, expected: str, printed: str) -> bool:
    """Accept one of the lines of `expected`, each of which is a correct output, and nothing else."""
    # Without any line the empty output is the one that is expected.
    correct = [line for line in _lines(expected) if line] or [""]
    return printed.strip() in correct


def any_permutation(test_input: str, expected: str, printed: str) -> bool:
    """Accept line by line the expected tokens, each line in an order of its own."""
    return [sorted(line.split()) for line in _lines(printed)] == [sorted(line.split()) for line in _lines(expected)]


def same_text(test_input: str, expected: str, printed: str) -> bool:
    """Accept the expected text but for blanks at its ends; for `math`, where an answer is a word or a board, no
    formula.
    """
    return printed.strip() == expected.strip()


def _lines(text: str) -> list[str]:
    return [line.strip() for line in text.strip().split("\n")]
