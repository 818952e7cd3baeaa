"""Assets: what is recorded while a flow works, once, with its inputs; what was there before is none."""

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest

from oapl_core.errors import StageFailed
from oapl_core.run_folder.following import follow
from oapl_core.run_folder.recorded import IMPORTED, POLICIES
from oapl_core.run_folder.run import Run
from oapl_extras.prefect_pages.assets import Assets
from tests.synthetic_run import write_synthetic_run

NAME = "prefect.asset.materialization.succeeded"


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """What Prefect's own code hands to its client."""
    found: list[dict[str, Any]] = []
    monkeypatch.setattr("prefect.events.emit_event", lambda **event: found.append(event))
    return found


def made(sent: list[dict[str, Any]]) -> Mapping[str, dict[str, Any]]:
    events = [event for event in sent if event["event"] == NAME]
    by_key = {event["resource"]["prefect.resource.id"]: event for event in events}
    assert len(by_key) == len(events), "each once"
    return by_key


def materialised(run: Run, tell: Callable[[str], None]) -> AbstractContextManager[None]:
    return follow(run, {"assets": Assets(run, tell)}, tell, look_every_s=60)


def record(run: Run, path: Path, inputs: list[Path], **details: Any) -> None:
    with run.writing(path, run.inputs(inputs), {}) as draft:
        draft.path.write_text("made")
        draft.rows, draft.details = 3, details


def test_what_is_made_is_told_with_what_it_was_made_from(tmp_path: Path, sent: list[dict[str, Any]]) -> None:
    run = write_synthetic_run(tmp_path, until="problems")
    outside = tmp_path / "a model's folder"
    outside.write_text("x")
    lines: list[str] = []
    with pytest.raises(StageFailed), materialised(run, lines.append):
        record(run, run.groups(0), [run.prompts, outside])
        record(run, run.checkpoint(1, 2), [run.groups(0)], policy_hash="abc")
        record(run, run.rollouts(0) / "part-00000.parquet", [], **{IMPORTED: "theirs", POLICIES: ["x", "y"]})
        raise StageFailed("later, which takes nothing away")
    found, root = made(sent), f"oapl://{run.root.name}"
    groups, checkpoint = f"{root}/round_00/3_groups.parquet", f"{root}/round_01/4_checkpoint/oapl/epoch_02"
    assert set(found) == {groups, checkpoint, f"{root}/round_00/1_rollouts/part-00000.parquet"}
    entry = run.ledger.artifacts()["round_00/3_groups.parquet"]
    payload = found[groups]["payload"]
    assert (payload["rows"], payload["sha256"], payload["inputs"]) == (3, entry.sha256, entry.inputs)
    related = {(one["prefect.resource.id"], one["prefect.resource.role"]) for one in found[groups]["related"]}
    file = f"file://{tmp_path}/a-model-s-folder"
    assert related == {(f"{root}/prompts.parquet", "asset"), (file, "asset"), ("oapl", "asset-materialized-by")}
    assert found[checkpoint]["resource"]["prefect.resource.name"].startswith("checkpoint ")
    told = found[checkpoint]["payload"]
    assert (told["policy_hash"], told["model"]) == ("abc", f"{run.root}:round_01/epoch_02")
    assert found[f"{root}/round_00/1_rollouts/part-00000.parquet"]["payload"]["policy_hash"] == "x, y"
    assert lines == []


def test_what_was_made_again_is_told_again_and_what_was_not_is_none(tmp_path: Path, sent: list[dict[str, Any]]) -> None:
    run = write_synthetic_run(tmp_path, until="problems")
    with materialised(run, print):
        pass
    assert sent == []
    with materialised(run, print):
        record(run, run.problems, [])
    assert set(made(sent)) == {f"oapl://{run.root.name}/problems.parquet"}


def test_an_input_named_from_the_folder_of_the_start_leads_there(
    tmp_path: Path, sent: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    model = Path("models/other")
    model.mkdir(parents=True)
    made_run = write_synthetic_run(Path("elsewhere"), until="problems")
    (made_run.root / "logs/unrecorded.txt").write_text("x")
    for root in (made_run.root, made_run.root.absolute()):  # named from here, and by its whole path
        run = Run.open(root)
        sent.clear()
        with materialised(run, print):
            record(run, run.checkpoint(0, 1), [model, run.root / "logs/unrecorded.txt", run.prompts])
        related = {one["prefect.resource.id"] for event in made(sent).values() for one in event["related"]}
        files = {key for key in related if key.startswith("file://")}
        inside = f"file://{made_run.root.absolute()}/logs/unrecorded.txt"
        assert files == {f"file://{tmp_path}/models/other", inside}
