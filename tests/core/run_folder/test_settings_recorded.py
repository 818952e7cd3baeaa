"""run.json is compared with what the ledger says of it: a changed setting is named, whoever changed it."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from oapl_core.changing.forking import fork, with_overrides
from oapl_core.errors import ConfigError, DataError, LedgerError
from oapl_core.run_folder.ledger import SettingsEntry
from oapl_core.run_folder.run import Run
from oapl_extras.remote.mirror import Mirror
from tests.extras.remote.test_mirror import sampled
from tests.synthetic_run import write_synthetic_run


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return write_synthetic_run(tmp_path)


def edit(root: Path, change: Callable[[Any], None]) -> None:
    content = json.loads((root / "run.json").read_text())
    change(content["config"])
    (root / "run.json").write_text(json.dumps(content))


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda c: c["training"].update(learning_rate=0.0007), r"training.learning_rate was 0.0003, now 0.0007"),
        (lambda c: c.update(seed=7), "seed was 0, now 7"),
        (lambda c: c["rounds"][1].update(epochs=2), "rounds.1.epochs was"),
        (lambda c: c.update(mirror="s3://elsewhere/runs"), "mirror was None, now 's3://elsewhere/runs'"),
        (lambda c: c["time_limits_h"].update(training=1.0), "time_limits_h.training was None, now 1.0"),
        (lambda c: c.pop("seed"), "seed was 0, now None"),
    ],
)
def test_a_changed_setting_is_named_at_every_opening(run: Run, change: Callable[[Any], None], says: str) -> None:
    edit(run.root, change)
    openings: list[Callable[[], Run]] = [
        lambda: Run.open(run.root),
        lambda: Run.of(run.config),
        lambda: Run.create(run.config),
    ]
    for opened in openings:
        with pytest.raises(DataError, match=says) as caught:
            opened()
        assert "\n" not in str(caught.value)
        assert "put that back, or delete this one file and give `oapl run` the experiment file" in str(caught.value)


def test_the_cure_works_and_does_not_take_other_settings(run: Run) -> None:
    edit(run.root, lambda c: c.update(seed=7))
    (run.root / "run.json").unlink()
    other = with_overrides(run.config, ["training.learning_rate=0.1"], "test")
    with pytest.raises(ConfigError, match=r"was started with other settings \(training.learning_rate was 0.0003"):
        Run.create(other)
    assert not (run.root / "run.json").exists()
    assert Run.create(run.config).config == run.config == Run.open(run.root).config


def test_what_may_change_is_recorded_when_it_does(run: Run) -> None:
    lines = run.ledger.path.read_bytes().count(b"\n")
    assert Run.create(run.config).ledger.path.read_bytes().count(b"\n") == lines, "nothing changed"
    for hours in (1, 2):
        changed = with_overrides(run.config, [f"time_limits_h.training={hours}"], "test")
        assert Run.open(Run.create(changed).root).config.time_limits_h.training == hours


def test_a_run_goes_on_with_another_number_of_ranks_but_not_with_another_rate(run: Run) -> None:
    changed = with_overrides(run.config, ["training.processes=4", "training.zero_stage=3"], "test")
    moved = Run.create(changed)
    assert Run.open(moved.root).config.training.processes == 4
    assert [entry.config["training"]["zero_stage"] for entry in moved.ledger.settings()][-1] == 3
    other = with_overrides(changed, ["training.processes=1", "training.learning_rate=0.1"], "test")
    with pytest.raises(ConfigError, match=r"other settings \(training.learning_rate was 0.0003, now 0.1\);"):
        Run.create(other)


def test_what_an_earlier_version_recorded_of_a_machine_unmakes_nothing(run: Run) -> None:
    training = run.config.training.slice
    assert "processes" not in training
    path = run.root / "made.txt"
    with run.writing(path, {}, {"training": {**training, "processes": 2, "zero_stage": 3}}) as draft:
        draft.path.write_text("made")
    assert run.is_done(path, {}, {"training": training})
    assert not run.is_done(path, {}, {"training": training | {"learning_rate": 0.1}})


def test_a_process_that_is_killed_between_the_line_and_the_file_leaves_a_run(run: Run) -> None:
    changed = with_overrides(run.config, ["time_limits_h.training=1"], "test")
    run.ledger.append(SettingsEntry.of(changed.model_dump(mode="json")))
    assert Run.open(run.root).config == run.config
    assert Run.open(Run.create(changed).root).config == changed


def test_runs_of_earlier_versions_open(run: Run) -> None:
    lines = run.ledger.path.read_bytes().splitlines(keepends=True)
    run.ledger.path.write_bytes(b"".join(line for line in lines if b'"kind": "settings"' not in line))
    edit(run.root, lambda c: c.pop("sampler"))
    assert Run.open(run.root).config == run.config
    assert Run.create(run.config).ledger.settings(), "from now on it is compared"


def test_a_damaged_line_is_not_taken_for_a_changed_file(run: Run) -> None:
    text = run.ledger.path.read_text()
    assert text.count('"learning_rate": 0.0003') == 1
    run.ledger.path.write_text(text.replace('"learning_rate": 0.0003', '"learning_rate": 0.0007'))
    with pytest.raises(LedgerError, match=r"ledger.jsonl: line 1 is not a ledger entry \(its settings are not those"):
        Run.open(run.root)


def test_a_fork_has_its_own(run: Run) -> None:
    made = fork(run, "forked", 1, ["training.learning_rate=0.1"]).run
    assert [entry.config["training"]["learning_rate"] for entry in made.ledger.settings()] == [0.1]
    assert Run.open(made.root).config.training.learning_rate == 0.1


def test_a_mirror_is_compared_too_and_what_was_fetched_opens(tmp_path: Path) -> None:
    run = sampled(tmp_path, f"file://{tmp_path}/mirror")
    copy = tmp_path / "mirror" / run.root.name
    Mirror(run.config.mirror or "", run.root.name).update(run)
    shutil.copytree(copy, tmp_path / "before")
    assert Mirror(f"file://{copy}").fetch(tmp_path / "here") == []
    assert Run.open(tmp_path / "here").config == run.config
    # sent before the ledger's line about it, when the sender was killed
    edit(copy, lambda c: c["time_limits_h"].update(training=1.0))
    assert Mirror(f"file://{copy}").fetch(tmp_path / "later") == []
    assert Run.open(tmp_path / "later").config.time_limits_h.training == 1.0
    edit(copy, lambda c: c.update(seed=7))
    with pytest.raises(DataError, match=r"run.json: is not what the ledger says \(seed was 3, now 7\)"):
        Mirror(f"file://{copy}").fetch(tmp_path / "hostile")


@pytest.mark.parametrize(
    "content", [b"\xff{}", b"{", b"[]", b'"a"', b'{"config": 5}', b'{"config": {}, "started_in": 3}']
)
def test_a_file_that_cannot_be_read_is_one_line_with_its_cure(run: Run, content: bytes) -> None:
    whole = (run.root / "run.json").read_bytes()
    for hurt in (content, whole[:100] + bytes([whole[100] | 0x80]) + whole[101:]):
        (run.root / "run.json").write_bytes(hurt)
        with pytest.raises(DataError, match=r"run.json: is not readable .*delete this one file and give `oapl run`"):
            Run.open(run.root)


def test_a_round_s_own_memory_may_change_as_the_run_s(run: Run) -> None:
    change = "rounds.1.training.tokens_per_micro_batch=7"
    assert (
        Run.create(with_overrides(run.config, [change], "test")).config.of_round(1).training.tokens_per_micro_batch == 7
    )


def test_other_settings_of_a_round_are_a_fork_whether_it_was_begun_or_not(run: Run) -> None:
    last = len(run.config.rounds) - 1
    with pytest.raises(
        ConfigError, match=f"round {last} was begun so, but a run keeps all .* --round {last} KEY=VALUE"
    ):
        Run.create(with_overrides(run.config, [f"rounds.{last}.training.learning_rate=0.1"], "test"))
    for name in [one for one in run.ledger.artifacts() if one.startswith(f"round_{last:02d}/")]:
        lines = run.ledger.path.read_text().splitlines(keepends=True)
        run.ledger.path.write_text("".join(line for line in lines if f'"{name}"' not in line))
    change = f"rounds.{last}.sampling.max_tokens=9"
    with pytest.raises(
        ConfigError, match=f"sampling.max_tokens was None, now 9\\); round {last} was not begun"
    ) as found:
        Run.create(with_overrides(run.config, [change], "test"))
    assert "\n" not in str(found.value)
    shared = fork(run, "longer", last, [change])
    assert shared.run.config.of_round(last).sampling.max_tokens == 9
    assert shared.run.config.of_round(0) == with_overrides(run.config, ["name=longer", change], "test").of_round(0)
