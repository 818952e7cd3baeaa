"""Six rounds on the real engines, as a run of weeks has them: killed four times, they end as six that were not killed.

Answers get longer by round, each round is measured, a stop rule ends the run, its limit is raised, and what comes after
is trained on one rank in place of two. All of it by `oapl run` against a real Prefect server.
"""

import json
import re
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from oapl_core.planning.measurements import deciding, measurements
from oapl_core.planning.plan import finished, steps
from oapl_core.run_folder.machines import TRAINED_ON
from oapl_core.run_folder.run import METRICS_FILE, Run
from oapl_core.training.speed import TIMED
from tests.prefect_server import PrefectServer
from tests.whole_run import content, kill_when, made_more_than_once, oapl, small_demo

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3600)]

ROUNDS = """[
    {problems = 24, training = {learning_rate = 1e-4}, epochs = 2},
    {problems = 32, training = {learning_rate = 1e-9}},
    {problems = 24, sampling = {max_tokens = 24}},
    {problems = 24, sampling = {max_tokens = 24}, epochs = 2},
    {problems = 16, sampling = {max_tokens = 32}},
    {problems = 16, sampling = {max_tokens = 48}},
]"""
"""The second teaches nothing: its evaluation, with the same seeds, brings no gain on any machine."""
LENGTHS, EPOCHS, RANKS = [20, 20, 24, 24, 32, 48], [2, 1, 1, 2, 1, 1], [2, 2, 1, 1, 1, 1]
CHANGES = {
    "rounds": ROUNDS,
    "pretrain.solutions": "data/demo/solutions.jsonl",
    "pretrain.epochs": 1,
    "sampling.max_tokens": 20,
    "training.learning_rate": 3e-4,
    "training.batch_size": 8,
    "training.save_steps": 1,
    "training.optimizer_state": "continued",  # the state passes from two ranks to one
    "training.warmup_share": 0,
    "training.floor_share": 1,
    "evaluation.every_rounds": 1,
    "evaluation.validation_samples": 4,
    "evaluation.heldout_samples": 2,
}
TWO_RANKS = ["training.processes=2", "stop.without_gain=1"]
ONE_RANK = ["training.processes=1", "stop.without_gain=4"]
NO_RULE = ["training.processes=1"]
NO_GAIN = "stopped as 1 evaluations brought no gain (stop.without_gain = 1); raise the limit first"
STOPPED_AFTER = "round 1: interim evaluation"


