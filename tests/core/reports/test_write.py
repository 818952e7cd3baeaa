"""The report as files: complete, partial, hostile and broken runs."""

import json
import re
import subprocess
import sys
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import polars as pl
import pytest

from oapl_core import tables
from oapl_core.errors import DataError
from oapl_core.model_files.model_folder import policy_hash
from oapl_core.planning.plan import finished, steps
from oapl_core.reports.alarms import Alarm
from oapl_core.reports.sections.heldout import rollouts_spent
from oapl_core.reports.sections.training import METRIC_COLUMNS
from oapl_core.reports.write import write
from oapl_core.run_folder.recorded import IMPORTED, POLICIES
from oapl_core.run_folder.run import Run
from oapl_core.run_folder.run_record import RunRecord
from tests.synthetic_run import UNTIL, write_synthetic_run

FIGURES = {"pass_at_k.png", "samples_spent.png", "training.png", "dropped.png"}
ROUNDS = {"round_00.html", "round_01.html"}


class Page(HTMLParser):
    """Tags with attributes, and whether they close properly."""

    VOID = frozenset({"meta", "img", "link", "br", "hr", "input"})

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    made = write_synthetic_run(tmp_path_factory.mktemp("runs"))
    write(made)
    return made


@pytest.fixture(scope="module")
def html(run: Run) -> str:
    return (run.report / "index.html").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def markdown(run: Run) -> str:
    return (run.report / "report.md").read_text(encoding="utf-8")


def test_a_finished_run_has_page_markdown_and_every_figure(run: Run) -> None:
    assert {path.name for path in run.report.iterdir()} == FIGURES | ROUNDS | {"index.html", "report.md"}
    for name in FIGURES:
        assert (run.report / name).read_bytes().startswith(b"\x89PNG")


def test_the_page_is_well_formed_and_needs_no_network(html: str) -> None:
    page = Page(html)
    assert page.open == []
    links = [a.get("src") or a.get("href") or "" for _, a in page.tags if "src" in a or "href" in a]
    assert links
    assert all(link.startswith("#") or link in FIGURES | ROUNDS for link in links)
    assert "url(" not in html
    assert "@import" not in html


def test_every_figure_has_a_text_instead_of_it(html: str, markdown: str) -> None:
    images = [a for tag, a in Page(html).tags if tag == "img"]
    assert {a["src"] for a in images} == FIGURES
    assert all(len(a["alt"] or "") > 30 for a in images)
    assert set(re.findall(r"!\[.{30,}?\]\((.*?)\)", markdown)) == FIGURES


def test_every_link_of_the_page_has_its_target(html: str) -> None:
    tags = Page(html).tags
    links = {a["href"] or "" for tag, a in tags if tag == "a"}
    assert {link[1:] for link in links if link.startswith("#")} == {a["id"] for _, a in tags if "id" in a}


def test_model_text_is_shown_and_not_obeyed(html: str, markdown: str) -> None:
    assert "<script" not in html
    assert "&lt;script&gt;alert" in html
    assert "\x1b" not in html + markdown
    fences = re.findall(r"^(`{3,})text$", markdown, re.MULTILINE)
    assert max(map(len, fences)) == 7, "one longer than the six backticks of the model"


def test_numbers_are_aligned_right(html: str) -> None:
    assert re.search(r'<th style="text-align:right" scope="col">pass@1</th>', html)
    assert re.search(r'<td style="text-align:right">\d+\.\d %</td>', html)


def test_the_report_says_what_it_was_made_from(run: Run, html: str) -> None:
    for number, epoch in ((0, 1), (1, 1), (1, 2), (1, 3)):
        assert RunRecord(run).rounds[number].epochs[epoch] in html
    for text in (
        "training.learning_rate",
        "0.0003",
        "seed of the run: 0",
        "vllm 0.32.0",
        "python",
        "Where the time went",
    ):
        assert text.lower() in html.lower()


def test_an_unchanged_run_is_not_reported_twice_and_a_changed_one_is(tmp_path: Path) -> None:
    run = write_synthetic_run(tmp_path, until="training")
    write(run)
    before = run.ledger.path.read_bytes()
    write(run)
    assert run.ledger.path.read_bytes() == before
    with run.writing(run.root / "extra.json", {}, {}) as draft:
        draft.path.write_text("{}")
    write(run)
    assert run.ledger.path.read_bytes().count(b'"artifact": "report"') == 2


@pytest.mark.parametrize("until", UNTIL)
def test_a_run_that_got_anywhere_gets_a_report_that_says_what_is_missing(tmp_path: Path, until: str) -> None:
    run = write_synthetic_run(tmp_path, until=until)
    write(run)
    html = (run.report / "index.html").read_text(encoding="utf-8")
    assert ("This run is not finished" in html) == (until != "evaluation")
    details = run.ledger.artifacts()["report"].details
    assert details["complete"] == (until == "evaluation")
    missing = " ".join(details["missing"])
    for stage, word in {
        "rollouts": "rollouts",
        "verdicts": "verdicts",
        "groups": "groups",
        "evaluation": "evaluation",
    }.items():
        if UNTIL.index(until) < UNTIL.index(stage) and not (stage == "verdicts" and until == "problems"):
            assert word in missing


