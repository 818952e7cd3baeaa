"""The mirror: whatever is interrupted or unreachable, a run that was recorded can be had back and goes on."""

import os
import random
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path

import polars as pl
import pytest

from oapl_core.errors import ConfigError, DataError
from oapl_core.rollouts.generate import generate
from oapl_core.run_folder.checking import findings
from oapl_core.run_folder.following import follow, made
from oapl_core.run_folder.ledger import RemovalEntry
from oapl_core.run_folder.run import Run
from oapl_extras.remote.mirror import Mirror
from oapl_extras.remote.object_store import ObjectStore
from tests.processes import started, wait_until
from tests.s3_server import s3_server
from tests.sampling_run import MadeUpSampler, made_up_model, make_run, train

ROOT = Path(__file__).parents[3]


def sampled(folder: Path, url: str, parts: int = 3) -> Run:
    """A run with rollouts, and a checkpoint folder."""
    prompts = {"train": [[5, i] for i in range(3 * parts)], "validation": [[6]], "heldout": [[7]]}
    run = make_run(folder, made_up_model(folder / "model"), prompts, mirror=url)
    generate(run, 0, MadeUpSampler)
    train(run, [0])
    return run


def whole(run: Run) -> bool:
    return not [finding for finding in findings(run) if finding.wrong]


def content(run: Run) -> dict[str, bytes]:
    return {name: (run.root / name).read_bytes() for name in run.ledger.artifacts() if (run.root / name).is_file()}


@pytest.fixture(scope="module")
def s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """``s3://runs/{}?...`` of a local server with the bucket ``runs``."""
    with s3_server(tmp_path_factory.mktemp("s3") / "log") as url:
        yield url