class Story:
    """One run in a folder of its own, told by commands."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True)
        self.folder, self.root = folder, folder / "runs" / "demo-seed0"
        # without the demo's own rounds, which the list replaces
        replaced = ("rounds.", "cache_dir=", *CHANGES)
        kept = [one for one in small_demo(folder, train=96, validation=40) if not one.startswith(replaced)]
        changes = {"cache_dir": folder.parent / "cache", **CHANGES}  # the base model is made once
        self.arguments = ["run", *kept, *(f"{key}={value}" for key, value in changes.items())]
        self.said, self.finished_at_stop, self.status_at_stop = list[str](), list[str](), ""

    @property
    def run(self) -> Run:
        return Run.open(self.root)

    def go(self, *settings: str) -> None:
        self.said.append(oapl([*self.arguments, *settings]))

    def go_until_a_rule_stops_it(self) -> None:
        self.go(*TWO_RANKS)
        self.finished_at_stop = [step.title for step in finished(self.run)]
        self.status_at_stop = " ".join(oapl(["status", str(self.root)]).split())

    def go_to_the_end(self) -> None:
        """With the highest limit that there is; a run that reaches it again, as so small ones may, goes without."""
        self.go(*ONE_RANK)
        if self.run.ledger.stop():
            self.go(*NO_RULE)

    def kill(self, settings: list[str], moment: Callable[[], bool]) -> None:
        log = self.folder / "killed.log"
        kill_when([*self.arguments, *settings], log, moment)
        self.said.append(log.read_text())

    def in_training(self, number: int) -> bool:
        """Whether a round has made a step and is not trained."""
        folder = self.root / f"round_{number:02}" / "4_checkpoint" / "oapl"
        return any(int(state.name[-6:]) for state in (folder / "state").glob("epoch_*"))


def undisturbed(folder: Path) -> Story:
    story = Story(folder)
    story.go_until_a_rule_stops_it()
    story.go_to_the_end()
    return story


def disturbed(folder: Path) -> Story:
    story = Story(folder)
    parts, answers = story.root / "round_01" / "1_rollouts", story.root / "round_02" / "5_evaluation"
    story.kill(TWO_RANKS, lambda: story.in_training(0))
    assert not is_trained(story.run, 0)
    story.kill(TWO_RANKS, lambda: any(parts.glob("part-*.parquet")))
    assert len(list(parts.glob("part-*.parquet"))) < 4, "in the middle of sampling"
    story.go_until_a_rule_stops_it()
    story.kill(ONE_RANK, lambda: any(answers.rglob("part-*.parquet")))
    assert not list(answers.glob("*.json")), "in the middle of the evaluation"
    story.kill(ONE_RANK, lambda: story.in_training(3))
    assert not is_trained(story.run, 3)
    story.go_to_the_end()
    return story


def is_trained(run: Run, number: int) -> bool:
    return run.name(run.checkpoint(number, EPOCHS[number])) in run.ledger.artifacts()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PrefectServer]:
    server = PrefectServer(tmp_path_factory.mktemp("server"))
    with pytest.MonkeyPatch.context() as patch:
        for name in ("PREFECT_API_URL", "PREFECT_HOME"):
            patch.setenv(name, server.environment[name])
        patch.setenv("OMP_NUM_THREADS", "1")  # two ranks share two cores
        try:
            server.start_server()
            yield server
        finally:
            server.close()


@pytest.fixture(scope="module")
def stories(server: PrefectServer, tmp_path_factory: pytest.TempPathFactory) -> tuple[Story, Story]:
    folder = tmp_path_factory.mktemp("weeks")
    Story(folder / "base model").go("--until", "base-model")
    # at once: most of a small stage is one thread that imports
    with ThreadPoolExecutor() as pool:
        told = pool.submit(undisturbed, folder / "undisturbed"), pool.submit(disturbed, folder / "disturbed")
        return told[0].result(), told[1].result()


def test_killed_four_times_every_number_is_that_of_the_run_that_was_not(stories: tuple[Story, Story]) -> None:
    expected, found = (story.run for story in stories)
    for run in (expected, found):
        assert finished(run) == list(steps(run.config))
        assert made_more_than_once(run) == ["report"], "once with each number; finished parts are not redone"
    ours, theirs = found.ledger.artifacts(), expected.ledger.artifacts()
    assert sorted(ours) == sorted(theirs)
    # rows as they were sampled and judged, and the hash of every checkpoint's weights
    compared = [name for name in ours if name not in ("report", "base_model.json")]
    gone = {name: entry.sha256 for name, entry in found.ledger.removals().items()}
    assert len(gone) == 5, "what the optimiser left to each next round"
    assert gone == {name: entry.sha256 for name, entry in expected.ledger.removals().items()}
    assert not [
        name for name in compared if name not in gone and content(found, ours[name]) != content(expected, theirs[name])
    ]
    groups = [found.name(found.groups(number)) for number in range(6)]
    assert [ours[name].sha256 for name in groups] == [theirs[name].sha256 for name in groups]
    assert list(measurements(found)) == list(measurements(expected))
    assert [number for number, _ in deciding(found)] == [0, 1, 2, 3, 4]


def test_every_step_was_made_once_with_the_numbers_of_the_other_run(stories: tuple[Story, Story]) -> None:
    expected, found = (story.run for story in stories)
    for number in range(6):
        assert steps_of(found, number) == steps_of(expected, number)
        assert [step["step"] for step in steps_of(found, number)] == list(range(1, len(steps_of(found, number)) + 1))
        assert {step["ranks"] for step in steps_of(found, number)} == {RANKS[number]}
        spans = [trained_on(run, number) for run in (found, expected)]
        assert spans[0] == spans[1]
        assert sum(span["last"] - span["first"] + 1 for span in spans[0]) == len(steps_of(found, number))


def steps_of(run: Run, number: int) -> list[dict[str, Any]]:
    """Metrics of a round's steps, without the clock."""
    files = [run.checkpoint(number, epoch) / METRICS_FILE for epoch in range(1, EPOCHS[number] + 1)]
    lines = [json.loads(line) for file in files for line in file.read_text().splitlines()]
    return [{key: value for key, value in line.items() if key not in TIMED} for line in lines]


