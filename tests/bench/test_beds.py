"""The test beds: sets come from a seed alone, checkers accept what is correct alone, experiment files hold."""

import itertools
import json
import random
from collections.abc import Iterable, Iterator
from fractions import Fraction
from pathlib import Path
from typing import cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bench.claims import beds, chains, countdown, diversity
from oapl_core.rollouts.requests import Request, SampledAnswer, Sampler
from oapl_core.settings.experiment_file import load_experiment
from oapl_core.verdicts.outcomes import Outcome
from oapl_core.verdicts.verifier import Verifier

ROOT = Path(__file__).resolve().parents[2]
DIFFERENT = st.lists(st.integers(1, 15), min_size=1, max_size=4, unique=True)


def bracketed(numbers: tuple[int, ...]) -> Iterator[tuple[str, Fraction]]:
    """Every expression that uses all numbers in this order, fully bracketed, and its value."""
    if len(numbers) == 1:
        yield str(numbers[0]), Fraction(numbers[0])
    for cut in range(1, len(numbers)):
        for (left, a), (right, b) in itertools.product(bracketed(numbers[:cut]), bracketed(numbers[cut:])):
            yield f"({left}+{right})", a + b
            yield f"({left}-{right})", a - b
            yield f"({left}*{right})", a * b
            if b:
                yield f"({left}/{right})", a / b


def of_every_subset(numbers: list[int]) -> Iterator[tuple[str, Fraction]]:
    for size in range(1, len(numbers) + 1):
        for chosen in itertools.permutations(numbers, size):
            yield from bracketed(chosen)


@pytest.mark.parametrize(("numbers", "many"), [([5], 1), ([3, 7], 6 + 2), ([3, 7, 11], 68 + 3 * 6 + 3)])
def test_expressions_are_listed_once(numbers: list[int], many: int) -> None:
    texts = [countdown.written(tree) for _, _, tree in countdown.Expressions(numbers)]
    assert len(texts) == len(set(texts)) == many  # 1, 6, 68 with all numbers: OEIS A140606


@pytest.mark.parametrize(
    ("numbers", "target", "found"),
    [
        ([2, 3], 6, {"2*3"}),
        ([2, 3, 6], 6, {"6", "2*3", "(3-2)*6", "6/(3-2)", "(6-3)*2", "3+6/2"}),
        ([1, 4], 3, {"4-1"}),
        ([2, 8], 5, set()),
    ],
)
def test_solutions_of_hand_cases(numbers: list[int], target: int, found: set[str]) -> None:
    texts = {countdown.written(tree) for tree in countdown.solutions(numbers, target)}
    assert texts == found


@settings(max_examples=12, deadline=None)
@given(numbers=st.lists(st.integers(1, 9), min_size=3, max_size=3, unique=True), target=st.integers(1, 30))
def test_the_solver_finds_what_trying_everything_finds(numbers: list[int], target: int) -> None:
    tried = {countdown.canonical(text) for text, reached in of_every_subset(numbers) if reached == target}
    assert {countdown.written(tree) for tree in countdown.solutions(numbers, target)} == tried


@settings(max_examples=60, deadline=None)
@given(numbers=DIFFERENT, seed=st.integers(0, 10**6))
def test_the_checker_agrees_with_another_evaluation(numbers: list[int], seed: int) -> None:
    rng = random.Random(seed)
    order = tuple(rng.sample(numbers, rng.randint(1, len(numbers))))
    text, reached = rng.choice(list(itertools.islice(bracketed(order), 2000)))
    given_numbers = " ".join(map(str, numbers))
    for target in (int(reached), int(reached) + 1):
        assert countdown.reaches(f"{target}\n{given_numbers}\n", "", f"{text}\n") == (reached == target)
    tree = countdown.parsed(text)
    assert tree is not None
    for other in (countdown.written(tree), countdown.written(tree, rng)):
        again = countdown.parsed(other)
        assert again is not None
        assert countdown.value(again) == reached
        assert countdown.canonical(other) == countdown.canonical(text)


@pytest.mark.parametrize(
    "printed",
    [
        "",
        "24",
        "12+12",
        "12*2+0",
        "4!",
        "2**4+8",
        "49//2",
        "-8+32",
        "2_4",
        "(8",
        "8)",
        "8/(4-4)",
        "12 12",
        "0x18",
        "²*12",
        "int('24')",
        "12*2\n",
        "((((((((((" * 10,
        "1" * 5000,
        "8*3.0",
        "True*24",
        "4*8-8",
        "4*(8-2)",
    ],
)
def test_what_is_no_expression_of_the_numbers_is_wrong(printed: str) -> None:
    correct = printed == "4*(8-2)"  # the one that is
    assert countdown.reaches("24\n4 8 2 9\n", "", printed) is correct


@pytest.mark.slow
def test_sets_come_from_a_seed_alone_and_share_no_numbers() -> None:
    made, again = ({name: list(rows) for name, rows in beds.countdown_sets(0.01)} for _ in range(2))
    assert made == again
    numbers = {
        name: {tuple(sorted(row["statement"].split("\n")[0].split()[1:])) for row in made[name]} for name in made
    }
    assert not [pair for pair in itertools.combinations(numbers, 2) if numbers[pair[0]] & numbers[pair[1]]]
    for row in made["heldout"]:
        target, *given_numbers = map(int, row["tests"][0]["input"].split())
        found = countdown.solutions(given_numbers, target)
        assert countdown.FEWEST <= len(found) <= countdown.MOST
        assert row["structure"].endswith(f"{len(found)} solutions")
    chained, chained_again = ({name: list(rows) for name, rows in beds.chains_sets(0.01)} for _ in range(2))
    assert chained == chained_again
    assert {len(row["statement"].split("\n")) for row in chained["train-24"]} == {25}
    of_numbers = {name: list(rows) for name, rows in beds.SETS["numbers"](0.01)}
    assert {len(row["statement"].split("\n")) for row in of_numbers["heldout"]} == {6}
    for row in of_numbers["solutions"]:
        assert row["solutions"] == [chains.answer(*_read(row["statement"]), kind=chains.NUMBERS)], "all are correct"