@pytest.fixture(params=["file", "s3", "path"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A fresh mirror on a disk, in an object store, and where a plain path leads."""
    if request.param == "s3":
        return str(request.getfixturevalue("s3")).format(tmp_path.name)
    return f"file://{tmp_path}/mirror" if request.param == "file" else f"{tmp_path}/mirror of runs"


def test_a_run_comes_back_as_it_was_and_nothing_is_redone(tmp_path: Path, url: str) -> None:
    run = sampled(tmp_path, url)
    Mirror(url, run.root.name).update(run)
    before, times = content(run), {path: path.stat().st_mtime_ns for path in run.rollouts(0).glob("part-*")}
    shutil.rmtree(run.root)
    assert Mirror(url, run.root.name).fetch(run.root) == []
    back = Run.open(run.root)
    assert whole(back)
    assert content(back) == before
    assert {path: path.stat().st_mtime_ns for path in times} == times
    sampler = MadeUpSampler(back.config.model or tmp_path, back.config.engine)
    generate(back, 0, lambda *_: sampler)
    assert sampler.answered == []


def mirrored(run: Run, tell: Callable[[str], None], look_every_s: float = 0.01) -> AbstractContextManager[None]:
    return follow(run, made(run, tell, ("mirror",)), tell, look_every_s)


def test_what_is_recorded_while_the_body_runs_is_there_when_it_ends(tmp_path: Path, url: str) -> None:
    run = make_run(tmp_path, made_up_model(tmp_path / "model"), mirror=url)
    with mirrored(run, print):
        generate(run, 0, MadeUpSampler)
    train(run, [0])
    with mirrored(run, print):
        pass
    shutil.rmtree(run.root)
    assert Mirror(url, run.root.name).fetch(run.root) == []
    assert whole(Run.open(run.root))


def test_a_folder_that_was_replaced_leaves_no_old_file(tmp_path: Path, url: str) -> None:
    run = make_run(tmp_path, made_up_model(tmp_path / "model"), mirror=url)
    mirror = Mirror(url, run.root.name)
    for names in (("a", "b"), ("a",)):
        with run.writing(run.checkpoint(0, 1), {}, {}) as draft:
            draft.path.mkdir()
            for name in names:
                (draft.path / name).write_text(name)
        mirror.update(run)
    shutil.rmtree(run.root)
    assert Mirror(url, run.root.name).fetch(run.root) == []
    assert [p.name for p in run.checkpoint(0, 1).iterdir()] == ["a"]


def test_an_optimisers_state_goes_there_too_when_it_was_used(tmp_path: Path, url: str) -> None:
    run = make_run(tmp_path, made_up_model(tmp_path / "model"), mirror=url)
    mirror = Mirror(url, run.root.name)
    state, checkpoint = run.optimizer_state(0), run.checkpoint(0, 1)
    for path in (state, checkpoint):
        with run.writing(path, {}, {}) as draft:
            draft.path.mkdir()
            (draft.path / "bytes").write_text("these")
    mirror.update(run)
    for number, (path, there) in enumerate(((checkpoint, True), (state, False))):
        entry = run.ledger.artifacts()[run.name(path)]
        run.ledger.append(RemovalEntry(entry.artifact, entry.sha256, entry.bytes, "test"))
        shutil.rmtree(path)
        Mirror(url, run.root.name).update(run)  # as another process would
        back = tmp_path / f"back-{number}"
        assert mirror.fetch(back) == []
        assert (back / run.name(path)).exists() == there, "what a person lets go here stays there"


COPY = """
import sys, time
from pathlib import Path
from oapl_core.run_folder.run import Run
from oapl_extras.remote import mirror
mirror._LEDGER_EVERY_S = 0.0  # else a copy of a few seconds has no ledger before its end
send = mirror.Mirror._send


def slowly(self, *given):
    time.sleep(600 if self._sent.count(b"\\n") >= 40 else 0.02)  # it is killed before its end, however late
    send(self, *given)


mirror.Mirror._send = slowly
run = Run.open(Path(sys.argv[1]))
mirror.Mirror(run.config.mirror, run.root.name).update(run)
"""


def has_lines(mirror: ObjectStore, lines: int) -> bool:
    """Whether so many lines of the ledger are there."""
    return (mirror.get("ledger.jsonl") or b"").count(b"\n") >= lines


@pytest.mark.parametrize("kind", [pytest.param("file", marks=pytest.mark.slow), "s3"])
def test_a_copy_killed_at_any_moment_is_a_whole_shorter_run_and_is_caught_up(
    tmp_path: Path, kind: str, request: pytest.FixtureRequest
) -> None:
    url = str(request.getfixturevalue("s3")).format(tmp_path.name) if kind == "s3" else f"file://{tmp_path}/mirror"
    run = sampled(tmp_path, url, parts=60)
    draw, there = random.Random(3), ObjectStore(Mirror(url, run.root.name)._store.url)
    for lines in (1, 10, 20):
        with started([sys.executable, "-c", COPY, run.root], cwd=ROOT):
            wait_until(partial(has_lines, there, lines))
            time.sleep(draw.uniform(0, 0.03))
        half = tmp_path / f"half-{lines}"
        assert Mirror(url, run.root.name).fetch(half) == []
        shorter = Run.open(half)
        assert whole(shorter)
        assert len(shorter.ledger.artifacts()) < len(run.ledger.artifacts()), "it was killed on the way"
    Mirror(url, run.root.name).update(run)
    back = tmp_path / "back"
    assert Mirror(url, run.root.name).fetch(back) == []
    assert content(Run.open(back)) == content(run)


def test_an_interrupted_fetch_goes_on_and_is_no_run_before_it_is_whole(tmp_path: Path) -> None:
    run = sampled(tmp_path, f"file://{tmp_path}/mirror")
    mirror = Mirror(run.config.mirror or "", run.root.name)
    mirror.update(run)
    back = tmp_path / "back"
    mirror.fetch(back)
    (back / "run.json").unlink()
    (back / "prompts.parquet").unlink()
    os.truncate(back / "round_00/1_rollouts/part-00001.parquet", 100)
    kept = (back / "round_00/1_rollouts/part-00000.parquet").stat().st_ino
    with pytest.raises(DataError, match="is not a run folder"):
        Run.open(back)
    assert mirror.fetch(back) == []
    assert whole(Run.open(back))
    assert (back / "round_00/1_rollouts/part-00000.parquet").stat().st_ino == kept
    with pytest.raises(DataError, match="holds a run already"):
        mirror.fetch(back)


def test_an_artifact_that_is_damaged_in_the_mirror_is_named_and_left_out(tmp_path: Path) -> None:
    run = sampled(tmp_path, f"file://{tmp_path}/mirror")
    mirror = Mirror(run.config.mirror or "", run.root.name)
    mirror.update(run)
    name = "round_00/1_rollouts/part-00001.parquet"
    os.truncate(tmp_path / "mirror" / run.root.name / name, 100)
    assert mirror.fetch(tmp_path / "back") == [name]
    back = Run.open(tmp_path / "back")
    assert [finding.name for finding in findings(back) if finding.wrong] == [name]


def test_a_damaged_artifact_does_not_replace_its_good_copy(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = sampled(tmp_path, f"file://{tmp_path}/mirror")
    part = run.rollouts(0) / "part-00001.parquet"
    os.truncate(part, 100)
    Mirror(run.config.mirror or "", run.root.name).update(run)
    assert "part-00001.parquet has 100 bytes instead of" in capsys.readouterr().out
    assert not (tmp_path / "mirror" / run.root.name / run.name(part)).exists()


def test_an_unreachable_store_is_said_once_stops_nothing_and_is_caught_up(tmp_path: Path) -> None:
    blocked = tmp_path / "disk"
    blocked.write_text("in the way")
    run = make_run(tmp_path, made_up_model(tmp_path / "model"), mirror=f"file://{blocked}/mirror")
    said: list[str] = []
    with mirrored(run, said.append):
        generate(run, 0, MadeUpSampler)
        time.sleep(0.2)
        assert len(said) == 1
        assert "does not take copies" in said[0]
        blocked.unlink()
    assert said[1:] == ["mirror: caught up"]
    assert Mirror(run.config.mirror or "", run.root.name).fetch(tmp_path / "back") == []


def test_a_store_that_stays_away_is_said_at_the_end(tmp_path: Path) -> None:
    (tmp_path / "disk").write_text("in the way")
    run = make_run(tmp_path, made_up_model(tmp_path / "model"), mirror=f"file://{tmp_path}/disk/mirror")
    said: list[str] = []
    with mirrored(run, said.append):
        pass
    assert "run the same command again to send the rest" in said[-1]


def test_two_runs_are_not_mixed(tmp_path: Path) -> None:
    run = sampled(tmp_path, f"file://{tmp_path}/mirror")
    Mirror(run.config.mirror or "", run.root.name).update(run)
    shutil.rmtree(run.root)
    other = sampled(tmp_path, run.config.mirror or "")
    with pytest.raises(ConfigError, match="another history"), mirrored(other, print):
        pass


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("s3://key:secret@bucket/runs", "holds credentials"),
        ("s3://bucket/runs?access_key=a&secret_key=b", "holds credentials"),
        ("nonsense://bucket", "nonsense:// is no store known here"),
        ("memory://run", "memory:// is no store known here"),
        ("https://host/runs", "https:// is no store known here"),
        ("s3://bucket/runs?endpoint_override=localhost:1", "`endpoint_override` is no option"),
        ("gs://bucket/runs?region=x", "`region` is no option"),
        ("file:///runs/../../etc", "is no whole path"),
        ("file://runs/mirror", "is no whole path"),
        ("/", "names no bucket or folder"),
        ("runs/mirror", "is not a URL"),
    ],
)
def test_a_url_that_cannot_serve_is_refused(url: str, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        Mirror(url)


def test_a_run_may_get_another_mirror_later(tmp_path: Path) -> None:
    run = make_run(tmp_path, made_up_model(tmp_path / "model"))
    elsewhere = run.config.model_copy(update={"mirror": f"file://{tmp_path}/mirror"})
    assert Run.open(Run.create(elsewhere).root).config.mirror == elsewhere.mirror


def test_polars_reads_a_table_from_the_mirror(tmp_path: Path, s3: str) -> None:
    run = sampled(tmp_path, s3.format("remote"))
    Mirror(run.config.mirror or "", run.root.name).update(run)
    options = {
        "aws_endpoint_url": s3.rpartition("=")[2],
        "aws_region": "us-east-1",
        "aws_allow_http": "true",
        "aws_access_key_id": "test",
        "aws_secret_access_key": "test",
    }
    where = f"s3://runs/remote/{run.root.name}/round_00/1_rollouts/part-00000.parquet"
    there = pl.scan_parquet(where, storage_options=options).select("rollout_id", "response_ids").collect()
    assert there.equals(pl.read_parquet(run.rollouts(0) / "part-00000.parquet", columns=there.columns))
