"""The mixture: sets come from a seed alone and share nothing, the judge accepts what is right and nothing else."""

import itertools
import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bench.claims.mixture import dependencies, programs, search, sets
from bench.claims.mixture.scales import CORES, FAMILIES, GPU, SCALES, Scale, Tier
from oapl_core.problems.problem_set import checked
from oapl_core.verdicts.outcomes import Outcome
from oapl_core.verdicts.verifier import Verifier

ROOT = Path(__file__).resolve().parents[2]
STEPS = "5+7=12,9+12=21,3+21=24"
DERIVATION = "mod 23\nb=7\nk=b*b=7*7=3\nc=4\na=k-c=3-4=22"
TIERS: tuple[Tier, ...] = ("solved", "usual", "harder")


@pytest.mark.parametrize(
    ("printed", "is_right"),
    [
        (STEPS, True),
        ("3*5=15,15-7=8,8+9=17", False),  # another target
        ("9*7=63,63/3=21,5+21=26", False),
        ("7-5=2,9-3=6,2*6=12,12+12=24", False),  # 12 twice
        ("3+5=8,8+7=15,9+15=24", True),
        ("9+15=24,3+5=8,8+7=15", False),  # before they are there
        ("3+5=8,8+7=15,9+15=25", False),  # computed wrong
        ("3+5=9,7+9=15,9+15=24", False),  # computed wrong twice, with all numbers and the target
        ("8+7=15,3+5=8,9+15=24", False),  # 8 before it is there
        ("3+21=24", False),  # of what was not given
        ("5+7=12,5+7=12,12+12=24", False),
        ("24", False),
        ("", False),
        (",", False),
        (STEPS + ",24+0=24", False),
        (STEPS.replace("3+21", "３+21"), False),  # a wide digit
        ("5-7=-2,9--2=11", False),
        ("9/0=0,3+21=24", False),
        ("1" * 5000 + "+1=2", False),
        ("7+5=12,12+9=21,21+3=24", True),
    ],
)
def test_steps_of_a_search(printed: str, is_right: bool) -> None:
    assert search.reaches("", STEPS, printed) is is_right


@pytest.mark.parametrize(
    ("printed", "lines", "is_right"),
    [
        (DERIVATION, [True] * 5, True),
        ("mod 23\nc=4\nb=7\nk=b*b=7*7=3\na=k-c=3-4=22", [True] * 5, True),
        ("mod 23\nb=7\nk=b*b=7*7=3\na=k-c=3-4=22\nc=4", [True, True, True, False, True], False),
        ("mod 23\nb=7\nk=b*b=7*7=4\nc=4\na=k-c=4-4=0", [True, True, False, True, True], False),
        ("mod 23\nb=8\nk=b*b=8*8=18\nc=4\na=k-c=18-4=14", [True, False, True, True, True], False),
        ("mod 23\nb=7\nk=b*b=7*7=3\nc=4\na=c-k=4-3=1", [True, True, True, True, False], False),
        ("mod 23\nb=7\nk=b*b=7*7=3\nc=4\na=k-c=3-4=22\na=k-c=3-4=22", [True] * 5 + [False], False),
        ("mod 23\nb=7\nk=b*b=8*8=18\nc=4\na=k-c=18-4=14", [True, True, False, True, True], False),
        ("mod 23\nb=7\nk=b*b=7+7=14\nc=4\na=k-c=14-4=10", [True, True, False, True, True], False),
        ("mod 7\nb=7\nk=b*b=7*7=3\nc=4\na=k-c=3-4=22", [False, True, True, True, True], False),
        ("mod 23\na=22", [True, False], False),
        ("mod 23\nb=7\nc=4", [True, True, True], False),
        ("mod 23\nb=7\nk=3\nc=4\na=k-c=3-4=22", [True, True, False, True, True], False),
        ("a=22", [False], False),
        ("22", [False], False),
        ("", [False], False),
        ("mod 23\nb=7\nz=9\nc=4\na=k-c=3-4=22", [True, True, False, True, False], False),
    ],
)
def test_lines_of_a_derivation(printed: str, lines: list[bool], is_right: bool) -> None:
    assert dependencies.judged(DERIVATION, printed) == lines
    assert dependencies.derives("", DERIVATION, printed) is is_right


