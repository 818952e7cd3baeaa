"""A stage that is made again finds nothing of its own and loses nothing; what comes out as before reopens nothing."""

import json
from pathlib import Path

import pytest

from oapl_core.changing.redoing import Again, put_aside
from oapl_core.errors import ConfigError
from oapl_core.planning.plan import finished, steps
from oapl_core.rollouts.generate import generate
from oapl_core.run_folder.checking import findings
from oapl_core.run_folder.ledger import StageEntry
from oapl_core.run_folder.run import Run
from tests.sampling_run import MadeUpSampler, made_up_model, make_run
from tests.synthetic_run import Sizes, write_synthetic_run

SIZES = Sizes(train=6, validation=3, heldout=3, group=2, samples=2, epochs=(1, 2))


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return write_synthetic_run(tmp_path, SIZES)


def silent(_: str) -> None:
    """Say nothing."""


def titles(run: Run) -> list[str]:
    return [step.title for step in finished(run)]


def test_only_the_stage_itself_is_put_aside_and_nothing_is_lost(run: Run) -> None:
    before = {p.relative_to(run.root): p.read_bytes() for p in run.root.rglob("*.parquet")}
    lines = run.ledger.path.read_text()
    moved = put_aside(run, Again("groups", 0), silent)
    assert moved == ["round_00/3_groups.parquet"]
    assert titles(run) == ["problems and prompts", "round 0: sampling", "round 0: verification"]
    after = {p.relative_to(run.root): p.read_bytes() for p in run.root.rglob("*.parquet")}
    aside = Path("superseded/001/round_00/3_groups.parquet")
    assert after.keys() - before.keys() == {aside}
    assert after[aside] == before[Path("round_00/3_groups.parquet")]
    assert run.ledger.path.read_text().startswith(lines), "the ledger only grows"
    last = json.loads(run.ledger.path.read_text().splitlines()[-1])
    assert (last["kind"], last["moved_to"]) == ("supersession", aside.as_posix())
    assert not [finding for finding in findings(run) if finding.wrong], "what was put aside is no damage"


def test_what_comes_out_as_before_reopens_nothing_after_it(run: Run) -> None:
    from oapl_core.groups.build import build

    everything = [*titles(run)]
    put_aside(run, Again("groups", 0), silent)
    build(run, 0)
    assert titles(run) == everything
    assert run.ledger.artifacts()["round_00/3_groups.parquet"]


def test_from_a_stage_on_everything_is_put_aside(run: Run) -> None:
    put_aside(run, Again("training", 0, and_all_after=True), silent)
    assert titles(run)[-1] == "round 0: groups"
    assert not any(name.startswith(("round_01", "round_00/4")) for name in run.ledger.artifacts())
    assert {p.name for p in (run.root / "superseded" / "001").iterdir()} == {"round_00", "round_01"}
    put_aside(run, Again("groups", 0), silent)
    assert {p.name for p in (run.root / "superseded").iterdir()} == {"001", "002"}, "a later redo has its own folder"


def test_without_a_round_the_newest_that_was_begun_is_meant(run: Run, tmp_path: Path) -> None:
    assert put_aside(run, Again("verification"), silent)[0].startswith("round_01/2_verdicts/")
    fresh = make_run(tmp_path / "fresh", made_up_model(tmp_path / "model"))
    assert put_aside(fresh, Again("training"), silent) == []
    assert [step.round for step in Again("training").steps_of(fresh)] == [0]


def test_sampling_again_asks_for_every_answer_again(tmp_path: Path) -> None:
    run = make_run(tmp_path / "runs", made_up_model(tmp_path / "model"))
    generate(run, 0, MadeUpSampler)
    pieces = run.rollouts(0) / ".in_flight" / "part-00000"
    pieces.mkdir(parents=True)
    (pieces / "x.piece").write_text("an answer that was never recorded")
    put_aside(run, Again("sampling", 0), silent)
    assert not pieces.exists()
    sampler = MadeUpSampler(run.policy(0), run.config.engine)
    generate(run, 0, lambda *_: sampler)
    assert len(sampler.answered) == 14
    assert len(list((run.root / "superseded").rglob("part-*.parquet"))) == 3


def test_training_again_goes_on_from_no_saved_state(run: Run) -> None:
    state = run.checkpoints(0) / "state" / "epoch_01_step_000001"
    state.mkdir(parents=True)
    put_aside(run, Again("training", 0), silent)
    assert not state.exists()


def test_a_kill_between_move_and_record_makes_the_artifact_again_too(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def die(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(type(run.ledger), "append", die)
        with pytest.raises(KeyboardInterrupt):
            put_aside(run, Again("groups", 0), silent)
    assert titles(run)[-1] == "round 0: verification"
    assert (run.root / "superseded/001/round_00/3_groups.parquet").exists()


@pytest.mark.parametrize(
    ("stage", "number", "says"),
    [
        ("sample", None, "is not a stage; they are problems-and-prompts, sampling, verification"),
        ("sampling", 2, "the experiment has rounds 0..1"),
        ("evaluation", 1, "belongs to no round"),
    ],
)
def test_what_is_no_stage_or_round_is_named(run: Run, stage: str, number: int | None, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        put_aside(run, Again(stage, number), silent)


def test_every_stage_of_the_plan_has_its_own_word(run: Run) -> None:
    run.ledger.append(StageEntry("reports.write", 1.0, 0))
    words = [step.word for step in steps(run.config)]
    assert len(dict.fromkeys(words)) == 7
    assert all(" " not in word for word in words)
