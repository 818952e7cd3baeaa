"""Parts in a folder: a part that two processes made is finished by both, and nothing of it is left."""

import fcntl
from pathlib import Path

import pytest

from oapl_core.run_folder.parts import FolderParts
from oapl_core.run_folder.run import IN_FLIGHT, Run
from tests.core.verdicts.test_verify import made_run


def parts_of(run: Run) -> FolderParts:
    return FolderParts(run, lambda part: run.is_done(part, {}, {}))


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
