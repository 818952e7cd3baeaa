"""The gates: each number by hand, each criterion at its ends, and nothing claimed that was not measured."""

import itertools
import json
import math
import random
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from bench.claims.machine import Machine
from bench.claims.mixture import gates, measuring
from bench.claims.mixture.gates import GATES, Gate
from bench.claims.mixture.measuring import Judged
from bench.claims.mixture.scales import FAMILIES
from oapl_core.rollouts.requests import Request, SampledAnswer
from oapl_core.verdicts.outcomes import Outcome
from oapl_core.verdicts.verifier import Verdict


def problem(right: int, n: int = 64, tier: str = "usual", family: str = "search", **more: Any) -> Judged:
    lengths = more.pop("lengths", [20, 100] * (n // 2))
    return Judged(family, tier, right, n, lengths, more.pop("cut", 0))


def fit(**changes: Any) -> list[Judged]:
    """Problems of a base that meets every gate."""
    usual = [problem(right, cut=2, family=family) for family in FAMILIES for right in (0, 10, 20, 30, 40)]
    harder = [problem(right, tier="harder", family=family) for family in FAMILIES for right in (0, 10, 20)]
    return [Judged(**{**one.__dict__, **changes}) for one in usual] + harder


def met(problems: Sequence[Judged]) -> dict[tuple[str, str], bool | None]:
    rows = gates.verdict(problems)["gates"]
    return {(row["gate"], row["tier"]): row["is_met"] for row in rows if row["scope"] == "mixture"}


def test_the_criteria_are_the_issue_s() -> None:
    assert [(one.name, one.tier, one.low, one.high) for one in GATES] == [
        ("pass@1", "usual", 0.25, 0.4),
        ("pass@1", "harder", 0.05, 0.25),
        ("pass@64", "usual", 0.7, 1),
        ("mixed groups", "usual", 0.5, 1),
        ("length scatter", "usual", 0.4, math.inf),
        ("cut", "usual", 0.01, 0.05),
    ]


def test_a_fit_base_opens_the_study() -> None:
    assert set(met(fit()).values()) == {True}
    assert gates.verdict(fit())["is_open"] is True


@pytest.mark.parametrize(
    ("changes", "closed"),
    [
        ({"right": 10}, {("pass@1", "usual")}),
        ({"right": 28}, {("pass@1", "usual")}),
        ({"right": 0}, {("pass@1", "usual"), ("pass@64", "usual"), ("mixed groups", "usual")}),
        ({"lengths": [60] * 64}, {("length scatter", "usual")}),
        ({"lengths": [40, 80] * 32}, {("length scatter", "usual")}),
        ({"cut": 0}, {("cut", "usual")}),
        ({"cut": 4}, {("cut", "usual")}),
    ],
)
def test_each_gate_closes_by_itself(changes: dict[str, Any], closed: set[tuple[str, str]]) -> None:
    found = met(fit(**changes))
    assert {gate for gate, is_met in found.items() if not is_met} == closed
    assert gates.verdict(fit(**changes))["is_open"] is False


def test_the_harder_tier_has_its_own_gate() -> None:
    for right, is_met in ((2, False), (4, True), (16, True), (17, False)):
        harder = [problem(right, tier="harder")]
        assert met([*fit()[:15], *harder])["pass@1", "harder"] is is_met


def test_too_few_answers_are_no_claim() -> None:
    few = [Judged(one.family, one.tier, one.right // 8, 8, [20, 100] * 4, 0) for one in fit()]
    found = met(few)
    assert found["pass@64", "usual"] is None
    assert found["mixed groups", "usual"] is not None
    assert gates.verdict(few)["is_open"] is False
    assert met([one for one in fit() if one.tier == "usual"])["pass@1", "harder"] is None
    assert met([problem(1, 4)])["mixed groups", "usual"] is None


@pytest.mark.parametrize(("n", "right"), [(8, 0), (8, 3), (8, 8), (10, 1), (10, 5), (11, 10)])
def test_the_share_of_mixed_groups_is_that_of_all_groups(n: int, right: int) -> None:
    groups = list(itertools.combinations(range(n), 8))
    mixed = sum(0 < sum(i < right for i in group) < 8 for group in groups) / len(groups)
    assert measuring.mixed_share([problem(right, n)]) == pytest.approx(mixed)


def test_numbers_by_hand() -> None:
    two = [problem(1, 2, lengths=[10, 30], cut=1), problem(0, 2, lengths=[30, 50])]
    assert measuring.pass_share(two, 1) == 0.25
    assert measuring.pass_share(two, 2) == 0.5
    assert measuring.pass_share(two, 3) is None
    assert measuring.scatter(two) == pytest.approx(math.sqrt((400 + 0 + 0 + 400) / 4) / 30)
    assert measuring.cut_share(two) == 0.25
    assert measuring.mean_length(two) == 30


def test_gates_are_met_at_their_ends() -> None:
    gate = Gate("pass@1", "usual", 0.25, 0.4)
    assert [gate.is_met(x) for x in (0.2499, 0.25, 0.4, 0.4001, None)] == [False, True, True, False, None]


def test_equal_expressions_are_one_answer() -> None:
    texts = ["5+7=12 3\n\\boxed{5+7=12,3*12=36}", "\\boxed{7+5=12,12*3=36}", "\\boxed{5*3=15,15+21=36}"]
    assert len({measuring.canonical("search", text) for text in texts}) == 2
    assert measuring.canonical("programs", " a\n") == "a"


class MadeUp:
    """An engine whose answers depend on the seed alone."""

    asked = 0

    def load(self, folder: Path) -> None:
        """There is one."""

    def sample(self, requests: Iterable[Request | None], with_logprobs: bool) -> Iterator[SampledAnswer]:
        for request in filter(None, requests):
            self.asked += 1
            draw = random.Random(request.seed)
            ids = [1] * draw.randint(1, 30)
            is_cut = len(ids) == 30
            yield SampledAnswer(request, ids, [-0.5] * len(ids), "length" if is_cut else "stop", str(draw.random()))


class Judge:
    """A third of the texts is right."""

    def verify(self, problems: Sequence[Any], texts: Sequence[str], reasons: Sequence[str | None]) -> list[Verdict]:
        outcomes = [Outcome.PASSED if float(text) < 1 / 3 else Outcome.WRONG_ANSWER for text in texts]
        return [Verdict("p", outcome, text, "full") for outcome, text in zip(outcomes, texts, strict=True)]


def made_up(folder: Path, sampler: MadeUp) -> Machine:
    rows = {
        f"{tier}-{family}-{i}": {"structure": f"{family} {tier}: {i}"}
        for tier in ("usual", "harder")
        for family in FAMILIES
        for i in range(12)
    }
    prompts = {tier: {name: [5] for name in rows if name.startswith(tier)} for tier in ("usual", "harder")}
    return Machine(sampler, Judge(), prompts, rows, folder, "base", 30, folder / "kept")  # type: ignore[arg-type]


def test_a_killed_command_asks_for_no_answer_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sampler = MadeUp()
    found = gates.answered(made_up(tmp_path, sampler), 64)
    assert sampler.asked == 72 * 64
    result = gates.verdict(found)
    assert {(r["problems"], r["answers"]) for r in result["gates"] if r["scope"] == "search"} == {(12, 12 * 64)}
    assert gates.answered(made_up(tmp_path, sampler), 64) == found
    assert sampler.asked == 72 * 64
    text = gates.table(json.loads(json.dumps({**result})))
    assert len(text.splitlines()) == 2 + len(GATES)
    assert "| pass@64 | usual | at least 70 % | 100.0 % |" in text


def test_gates_of_the_page_are_those_of_the_code() -> None:
    page = (Path(__file__).resolve().parents[2] / "docs" / "benchmarks" / "mixture.md").read_text()
    for gate in GATES:
        assert f"| {gate.name} | {gate.tier} | {gate.wanted} |" in page