def _read(statement: str) -> tuple[int, list[chains.Step], list[bool]]:
    first, *steps = statement.split("\n")
    return int(first.split()[1]), [(line[-1], int(line[1:-1])) for line in steps], [False] * len(steps)


def test_made_up_solutions_of_countdown_are_correct() -> None:
    rng, drawn = random.Random(1), countdown.draw(random.Random(2), countdown.number_sets(random.Random(3)))
    for row, found in itertools.islice(drawn, 20):
        text = countdown.shown(rng, found)
        expression = countdown.expression_of(text.removeprefix("```python\n").removesuffix("\n```"))
        assert expression is not None
        assert countdown.reaches(row["tests"][0]["input"], "", expression)


@pytest.mark.parametrize("kind", [chains.DIGITS, chains.NUMBERS, chains.HABITS])
def test_a_wrong_step_is_wrong_and_stays_wrong(kind: chains.Kind) -> None:
    numbers = set(range(kind.modulus))
    for operation, operands in kind.operands.items():
        for operand in operands:
            step = (operation, operand)
            assert {kind.applied(step, number) for number in numbers} == numbers, "steps have an inverse"
            if kind.wrong(step):
                assert all(kind.applied(step, number) != kind.applied(step, number, True) for number in numbers)
    row, (first, steps) = chains.draw(random.Random(3), 12, kind)
    ends = [chains.answer(first, steps, [at == wrong for at in range(12)], kind) for wrong in range(13)]
    assert [end.endswith(f"{{{row['answer']}}}") for end in ends] == [False] * 12 + [True]


def test_a_worked_answer_by_hand() -> None:
    assert (
        chains.answer(7, [("*", 3), ("-", 4), ("+", 9)], [False, False, True]) == "a7*3=1\nb1-4=7\nc7+9=5\n\\boxed{5}"
    )


def test_lines_that_mend_each_other_are_wrong_where_every_line_counts() -> None:
    steps, wrong = [("+", 4), ("-", 4)], [True, True]
    assert chains.answer(3, steps, wrong) == "a3+4=6\nb6-4=3\n\\boxed{3}", "as if nothing had been wrong"
    assert chains.answer(3, steps, wrong, chains.HABITS) == "a3+4=6\nb6-4=3\n\\boxed{63}"
    assert chains.answer(3, steps, [False, False], chains.HABITS) == "a3+4=7\nb7-4=3\n\\boxed{73}"


def test_the_verifier_judges_answers_of_both_beds() -> None:
    countdown_row, found = next(countdown.draw(random.Random(4), iter([(2, 3, 5, 8)])))
    chain_row, (first, steps) = chains.draw(random.Random(5), 6)
    problems = [{"problem_id": "c", "entry_point": None, **countdown_row}] * (len(found) + 1)
    problems += [{"problem_id": "m", **chain_row}] * 2
    texts = [countdown.answer(countdown.written(tree)) for tree in found] + [countdown.answer("1+1")]
    texts += [chains.answer(first, steps, [False] * 6), chains.answer(first, steps, [True, *[False] * 5])]
    wanted = [Outcome.PASSED] * len(found) + [Outcome.WRONG_ANSWER, Outcome.PASSED, Outcome.WRONG_ANSWER]
    with Verifier() as verifier:
        assert [v.outcome for v in verifier.verify(problems, texts, ["stop"] * len(texts))] == wanted


@pytest.mark.parametrize("name", beds.SETS)
def test_experiment_files_resolve_and_answers_fit(name: str, tmp_path: Path) -> None:
    experiment = load_experiment(ROOT / "bench" / "claims" / f"{name}.toml", [])
    sets = {path.stem for split in ("train", "validation", "heldout") for path in getattr(experiment.problems, split)}
    made = dict(beds.SETS[name](0.002))
    assert sets <= made.keys()
    assert experiment.pretrain is not None
    solutions = [text for row in json.loads(json.dumps(made["solutions"])) for text in row["solutions"]]
    # a letter, a digit or a sign is a token of its own at worst, the fence and the box a few together
    assert max(len(text.removeprefix("```python\n")) for text in solutions) <= experiment.sampling.max_tokens + 8


class Written:
    """An engine that gives each request the next of some texts."""

    def __init__(self, texts: list[str]) -> None:
        self.texts = iter(texts)

    def sample(self, requests: Iterable[Request | None], with_logprobs: bool) -> Iterator[SampledAnswer]:
        assert with_logprobs
        for request, text in zip(filter(None, requests), self.texts, strict=True):
            yield SampledAnswer(request, [1, 2], [-0.5, -1.5], "stop", text)


def test_different_correct_answers_are_counted_once_each() -> None:
    texts = [countdown.answer(text) for text in ("2*3", "3*2", "1+2+3", "3+(2+1)", "5+1", "6", "2*", "2*3")]
    texts[-1] = "no program"
    found = diversity.measured(cast(Sampler, Written(texts)), {"p": [7]}, {"p": "6\n1 2 3 4\n"}, 8, 16)
    assert found == {"n": 8, "right": [4], "distinct": [2], "entropy": 1.0, "tokens": 2.0}


def test_problems_on_the_same_numbers_are_one_set() -> None:
    assert diversity.sets_of_numbers(["12\n3 1 2 4\n", "9\n1 2 3 5\n", "20\n4 3 2 1\n"]) == [0, 1, 0]