def test_the_first_line_alone_is_no_answer_where_the_value_is_named_as_it_begins() -> None:
    gold = "mod 7\nb=3\nm=b+2=3+2=5"
    assert dependencies.derives("", gold, gold)
    assert not dependencies.derives("", gold, "mod 7")


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 10**9), scale=st.sampled_from([CORES, GPU]), tier=st.sampled_from(TIERS))
def test_one_wrong_sign_is_always_found(seed: int, scale: Scale, tier: Tier) -> None:
    rng = random.Random(seed)
    gold = dependencies.draw(rng, scale, tier)[1]["answer"]
    other = dependencies.derivation(dependencies.ordered(rng, dependencies.values_of(gold)), scale.modulus)
    assert dependencies.derives("", gold, other)
    places = [place for place, sign in enumerate(other) if sign not in "\n ="]
    place = rng.choice(places)
    wrong = other[:place] + rng.choice([c for c in "0123456789xyz+-*" if c != other[place]]) + other[place + 1 :]
    assert not dependencies.derives("", gold, wrong)


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 10**9), scale=st.sampled_from([CORES, GPU]), tier=st.sampled_from(TIERS))
def test_a_written_search_ends_right_or_without_an_answer(seed: int, scale: Scale, tier: Tier) -> None:
    rng = random.Random(seed)
    row = search.draw(rng, scale, tier)[1]
    for text in itertools.islice(search.answers(rng, scale, row), 4):
        *lines, end = text.split("\n")
        assert sum(len(one) + 1 for one in lines) <= scale.characters
        if end == "stop":
            assert not any(one.endswith("!") for one in lines)
        else:
            steps = end.removeprefix("\\boxed{").removesuffix("}")
            assert search.reaches("", row["answer"], steps)
            assert lines[-1].endswith("!")
            # every step of the answer was found aloud
            assert all(any(one.startswith(step) for one in lines) for step in steps.split(","))


def test_a_third_of_the_searches_fail_and_others_have_dead_ends() -> None:
    rng = random.Random(5)
    made = [next(search.answers(rng, GPU, search.draw(rng, GPU, "solved")[1])) for _ in range(300)]
    assert 0.25 < sum(text.endswith("stop") for text in made) / 300 < 0.42
    found = [text for text in made if "!" in text]
    assert sum(" x\n" in text for text in found) > len(found) / 3, "no dead ends"
    assert sum("\n<" in text for text in found) > len(found) / 4, "no returns"


@pytest.mark.parametrize(
    ("one", "other", "is_same"),
    [
        ("5+7=12,9+12=21,3+21=24", "9+3=12,7+12=19,5+19=24", True),
        ("5+7=12,9+12=21,3+21=24", "9*7=63,63/3=21,5+21=26", False),
        ("8-6=2,2*5=10", "5*8=40,5*6=30,40-30=10", False),
    ],
)
def test_steps_that_write_one_expression_are_one_answer(one: str, other: str, is_same: bool) -> None:
    first, second = search.steps_of(one), search.steps_of(other)
    assert first and second
    assert (search.canonical(first) == search.canonical(second)) is is_same


def test_what_slips_is_wrong_and_everything_else_right() -> None:
    rng, row = random.Random(3), dependencies.draw(random.Random(4), GPU, "usual")[1]
    values = dependencies.values_of(row["answer"])
    always = [dependencies.derivation(values, GPU.modulus, rng, share) for share in (0.0, 1.0)]
    assert dependencies.derives("", row["answer"], always[0])
    computed = [index for index, value in enumerate(values, 1) if value.operation]
    judged = dependencies.judged(row["answer"], always[1])
    assert [index for index, is_right in enumerate(judged) if not is_right] == computed


class Noted:
    """A family that remembers the content of every statement."""

    def __init__(self, family: str) -> None:
        self.family, self.keys = sets.MODULES[family], dict[str, str]()

    def draw(self, rng: random.Random, scale: Scale, tier: Tier) -> tuple[str, dict[str, Any]]:
        key, row = self.family.draw(rng, scale, tier)
        self.keys[row["statement"]] = key
        return key, row

    def answers(self, rng: random.Random, scale: Scale, row: dict[str, Any]) -> Iterator[str]:
        return self.family.answers(rng, scale, row)