def test_a_jump_between_rounds_stands_at_the_head(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    line = "round 0 to round 1: answers went from 10 to 40 tokens"
    found = {1: [Alarm("suspicious-jump", line)]}
    monkeypatch.setattr("oapl_core.reports.sections.attention.alarms", lambda _record, number: found.get(number, []))
    made = write_synthetic_run(tmp_path)
    write(made)
    text = (made.report / "report.md").read_text()
    assert text.count(line) == 1
    assert text.index(line) < text.index("## ")


@pytest.mark.parametrize(("batch", "measured"), [(96, {}), (97, {}), (16, {"train": 3})])
def test_what_a_stage_warned_of_stands_at_the_head(tmp_path: Path, batch: int, measured: dict[str, int]) -> None:
    made = write_synthetic_run(tmp_path)
    training = made.config.training.model_copy(update={"batch_size": batch})
    run = Run(made.root, made.config.model_copy(update={"training": training}))
    run.record()
    if measured:
        entry = run.ledger.artifacts()["problems.parquet"]
        details = {"left_out": {**measured, "first": ["train-1", "heldout-1"]}}
        run.ledger.append(replace(entry, details=details))
    write(run)
    head = (run.report / "report.md").read_text().partition("## ")[0].replace("\\", "")
    assert head.count("batch_size = 97 is more than the 96 sequences of round") == 2 * (batch == 97)
    assert head.count("has the same statement: 3 of train (first: 'train-1'") == bool(measured)


def test_an_empty_run_folder_gets_a_report(tmp_path: Path) -> None:
    config = write_synthetic_run(tmp_path / "made", until="problems").config
    run = Run.create(config.model_copy(update={"runs_dir": tmp_path / "empty"}))
    write(run)
    assert "problems and prompts" in (run.report / "index.html").read_text(encoding="utf-8")


def test_a_partial_report_does_not_count_as_the_finished_one(tmp_path: Path) -> None:
    """Otherwise a run that is continued after `oapl report` would keep its partial report."""
    run = write_synthetic_run(tmp_path, until="training")
    write(run)
    inputs = run.ledger.artifacts()["report"].inputs
    assert inputs["round_01/5_evaluation/oapl.parquet"] == "missing"


def test_the_plan_takes_a_written_report_as_finished(tmp_path: Path) -> None:
    run = write_synthetic_run(tmp_path)
    command = [sys.executable, "-m", "oapl_core.reports.write", str(run.root)]
    subprocess.run(command, check=True, capture_output=True)
    entry = run.ledger.artifacts()["report"]
    assert all(run.ledger.artifacts()[name].sha256 == digest for name, digest in entry.inputs.items())
    assert len(finished(run)) == len(steps(run.config)) - 1, (
        "all but the report's own stage line, which launch.py writes"
    )


@pytest.mark.parametrize("column", METRIC_COLUMNS)
def test_a_missing_metric_is_an_error_that_names_it(tmp_path: Path, column: str) -> None:
    run = write_synthetic_run(tmp_path, until="training")
    path = run.checkpoint(0, 1) / "training_metrics.jsonl"
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    del lines[2][column]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    with pytest.raises(DataError, match=rf"training_metrics.jsonl: line 3 has no `{column}`"):
        write(run)


def test_a_torn_metrics_file_is_an_error_that_names_it(tmp_path: Path) -> None:
    run = write_synthetic_run(tmp_path, until="training")
    path = run.checkpoint(0, 1) / "training_metrics.jsonl"
    path.write_text(path.read_text()[:-30])
    with pytest.raises(DataError, match=r"training_metrics.jsonl: is not JSON lines"):
        write(run)


def test_an_evaluation_of_a_foreign_checkpoint_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no round of this run made"):
        rollouts_spent(RunRecord(write_synthetic_run(tmp_path)), "0123456789abcdef")


@pytest.mark.parametrize("sampler", [pytest.param("unknown", marks=pytest.mark.slow), "0123456789abcdef"])
def test_the_base_is_known_where_another_policy_sampled_round_0(tmp_path: Path, sampler: str) -> None:
    """Imported rollouts name their own policy or none; what they were trained into still has cost them."""
    run = write_synthetic_run(tmp_path)
    for entry in RunRecord(run).entries_in(run.rollouts(0)):
        path = run.root / entry.artifact
        rows = [{**row, "policy_hash": sampler} for row in pl.read_parquet(path).to_dicts()]
        with run.writing(path, entry.inputs, {}) as draft:
            draft.rows = tables.write_table(draft.path, tables.ROLLOUTS, rows)
            draft.details = {IMPORTED: "theirs", POLICIES: [sampler], "response_tokens": 1}
    base = policy_hash(run.base_model())
    facts = RunRecord(run)
    assert facts.base == base
    assert [rollouts_spent(facts, base), rollouts_spent(facts, policy_hash(run.checkpoint(0, 1)))] == [0, 48]
    write(run)
    assert f"| base | {base} |" in (run.report / "report.md").read_text()
    run.evaluation().unlink()
    assert RunRecord(run).base is None, "nothing says it before the evaluation"


def test_a_failed_report_leaves_the_old_one(tmp_path: Path) -> None:
    run = write_synthetic_run(tmp_path)
    write(run)
    run.evaluation().write_bytes(b"torn")
    with pytest.raises(DataError, match=r"oapl.parquet"):
        write(run)
    assert (run.report / "index.html").exists()
    assert not list(run.root.glob(".tmp-*"))