def trained_on(run: Run, number: int) -> list[dict[str, int]]:
    """Spans of steps in the ledger."""
    made = run.ledger.artifacts()
    entries = [made[run.name(run.checkpoint(number, epoch))] for epoch in range(1, EPOCHS[number] + 1)]
    return [span for entry in entries for span in entry.details[TRAINED_ON]]


def test_a_rule_stopped_both_at_one_place_and_a_higher_limit_let_them_continue(stories: tuple[Story, Story]) -> None:
    for story in stories:
        every = [step.title for step in steps(story.run.config)]
        assert story.finished_at_stop == every[: every.index(STOPPED_AFTER) + 1]
        assert NO_GAIN in story.status_at_stop
        assert story.run.ledger.stop() is None, "and it ended"
        (_, first), (_, second), *_ = deciding(story.run)
        assert first == second, "the rule was right"


def test_prefect_shows_what_stopped_as_finished(server: PrefectServer, stories: tuple[Story, Story]) -> None:
    found = server.post("/flow_runs/filter", sort="START_TIME_ASC")
    states = [
        [one["state"] for one in found if one["parameters"]["experiment"] == str(story.root)] for story in stories
    ]
    stopped, ended, killed = ("COMPLETED", "Stopped"), ("COMPLETED", "Completed"), ("RUNNING", "Running")
    whole, parted = [[(one["type"], one["name"]) for one in run] for run in states]
    assert (whole[0], whole[-1]) == (stopped, ended)
    assert parted == [killed, killed, stopped, killed, killed, *whole[1:]]
    for run in states:
        first = next(one for one in run if one["name"] == "Stopped")
        assert NO_GAIN in first["message"]


def test_the_kills_were_in_the_middle_and_cost_no_saved_step(stories: tuple[Story, Story]) -> None:
    _, story = stories
    killed_in_training, killed_in_sampling, stopped, killed_in_evaluation, killed_again, continued, *_ = story.said
    within = r"training round {}: ready in \d+ s, epochs done: (0 of 2, and [1-9]|1 of 2)"
    assert re.search(within.format(0), killed_in_sampling), "it continues on two ranks after the last saved step"
    assert re.search(within.format(3), continued), "and on one"
    for log, title in (
        (killed_in_training, "round 0: training"),
        (killed_in_sampling, "round 1: sampling"),
        (killed_in_evaluation, "round 2: interim evaluation"),
        (killed_again, "round 3: training"),
    ):
        begun = re.findall(r"(round \d: [a-z ]+|base model|problems and prompts): starting", log)
        assert begun[-1] == title
    assert "continues there" in stopped


def test_each_round_sampled_at_the_length_that_it_was_given(stories: tuple[Story, Story]) -> None:
    _, story = stories
    for number, length in enumerate(LENGTHS):
        rows = pl.read_parquet(story.run.rollouts(number) / "*.parquet")
        assert rows["max_tokens"].unique().to_list() == [length]
    report = (story.run.report / "report.md").read_text()
    assert "## Measured during the run" in report