@pytest.mark.parametrize("scale", SCALES.values(), ids=lambda one: one.name)
def test_no_two_sets_share_a_problem(scale: Scale, monkeypatch: pytest.MonkeyPatch) -> None:
    noted = {family: Noted(family) for family in FAMILIES}
    monkeypatch.setattr(sets, "MODULES", noted)
    small = Scale(**{**scale.__dict__, "problems": {"train": 25, "validation": 10, "heldout": 15}})
    rows = {split: sets.problems(small, split) for split in small.problems}
    rows["solutions"] = [row for family in FAMILIES for row in sets.piece(small, family, 0, 40)]
    keys = {
        split: {
            (name, one.keys[row["statement"]])
            for row in own
            for name, one in noted.items()
            if row["statement"] in one.keys
        }
        for split, own in rows.items()
    }
    assert all(len(own) > 40 for own in keys.values() if own is not keys["validation"])
    assert all(not keys[one] & keys[other] for one, other in itertools.combinations(keys, 2))


def test_no_set_has_a_statement_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    class Few:
        def draw(self, rng: random.Random, scale: Scale, tier: Tier) -> tuple[str, dict[str, Any]]:
            return "", {"kind": "math", "statement": str(rng.randrange(8)), "answer": "1", "structure": "few usual: 1"}

    monkeypatch.setattr(sets, "MODULES", {family: Few() for family in FAMILIES})
    monkeypatch.setattr(sets, "set_of", lambda family, key: "train")
    small = Scale(**{**CORES.__dict__, "problems": {"train": 7}})
    made = sets.problems(small, "train")
    for family in FAMILIES:
        assert len({row["statement"] for row in made if f"-{family}-" in row["problem_id"]}) == 7


def test_sets_come_from_a_seed_alone() -> None:
    small = Scale(**{**CORES.__dict__, "problems": {"train": 6, "validation": 3, "heldout": 3}})
    for split in small.problems:
        made = sets.problems(small, split)
        assert made == sets.problems(small, split)
        assert len({row["statement"] for row in made}) == len(made)
        for number, row in enumerate(made):
            assert checked(json.loads(json.dumps(row)), split, f"row {number}")["split"] == split
    for family in FAMILIES:
        pieces = [list(sets.piece(CORES, family, number, 5)) for number in (0, 0, 1)]
        assert pieces[0] == pieces[1] != pieces[2]


