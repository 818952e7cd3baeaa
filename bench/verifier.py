"""The verifier's speed beside LiveCodeBench's checker, and without isolation: ``python -m bench.verifier``.

    --livecodebench DIR   a checkout of LiveCodeBench (or OAPL_LCB=DIR); without it the comparison is left out
    --maths FILE          JSON lines with an "answer" each, such as MATH-500 (or OAPL_MATHS=FILE); the same
    --only PART ...       programs, cpu, verdicts, isolation, maths
    --scale N             N times as many answers; --repeats N: measurements of each, sides alternating

Both sides judge the same programs, all different, with the same tests on two processes, after a warm-up. Prints one
line for each measurement: best and median of the repeats, and every verdict that differs.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from bench import bare, bench_programs
from bench.bench_programs import Case
from bench.livecodebench import HOW_TO_GET_IT, Checker
from oapl_core.sandbox import Limits, Program
from oapl_core.sandbox.sandbox import Sandbox
from oapl_core.settings.verifier import VerifierConfig
from oapl_core.verdicts.outcomes import Outcome
from oapl_core.verdicts.verifier import Verifier
from oapl_core.verdicts.workers.maths_pool import MathsPool

WORKERS = 2
PARTS = ("programs", "cpu", "verdicts", "isolation", "maths")
TRIVIAL = "print(sum(map(int, input().split())))"
BLOW_UPS = ("9^{9^{9^9}}", "\\binom{1000000000}{500000000}", "7^{10^{12}}", "(10^9)!", "2^{2^{40}} + 1")

Judge = Callable[[Sequence[Case]], tuple[list[bool], float]]
"""Whether each answer passes, and the seconds that took."""


@dataclass(frozen=True)
class Pair:
    """Answers per second of both sides, one number for each repeat."""

    ours: list[float]
    theirs: list[float]

    def __str__(self) -> str:
        best = max(self.ours) / max(self.theirs)
        ratio = statistics.median(self.ours) / statistics.median(self.theirs)
        return f"{_rates(self.ours)} against {_rates(self.theirs)}: {best:.1f}x at best, {ratio:.1f}x in the median"


def _rates(rates: list[float]) -> str:
    return f"{max(rates):.1f}/s (median {statistics.median(rates):.1f})"


def spread(milliseconds: Sequence[float]) -> str:
    """Median and 99th percentile."""
    ordered = sorted(milliseconds)
    return f"median {statistics.median(ordered):.2f} ms, p99 {ordered[int(0.99 * len(ordered))]:.2f} ms"


def our_judge(verifier: Verifier) -> Judge:
    """The verifier as the verify stage uses it: responses in, verdicts out."""

    def judge(cases: Sequence[Case]) -> tuple[list[bool], float]:
        start = time.perf_counter()
        responses = [case.response for case in cases]
        verdicts = verifier.verify([case.problem for case in cases], responses, ["stop"] * len(cases))
        seconds = time.perf_counter() - start
        assert all(verdict.outcome is not Outcome.VERIFIER_ERROR for verdict in verdicts)
        return [verdict.outcome is Outcome.PASSED for verdict in verdicts], seconds

    return judge


def compare(cases: Sequence[Case], ours: Judge, theirs: Judge, repeats: int) -> tuple[Pair, list[str]]:
    """Judges `cases` on both sides in turn; returns the rates and one line for each verdict that differs."""
    pair, differences = Pair([], []), dict[str, None]()
    for _ in range(repeats):
        (our_verdicts, our_s), (their_verdicts, their_s) = ours(cases), theirs(cases)
        pair.ours.append(len(cases) / our_s)
        pair.theirs.append(len(cases) / their_s)
        for case, mine, other in zip(cases, our_verdicts, their_verdicts, strict=True):
            if mine != other:
                who = "the checker errs" if mine == case.passes else "WE ERR"
                differences[f"{case.name}: ours {_word(mine)}, the checker {_word(other)} ({who})"] = None
    return pair, list(differences)


def _word(passes: bool) -> str:
    return "passed" if passes else "failed"


def programs(ours: Judge, theirs: Judge, repeats: int, scale: int) -> None:
    """Short programs with 1, 5 and 40 tests."""
    for tests in (1, 5, 40):
        cases = bench_programs.short(200 * scale, tests, seed=tests)
        pair, differences = compare(cases, ours, theirs, repeats)
        report(f"{len(cases)} short programs, {tests} tests each", pair, differences)


def cpu(ours: Judge, theirs: Judge, repeats: int, scale: int) -> None:
    """Programs of about a second of CPU. The checker makes a function of every program with standard input: top-level
    code runs faster than in a file, and `global` does not work. So both forms are measured."""
    for in_function, where in ((True, "a function"), (False, "top-level code")):
        pair, differences = compare(bench_programs.cpu_bound(8 * scale, in_function), ours, theirs, repeats)
        report(f"CPU-bound programs, the loop in {where}", pair, differences)


def verdicts(ours: Judge, theirs: Judge, repeats: int, scale: int) -> None:
    """The edges of the rules, and what the checker is known to misjudge."""
    cases = bench_programs.known_differences()
    _, differences = compare(cases, ours, theirs, 1)
    report(f"{len(cases)} programs around the edges of the rules", None, differences)


def report(what: str, pair: Pair | None, differences: list[str]) -> None:
    """Prints a measurement."""
    print(f"{what}: {pair or 'verdicts only'}; {len(differences)} verdicts differ", flush=True)
    for line in differences:
        print(f"    {line}", flush=True)


def isolation(repeats: int, scale: int) -> dict[str, float]:
    """One trivial program after the other on one process, in five ways; returns the medians in milliseconds."""
    rounds, count = 4 * repeats, 50 * scale
    found: dict[str, list[float]] = {}
    with ExitStack() as stack:
        unconfined = bare.BareServer()
        stack.callback(unconfined.close)
        sandboxes = {level: stack.enter_context(Sandbox(1, level=level)) for level in ("full", "fallback")}
        ways: dict[str, Callable[[], list[float]]] = {
            "python -I -S as a subprocess": lambda: bare.subprocess_ms(TRIVIAL, b"1 2\n", count // 5),
            "bare fork + exec in a warmed interpreter": lambda: bare.fork_ms(TRIVIAL, b"1 2\n", count),
            "the fork server without isolation": lambda: [_bare_server_ms(unconfined) for _ in range(count)],
            "the sandbox, full level": lambda: [_sandbox_ms(sandboxes["full"]) for _ in range(count)],
            "the sandbox, fallback level": lambda: [_sandbox_ms(sandboxes["fallback"]) for _ in range(count)],
        }
        for number in range(rounds + 1):
            for name, way in ways.items():
                times = way()
                if number:  # the first round warms up
                    found.setdefault(name, []).extend(times)
    for name, times in found.items():
        print(f"{name}: {spread(times)}", flush=True)
    medians = {name: statistics.median(times) for name, times in found.items()}
    full = medians["the sandbox, full level"]
    for name in list(medians)[:3]:
        print(f"the sandbox, full level / {name}: {full / medians[name]:.2f}x", flush=True)
    return medians


def _bare_server_ms(server: bare.BareServer) -> float:
    start = time.perf_counter()
    (execution,) = server.executions(Program(TRIVIAL), [b"1 2\n"], Limits())
    assert execution.stdout == b"3\n"
    return 1000 * (time.perf_counter() - start)


def _sandbox_ms(sandbox: Sandbox) -> float:
    start = time.perf_counter()
    (execution,) = sandbox.executions(Program(TRIVIAL), [b"1 2\n"], Limits())
    assert execution.stdout == b"3\n"
    return 1000 * (time.perf_counter() - start)


def maths(path: Path, repeats: int) -> dict[str, int]:
    """math-verify's word on every pair (no shortcut for identical text), in fresh workers each time.

    Returns how many pairs of each kind are equal.
    """
    found = {}
    golds = [json.loads(line)["answer"] for line in path.read_text().splitlines()]
    same, perturbed = [(gold, gold) for gold in golds], [(gold, f"{gold} + 1") for gold in golds]
    mixed = list(perturbed)
    for number, answer in enumerate(BLOW_UPS):
        mixed.insert(90 * number + 40, ("1", answer))
    for name, pairs in (("gold against itself", same), ("gold against gold + 1", perturbed), ("and blow-ups", mixed)):
        rates, milliseconds, equal, slow = [], list[float](), 0, 0
        for _ in range(1 if pairs is mixed else repeats):
            pool = MathsPool(WORKERS)
            try:
                times, replies, seconds = _maths_times(pool, pairs)
            finally:
                pool.close()
            rates.append(len(pairs) / seconds)
            milliseconds += times
            equal, slow = sum(reply["equal"] is True for reply in replies), pool.too_slow
        found[name] = equal
        verdicts = f"{equal} of {len(pairs)} equal, {slow} ran out of time"
        print(f"maths, {name}: {_rates(rates)}, {spread(milliseconds)}, max {max(milliseconds):.0f} ms; {verdicts}")
    return found


def _maths_times(pool: MathsPool, pairs: list[tuple[str, str]]) -> tuple[list[float], list[dict[str, bool]], float]:
    times: list[float] = []

    def judge(pair: tuple[str, str]) -> dict[str, bool]:
        start = time.perf_counter()
        reply = pool.judge(*pair)
        times.append(1000 * (time.perf_counter() - start))
        return reply

    in_order = Sandbox(WORKERS).stream  # nothing is started: only its ordered stream over threads
    list(in_order(judge, [("1/2", f"1/{n}") for n in range(8 * WORKERS)]))
    times.clear()
    start = time.perf_counter()
    replies = list(in_order(judge, pairs))
    return times, replies, time.perf_counter() - start


def side_by_side(checkout: Path, parts: Sequence[str], repeats: int, scale: int) -> None:
    """Everything that needs LiveCodeBench."""
    measures = {"programs": programs, "cpu": cpu, "verdicts": verdicts}
    with Checker(checkout) as checker, Verifier(VerifierConfig(workers=WORKERS), reuse_identical=False) as verifier:
        ours = our_judge(verifier)

        def theirs(cases: Sequence[Case]) -> tuple[list[bool], float]:
            return checker.judge(cases, WORKERS)

        warm_up = bench_programs.short(40, 5, seed=-1)
        ours(warm_up)
        theirs(warm_up)
        print(f"sandbox level {verifier.sandbox_level}, {WORKERS} processes on each side", flush=True)
        for part in parts:
            measures[part](ours, theirs, repeats, scale)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--livecodebench", type=Path, default=os.environ.get("OAPL_LCB"))
    parser.add_argument("--maths", type=Path, default=os.environ.get("OAPL_MATHS"))
    parser.add_argument("--only", nargs="+", choices=PARTS, default=PARTS)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--scale", type=int, default=1)
    options = parser.parse_args()
    beside = [part for part in options.only if part in ("programs", "cpu", "verdicts")]
    if beside and options.livecodebench is None:
        print(f"left out: {', '.join(beside)}; they need LiveCodeBench: {HOW_TO_GET_IT}")
    elif beside:
        side_by_side(Path(options.livecodebench), beside, options.repeats, options.scale)
    if "isolation" in options.only:
        isolation(options.repeats, options.scale)
    if "maths" in options.only and options.maths is None:
        print("left out: maths; it needs --maths FILE or OAPL_MATHS=FILE, JSON lines with an answer each")
    elif "maths" in options.only:
        maths(Path(options.maths), options.repeats)


if __name__ == "__main__":
    main()
