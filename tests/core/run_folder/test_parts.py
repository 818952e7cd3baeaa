"""Parts in a folder: a part that two processes made is finished by both, and nothing of it is left."""

import fcntl
import os
from pathlib import Path
from typing import ClassVar

import pytest

from oapl_core import plugins
from oapl_core.errors import ConfigError
from oapl_core.evaluation.evaluate import evaluate
from oapl_core.rollouts.generate import generate
from oapl_core.run_folder.parts import FolderParts, Wanted, lock, unlock
from oapl_core.run_folder.run import IN_FLIGHT, Run
from oapl_core.verdicts.verify import verify
from tests.core.evaluation.made_up_verifier import MadeUpVerifier
from tests.core.verdicts.test_verify import made_run
from tests.sampling_run import MadeUpSampler, made_up_model, make_run, train


def parts_of(run: Run) -> FolderParts:
    return FolderParts(Wanted(run, run.verdicts(0), lambda part: run.is_done(part, {}, {})))


def record(run: Run, part: Path) -> None:
    with run.writing(part, {}, {}) as draft:
        draft.path.write_text("judged")


def test_of_two_at_once_one_has_a_part_and_the_pieces_go_with_its_end(tmp_path: Path) -> None:
    run = made_run(tmp_path)
    part = run.verdicts(0) / "part-00000.parquet"
    with parts_of(run) as first, parts_of(Run.open(run.root)) as second:
        assert first.claim(part) and not second.claim(part)
        (first.in_flight(part) / "a piece").touch()
        record(run, part)
        first.finish(part)
        assert not second.claim(part), "it is made"
    assert list(run.verdicts(0).iterdir()) == [part]


def test_a_part_that_another_machine_made_and_cleared_meanwhile_is_finished_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = made_run(tmp_path)
    part, following = (run.verdicts(0) / f"part-0000{number}.parquet" for number in (0, 1))
    monkeypatch.setattr(fcntl, "flock", lambda _file, _kind: None)  # a file system that keeps it to each machine
    with parts_of(run) as here, parts_of(Run.open(run.root)) as elsewhere:
        assert here.claim(part) and elsewhere.claim(part)
        for run_folder, parts in ((run, here), (Run.open(run.root), elsewhere)):
            record(run_folder, part)
            parts.finish(part)
        assert elsewhere.claim(following), "the work goes on"
    assert [path for path in run.verdicts(0).iterdir() if path.name != IN_FLIGHT] == [part]
    assert part in parts_of(Run.open(run.root)).settled([part, following])


def test_a_folder_that_vanishes_while_it_is_made_is_no_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, made = tmp_path / IN_FLIGHT / "part-00000", os.mkdir
    folder.mkdir(parents=True)

    def found_and_gone(path: Path, mode: int = 0o777) -> None:
        if Path(path) == folder and folder.is_dir():
            folder.rmdir()  # its last holder, between mkdir's answer and the look whether it is a folder
            raise FileExistsError(path)
        made(path, mode)

    monkeypatch.setattr(os, "mkdir", found_and_gone)
    assert lock(folder) is None, "the part is asked for again"
    held = lock(folder)
    assert held is not None and lock(folder) is None
    unlock(folder, held)
    folder.write_text("no folder")
    with pytest.raises(NotADirectoryError):
        lock(folder)


class Counted(FolderParts):
    """A store of one's own, which notes what is claimed and finished in it."""

    noted: ClassVar[list[str]] = []

    def claim(self, part: Path) -> bool:
        is_won = super().claim(part)
        if is_won:
            self.noted.append(f"{part.parent.name} claimed")
        return is_won

    def finish(self, part: Path) -> None:
        super().finish(part)
        self.noted.append(f"{part.parent.name} finished")


def test_every_stage_with_parts_claims_them_in_the_store_of_its_settings(tmp_path: Path) -> None:
    name = f"{Counted.__module__}:Counted"
    stages = ("rollouts", "verdicts", "evaluation")
    fleet = {stage: {"runner": "here", "through": name} for stage in stages}
    run = make_run(tmp_path, made_up_model(tmp_path / "model"), rounds=[{}], fleet=fleet)
    noted = plugins.resolve("store", name).noted
    generate(run, 0, MadeUpSampler)
    assert sorted(noted) == ["1_rollouts claimed"] * 3 + ["1_rollouts finished"] * 3
    noted.clear()
    verify(run, 0)
    assert sorted(noted) == ["2_verdicts claimed"] * 3 + ["2_verdicts finished"] * 3
    noted.clear()
    train(run, [0])
    evaluate(run, MadeUpSampler, MadeUpVerifier(lambda _: 0.5))
    counts = {one: noted.count(one) for one in noted}
    assert len(counts) == 4, counts
    assert counts["1_rollouts claimed"] == counts["2_verdicts finished"] == len(noted) / 4


def test_a_store_that_nothing_has_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="there is no store 'reddis'; known are folder, mirror"):
        make_run(tmp_path, made_up_model(tmp_path / "model"), fleet={"rollouts": {"at": "a", "through": "reddis"}})


def test_the_older_word_for_the_folder_is_read(tmp_path: Path) -> None:
    fleet = {"rollouts": {"runner": "here", "through": "disk"}}
    run = make_run(tmp_path, made_up_model(tmp_path / "model"), fleet=fleet)
    assert run.config.fleet.machines("rollouts.generate").through == "folder"  # type: ignore[union-attr]