def test_a_killed_command_repeats_no_piece(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    small = Scale(**{**CORES.__dict__, "solved": {"search": 3, "dependencies": 3, "programs": 2}})
    monkeypatch.setattr(sets, "PIECE", 2)
    sets.write_solutions(small, tmp_path, 1)
    whole = (tmp_path / "solutions.jsonl").read_text()
    assert len(whole.splitlines()) == 8
    kept = sets.piece_path("search", 0, tmp_path / "pieces")
    (tmp_path / "solutions.jsonl").unlink()
    sets.piece_path("search", 1, tmp_path / "pieces").unlink()
    before = kept.stat().st_mtime_ns
    sets.write_solutions(small, tmp_path, 2)
    assert kept.stat().st_mtime_ns == before
    assert (tmp_path / "solutions.jsonl").read_text() == whole


def test_reserved_pairs_are_those_of_the_harder_tier_alone() -> None:
    rng = random.Random(8)
    for tier in TIERS:
        for _ in range(60):
            row = programs.draw(rng, GPU, tier)[1]
            assert programs.has_reserved(programs.program_of(row["answer"])) == (tier == "harder")


def test_pretraining_shows_no_reserved_pair_of_a_tier_that_has_none() -> None:
    rng = random.Random(9)
    for _ in range(20):
        row = programs.draw(rng, GPU, "usual")[1]
        made = itertools.islice(programs.answers(rng, GPU, row), 60)
        assert not [text for text in made if programs.has_reserved(programs.program_of(text))]


def test_programs_that_do_the_same_are_one() -> None:
    by_code = {one.code: one for one in programs.OPERATIONS}
    turned, sorted_ = by_code["x[::-1]"], by_code["sorted(x)"]
    assert programs.behaviour([turned, sorted_]) == programs.behaviour([sorted_])
    assert programs.behaviour([sorted_, turned]) != programs.behaviour([sorted_])
    assert len({programs.behaviour([one]) for one in programs.OPERATIONS}) == len(programs.OPERATIONS)
    assert not programs.is_needed([turned, sorted_], [[3, 1, 2], [5, 4]])
    assert programs.is_needed([sorted_, turned], [[3, 1, 2], [5, 4, 6]])


def asked(family: str, seed: int) -> dict[str, Any]:
    """A problem as the verifier sees it, with its own program."""
    row = sets.MODULES[family].draw(random.Random(seed), GPU, "usual")[1]
    return checked({"problem_id": f"{family}-{seed}", **row}, "train", "row") | {"is_thinking": False}


def test_the_judge_of_the_project_judges_all_three(tmp_path: Path) -> None:
    one, other, third = (asked(family, 1) for family in FAMILIES)
    right = programs.program_of(third["answer"])
    shown = [(json.loads(t["input"])[0], json.loads(t["output"])) for t in third["tests"][: programs.SHOWN]]
    learnt = f"```python\ndef f(x):\n    return dict({[(str(a), b) for a, b in shown]!r}).get(str(x))\n```"
    cases = [
        (one, f"12*3=36 4\n\\boxed{{{one['answer']}}}", "stop", Outcome.PASSED),
        (one, f"\\boxed{{{one['answer']}}} or \\boxed{{1+1=2}}", "stop", Outcome.WRONG_ANSWER),
        (one, "\\boxed{1+1=2}", "stop", Outcome.WRONG_ANSWER),
        (one, "stop", "stop", Outcome.NO_ANSWER),
        (one, "1+1=2 2\n" * 40, "length", Outcome.TRUNCATED),
        (other, f"\\boxed{{{other['answer']}}}", "stop", Outcome.PASSED),
        (other, f"\\boxed{{{other['answer']}0}}", "stop", Outcome.WRONG_ANSWER),
        (other, f"\\boxed{{{other['answer'].splitlines()[-1]}}}", "stop", Outcome.WRONG_ANSWER),
        (third, programs.answer(right), "stop", Outcome.PASSED),
        (third, learnt, "stop", Outcome.WRONG_ANSWER),  # knows the examples by heart
        (third, "```python\ndef f(x):\n    return x\n```", "stop", Outcome.WRONG_ANSWER),
        (third, "```python\ndef f(x):\n    while True: pass\n```", "stop", Outcome.TIME_LIMIT),
        (third, "```python\ndef f(x):\n    x = [v\n    return x\n```", "stop", Outcome.COMPILE_ERROR),
    ]
    from oapl_core.settings.verifier import VerifierConfig

    with Verifier(VerifierConfig(cpu_s=1.0, workers=1)) as verifier:
        problems, texts, reasons, wanted = zip(*cases, strict=True)
        assert [verdict.outcome for verdict in verifier.verify(problems, texts, reasons)] == list(wanted)


@pytest.mark.parametrize(("scale", "weights"), [(CORES, (1.9e6, 2.1e6)), (GPU, (12e6, 20e6))], ids=["cores", "gpu"])
def test_experiment_files_hold_problems_answers_and_the_model(scale: Scale, weights: tuple[float, float]) -> None:
    from oapl_core.pretraining.model import new_model
    from oapl_core.pretraining.pretrain import Solved, corpus, encode
    from oapl_core.pretraining.tokenizer import train_tokenizer
    from oapl_core.settings.experiment_file import load_experiment

    experiment = load_experiment(ROOT / "bench" / "claims" / "mixture" / f"{scale.name}.toml", [])
    assert experiment.pretrain is not None
    rows = [Solved(**row) for family in FAMILIES for row in sets.piece(scale, family, 0, 150)]
    tokenizer = train_tokenizer(corpus(rows), experiment.pretrain.vocabulary)
    harder = [sets.MODULES[family].draw(random.Random(0), scale, "harder")[1] for family in FAMILIES for _ in range(30)]
    examples = encode([*rows, *(Solved(statement=row["statement"], solutions=["-"]) for row in harder)], tokenizer)
    assert max(len(one.prompt_ids) for one in examples) <= (experiment.problems.max_prompt_tokens or 0)
    lengths, most = sorted(len(one.answer_ids) for one in examples[: len(rows)]), experiment.sampling.max_tokens
    # The longest answers are cut, so that length has a price. The gate wants 1 to 5 % of what a model says to usual
    # problems; a GPU's solutions are of searches with five numbers too, which are longer and no usual ones.
    highest = 0.05 if scale is CORES else 0.15
    assert 0.002 <= sum(length > most for length in lengths) / len(lengths) <= highest, lengths[-30:]
    room = (experiment.problems.max_prompt_tokens or 0) + experiment.sampling.max_tokens
    assert room <= (experiment.engine.max_model_len or 0) <= experiment.pretrain.max_positions
    many = new_model(experiment.pretrain, tokenizer, 0).num_parameters()
    assert weights[0] <= many <= weights[1]
