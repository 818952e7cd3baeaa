"""Screening for problems that pay for answers that solve nothing: each with its reasons. Nothing is changed or dropped.

`oapl problems --check` also asks whether an empty, constant or echoing answer passes, or a table of the statement's
samples. These reasons come on top:

    one output     every test expects the same output, so that printing it passes
    mutants        changed copies of a reference solution pass: the tests see no difference (mutation analysis,
                   DeMillo et al. 1978): another operator, comparison or constant; the share `PASSING` of them must pass
    its checker    accepts outputs that no test expects, or raises on text that it cannot read
    wrong forms    maths answers that are wrong by construction, or gold answers of other problems, equal its own

Random choices are hashes of names. A ``Screener`` runs programs and compares answers.
"""

import ast
import copy
import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, Protocol

from oapl_core import plugins
from oapl_core.seeds import derive_seed
from oapl_extras.problem_sets.curation import ProblemVerifier
from oapl_extras.problem_sets.imported import Imported

MUTANTS = 6
"""Tried of a problem."""
PASSING = 0.5
"""Share of mutants that must pass for the tests to be named: some mutants compute the same."""
_EQUAL_FORMS = 2
"""Wrong forms that must equal a gold answer: one may equal it by chance."""
_BATCH = 64
_NONSENSE = ("", "?", "no such thing", "-987654321.5", "[[[", "0 " * 50)
_WRONG = ("({0})+1", "2({0})+3", "-({0})-1", r"\text{{no answer}}", "987654.25", "q_7")
_OTHERS = 4
_OPERATORS: Mapping[type, type] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Add,
    ast.FloorDiv: ast.Mult,
    ast.Mod: ast.FloorDiv,
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.And: ast.Or,
    ast.Or: ast.And,
}


class Screener(ProblemVerifier, Protocol):
    """Verifier that also compares maths answers."""

    def equal(self, pairs: Sequence[tuple[str, str]]) -> list[bool]:
        """Judge whether each (gold answer, answer) counts as correct."""


def screened(problems: Iterable[Imported], screener: Screener, seed: int = 0) -> Iterator[tuple[str, list[str]]]:
    """Yield (problem_id, reasons) of every problem that has any, in order."""
    stream, seen = iter(problems), list[str]()
    while batch := list(islice(stream, _BATCH)):
        reasons = [list[str]() for _ in batch]
        ways = screener.unearned([imported.problem for imported in batch])
        for reason, imported, way in zip(reasons, batch, ways, strict=True):
            reason.extend([f"passed by: {way}"] if way else [])
            reason.extend(_of_tests(imported.problem))
        for reason, text in zip(reasons, _mutants_that_pass(batch, screener, seed), strict=True):
            reason.extend([text] if text else [])
        golds = [str(imported.problem["answer"]) for imported in batch if imported.problem["kind"] == "math"]
        # the latest few hundred of a set of 40,000 are as good as all, and drawing from them costs nothing
        seen = list(dict.fromkeys([*seen, *golds]))[-500:]
        for reason, text in zip(reasons, _equal_forms(batch, seen, screener, seed), strict=True):
            reason.extend([text] if text else [])
        named = (str(imported.problem["problem_id"]) for imported in batch)
        yield from ((name, reason) for name, reason in zip(named, reasons, strict=True) if reason)


def _of_tests(problem: Mapping[str, Any]) -> Iterator[str]:
    tests = problem["tests"] or ()
    is_compared = problem["kind"] in ("stdin", "function")
    if is_compared and not problem["checker"] and len({test["output"].strip() for test in tests}) == 1:
        yield f"one output is right for all of its tests ({len(tests)})"
    if problem["checker"]:
        yield from _of_checker(problem["checker"], tests)


