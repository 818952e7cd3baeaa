"""A program has one draw: no test is judged twice until it passes, whatever the program knows of what ran before it."""

import itertools
import random
from collections.abc import Iterator

import pytest

from oapl_core.sandbox import Limits, Program
from oapl_core.sandbox.sandbox import Level, Sandbox
from oapl_core.settings.verifier import VerifierConfig
from oapl_core.verdicts.extraction import fenced
from oapl_core.verdicts.outcomes import Outcome
from oapl_core.verdicts.programs import ProgramGrade, grade_program
from oapl_core.verdicts.rules import GradingRules
from oapl_core.verdicts.verifier import Verifier
from tests import sandboxes

LIMITS = Limits(cpu_s=2, wall_s=6)
FIRST = "import builtins\nfirst = not hasattr(builtins, 'seen')\nbuiltins.seen = True\n"


@pytest.fixture(scope="module", params=sandboxes.LEVELS)
def either(request: pytest.FixtureRequest) -> Iterator[Sandbox]:
    level: Level = request.param
    sandboxes.require(level)
    with Sandbox(workers=2, level=level) as started:
        yield started


def yes_no(count: int, seed: int, first: str | None = None) -> list[dict[str, str]]:
    """Tests of a yes/no problem; inputs differ and say nothing."""
    drawn = random.Random(seed)
    words = [drawn.choice(("YES", "NO")) for _ in range(count)]
    return [{"input": f"{n}\n", "output": f"{first if first and not n else word}\n"} for n, word in enumerate(words)]


def graded(
    sandbox: Sandbox, source: str, tests: list[dict[str, str]], rules: GradingRules | None = None
) -> ProgramGrade:
    return grade_program(sandbox, source, tests, LIMITS, rules)


STATEFUL = {
    "an attribute of builtins": FIRST + "print('{0}' if first else '{1}')",
    "a file": (
        "import os\nfirst = not os.path.exists('m')\ntry: open('m', 'w')\nexcept OSError: pass\n"
        "print('{0}' if first else '{1}')"
    ),
    "a module": "import sys\nfirst = 'm' not in sys.modules\nsys.modules['m'] = sys\nprint('{0}' if first else '{1}')",
    "a default argument of a library's function": (
        "import textwrap\nf = textwrap.dedent\nfirst = f.__dict__.setdefault('n', 0) == 0\nf.n += 1\n"
        "print('{0}' if first else '{1}')"
    ),
    "where its output stands": ("import os\nfirst = os.lseek(1, 0, 1) == 0\nprint('{0}' if first else '{1}')"),
    "CPU time used": (
        "import time\nfirst = time.process_time() < 0.02\nsum(range(10**6))\nprint('{0}' if first else '{1}')"
    ),
    "a count, alternating": (
        "import builtins\nbuiltins.n = getattr(builtins, 'n', -1) + 1\nprint(('{0}', '{1}')[builtins.n % 2])"
    ),
    "how many inputs share the child": (
        "import os\nn = 0\nfor fd in range(3, 99):\n    try: n += os.pread(fd, 9, 0)[:1].isdigit()\n"
        "    except OSError: pass\nprint('{0}' if n < 2 else '{1}')"
    ),
}


@pytest.mark.parametrize("words", [("YES", "NO"), ("NO", "YES")])
@pytest.mark.parametrize("name", STATEFUL)
def test_knowing_the_attempt_passes_no_tests_that_reading_nothing_would_not(
    name: str, words: tuple[str, str], either: Sandbox
) -> None:
    found = graded(either, STATEFUL[name].format(*words), yes_no(100, seed=3, first=words[0]))
    assert found.outcome is Outcome.WRONG_ANSWER
    assert found.tests_passed < 20


def test_a_program_whose_draws_differ_is_named_and_judged_in_fresh_children_alone(either: Sandbox) -> None:
    source = FIRST + "input()\nprint('YES' if first else 'NO')"
    all_yes = [{"input": f"{n}\n", "output": "YES\n"} for n in range(5)]
    found = graded(either, source, all_yes)
    assert (found.outcome, found.tests_passed, found.draws_differ) == (Outcome.PASSED, 5, True)
    all_yes[3]["output"] = "NO\n"
    found = graded(either, source, all_yes)
    assert (found.outcome, found.tests_passed, found.first_failing_test) == (Outcome.WRONG_ANSWER, 3, 3)
    assert found.draws_differ
    assert not graded(either, "print('YES')", all_yes).draws_differ


def test_a_failure_late_in_a_shared_child_counts_for_all_tests_when_none_is_to_be_skipped(either: Sandbox) -> None:
    every = GradingRules(stop_at_first_failure=False)
    tests = yes_no(60, seed=5)
    share = sum(test["output"] == "YES\n" for test in tests)
    found = graded(either, FIRST + "print('YES' if first else 'NO')", tests, every)
    assert (found.tests_passed, found.tests_run) == (share, 60)
    honest = graded(either, "print('YES')", tests, every)
    assert (honest.tests_passed, honest.draws_differ) == (share, False)


DRAWN = {
    "random.choice": "import random\nprint(random.choice(('YES', 'NO')))",
    "a generator of its own": "import random\nprint(random.Random(random.random()).choice(('YES', 'NO')))",
    "numpy": "import numpy as np\nprint(('YES', 'NO')[np.random.randint(2)])",
    "the order of a set": "print(next(iter({'YES', 'NO', str(input())} - {'0'} & {'YES', 'NO'})))",
    "a hash": "print(('YES', 'NO')[hash(input()) % 2])",
}


@pytest.mark.parametrize("name", DRAWN)
def test_what_is_drawn_is_the_same_however_often_and_wherever_it_is_drawn(name: str, either: Sandbox) -> None:
    program, inputs = Program(DRAWN[name]), [b"%d\n" % n for n in range(12)]
    shared = [e.stdout for e in either.executions(program, inputs, LIMITS)]
    assert len(shared) == 12
    assert [e.stdout for e in either.run(program, inputs, LIMITS)] == shared  # alternates between two servers
    assert [e.stdout for e in either.executions(program, inputs[6:], LIMITS)] == shared[6:]


def test_other_inputs_and_other_programs_draw_otherwise(either: Sandbox) -> None:
    draw = "import random\nprint(random.random())"
    inputs = [b"%d" % n for n in range(4)]
    one, other = ([e.stdout for e in either.run(Program(text), inputs, LIMITS)] for text in (draw, draw + "  # 2"))
    assert len({*one, *other}) == 8


@pytest.mark.slow_if(case=sandboxes.at_further_level)
@pytest.mark.parametrize("flips", [60, pytest.param(200, marks=pytest.mark.slow)])
def test_a_coin_of_the_machine_passes_about_as_often_as_one_draw_would(flips: int, either: Sandbox) -> None:
    words = itertools.product(("YES", "NO"), repeat=3)
    cases = list(itertools.islice(itertools.cycle(words), flips))
    source = "import os\nprint(('YES', 'NO')[os.urandom(1)[0] % 2])"

    def one(expected: tuple[str, ...]) -> bool:
        rows = [{"input": f"{n}\n", "output": word} for n, word in enumerate(expected)]
        return graded(either, source, rows).outcome is Outcome.PASSED

    passed = sum(either.stream(one, cases))
    # Of 200, one draw: 25 in the mean; at most 1.5 draws: 37, deviation 5.5; a draw for each test: 100.
    assert passed <= 0.3 * flips


def test_fewer_than_five_tests_share_nothing(either: Sandbox) -> None:
    source = FIRST + "print('YES' if first else 'NO')"
    tests = [{"input": f"{n}\n", "output": word} for n, word in enumerate(("YES", "NO", "NO", "NO"))]
    found = graded(either, source, tests)
    assert (found.outcome, found.first_failing_test, found.draws_differ) == (Outcome.WRONG_ANSWER, 1, False)
    alike = [{"input": f"{n}\n", "output": "YES"} for n in range(4)]
    assert graded(either, source, alike).outcome is Outcome.PASSED


def test_the_verifier_counts_programs_whose_draws_differ() -> None:
    tests = [{"input": f"{n}\n", "output": "YES\n"} for n in range(5)]
    problem = {"problem_id": "p", "kind": "stdin", "entry_point": None, "answer": None, "tests": tests}
    with Verifier(VerifierConfig(workers=1), level=sandboxes.LEVEL) as verifier:
        texts = [fenced(FIRST + "print('YES' if first else 'NO')"), fenced("print('YES')"), fenced("print('NO')")]
        found = verifier.verify([problem] * 3, texts, ["stop"] * 3)
        assert [verdict.reward for verdict in found] == [1.0, 1.0, 0.0]
        assert verifier.draws_differed == 1


def test_two_problems_of_one_name_are_two_problems() -> None:
    one = {"problem_id": "p", "kind": "stdin", "entry_point": None, "answer": None}
    problems = [{**one, "tests": [{"input": "", "output": word}]} for word in ("YES", "NO", "YES", "NO")]
    with Verifier(VerifierConfig(workers=1), level=sandboxes.LEVEL) as verifier:
        found = verifier.verify(problems, [fenced("print('YES')")] * 4, ["stop"] * 4)
        assert [verdict.reward for verdict in found] == [1.0, 0.0, 1.0, 0.0]
        assert found[0] is found[2]
        assert found[1] is found[3]