def _of_checker(name: str, tests: Sequence[Mapping[str, str]]) -> Iterator[str]:
    """Call a problem's checker as the verifier does: checkers are trusted code."""
    checker = plugins.resolve("checker", name)
    accepted = set[str]()
    for test in tests[:8]:  # a checker that is sound on eight is called no names for the ninth
        for text in _NONSENSE:
            # nonsense may be what a test expects
            if text.strip() == test["output"].strip():
                continue
            try:
                right = bool(checker(test["input"], test["output"], text))
            except (ValueError, TypeError, IndexError, KeyError, ArithmeticError, AttributeError) as error:
                yield f"its checker raises {type(error).__name__} on text that it cannot read"
                return
            accepted.update([text] if right else [])
    if len(accepted) > 1:
        yield f"its checker accepts anything, for example {max(accepted)!r}"


def _mutants_that_pass(batch: Sequence[Imported], screener: Screener, seed: int) -> list[str | None]:
    asked = [(number, source) for number, imported in enumerate(batch) for source in _mutants(imported, seed)]
    words = screener.programs([batch[number].problem for number, _ in asked], [source for _, source in asked])
    tried, passed = [0] * len(batch), [0] * len(batch)
    for (number, _), word in zip(asked, words, strict=True):
        tried[number] += 1
        passed[number] += word == "passes"
    return [
        f"{good} of {count} changed copies of its solution pass" if count and good >= PASSING * count else None
        for count, good in zip(tried, passed, strict=True)
    ]


def _mutants(imported: Imported, seed: int) -> list[str]:
    """Return different programs, each a reference solution with one change."""
    source = next(iter(imported.solutions or ()), None)
    if source is None or imported.problem["kind"] == "math":
        return []
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError):
        return []
    # by place, as nodes have no names; the copy is walked in the same order
    places = [number for number, node in enumerate(ast.walk(tree)) if _change(node) is not None]
    draw = random.Random(derive_seed(seed, "mutants", str(imported.problem["problem_id"])))
    made = [ast.unparse(_changed(tree, place)) for place in draw.sample(places, min(MUTANTS, len(places)))]
    return list(dict.fromkeys(made))


def _changed(tree: ast.Module, place: int) -> ast.Module:
    mutant = copy.deepcopy(tree)
    node = next(islice(ast.walk(mutant), place, None))
    change = _change(node)
    if change:
        change()
    return mutant


def _change(node: ast.AST) -> Callable[[], None] | None:
    """Return a function that changes ``node``; None if nothing does."""
    if isinstance(node, ast.BinOp | ast.BoolOp) and type(node.op) in _OPERATORS:
        return lambda: setattr(node, "op", _OPERATORS[type(node.op)]())
    if isinstance(node, ast.Compare) and type(node.ops[0]) in _OPERATORS:
        return lambda: setattr(node, "ops", [_OPERATORS[type(node.ops[0])](), *node.ops[1:]])
    if isinstance(node, ast.Constant) and type(node.value) is int:
        number = node.value
        return lambda: setattr(node, "value", number + 1)
    return None


def _equal_forms(batch: Sequence[Imported], golds: Sequence[str], screener: Screener, seed: int) -> list[str | None]:
    asked = list[tuple[int, str, str]]()
    for number, imported in enumerate(batch):
        if imported.problem["kind"] == "math":
            gold = str(imported.problem["answer"])
            # the same text is the same answer and no wrong form
            others = [text for text in golds if text != gold]
            draw = random.Random(derive_seed(seed, "wrong forms", str(imported.problem["problem_id"])))
            wrong = [form.format(gold) for form in _WRONG] + draw.sample(others, min(_OTHERS, len(others)))
            asked += [(number, gold, text) for text in wrong]
    equal = screener.equal([(gold, text) for _, gold, text in asked])
    forms = [list[str]() for _ in batch]
    for (number, _, text), is_equal in zip(asked, equal, strict=True):
        forms[number] += [text] if is_equal else []
    return [
        f"{len(f)} wrong forms equal its answer, for example {f[0]!r}" if len(f) >= _EQUAL_FORMS else None
        for f in forms
    ]
