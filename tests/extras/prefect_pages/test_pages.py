"""What Prefect's pages show is what the run's files say; a server that does not answer stops nothing."""

import json
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from prefect import flow
from prefect.client.orchestration import get_client
from prefect.client.schemas.objects import Artifact
from prefect.context import SyncClientContext
from prefect.settings import PREFECT_API_URL, PREFECT_CLIENT_MAX_RETRIES, temporary_settings

from oapl_core.errors import DataError, Interrupted, StageFailed
from oapl_core.planning.plan import round_steps
from oapl_core.reports.write import write
from oapl_core.run_folder.following import follow, made
from oapl_core.run_folder.ledger import StageEntry
from oapl_core.run_folder.run import Run
from oapl_extras.prefect_pages.pages import failure_text, key, show_report, show_round, watched
from tests.synthetic_run import HOSTILE, Sizes, write_synthetic_run

pytestmark = pytest.mark.usefixtures("prefect")

SAMPLING = round_steps(0)[0]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return write_synthetic_run(tmp_path_factory.mktemp("runs"), Sizes(train=12, epochs=(1, 2)))


def silent(line: str) -> None:
    """A line that says that something was not shown is a failure here."""
    assert "not shown" not in line, line


def within_a_flow(body: Callable[[], None]) -> None:
    @flow(name="shows")
    def shows() -> None:
        body()

    shows()


def artifact(name: str) -> Artifact:
    """The newest version of an artifact."""
    with get_client(sync_client=True) as client:
        found = client.request("GET", "/artifacts/{key}/latest", path_params={"key": name})
    found.raise_for_status()
    return Artifact.model_validate(found.json())


def versions(name: str) -> int:
    """How many artifacts have this key."""
    with get_client(sync_client=True) as client:
        found = client.request("POST", "/artifacts/count", json={"artifacts": {"key": {"any_": [name]}}})
    return int(found.json())


def rows(text: Any) -> dict[str, str]:
    """Last cell by the cell before it, of a Markdown or JSON table."""
    if not str(text).startswith("#"):
        return {row["what"]: row["how many"] for row in json.loads(text)}
    return {cells[-3].strip(): cells[-2].strip() for line in text.splitlines() if (cells := line.split("|"))[3:]}


def test_a_round_is_shown_with_the_reports_numbers(run: Run) -> None:
    within_a_flow(lambda: show_round(run, 1, silent))
    page, counts = artifact("synthetic-seed0-round-1"), artifact("synthetic-seed0-round-1-counts")
    assert page.flow_run_id is not None
    assert str(page.data).startswith("# synthetic-seed0: round 1")
    assert page.description == counts.description
    details = run.ledger.artifacts()["round_01/3_groups.parquet"].details
    told = rows(counts.data)
    assert told["rollouts trained on"] == f"{details['kept_rollouts']:,}"
    assert told["rollouts"] == "24"
    assert told.items() <= rows(str(page.data).partition("## Problems solved")[0]).items()
    for reason, number in details["dropped"].items():
        assert told[f"dropped: {reason.replace('_', ' ')}"] == f"{number:,}"
    assert re.search(r"pass@1 \| \d+\.\d % \| \d+\.\d to \d+\.\d % \| 6 ", str(page.data))
    assert str(page.data).count("](data:image/png;base64,iVBOR") == 2, "both figures are in the page"
    assert "Pass rates of held-out problems" in str(page.data), "what is measured is shown"


def test_a_round_that_was_not_judged_yet_is_shown_as_far_as_it_got(tmp_path: Path) -> None:
    begun = write_synthetic_run(tmp_path, Sizes(train=6), "rollouts")
    within_a_flow(lambda: show_round(begun, 0, silent))
    assert "pass@1" not in str(artifact("synthetic-seed0-round-0").data)


def test_a_round_is_shown_once_its_training_has_ended_well(tmp_path: Path) -> None:
    begun, name = write_synthetic_run(tmp_path, Sizes(train=6), "rollouts"), "synthetic-seed0-round-0"

    def stages() -> None:
        with follow(begun, made(begun, silent, ("pages",)), silent, look_every_s=60):
            for exit_code in (1, 0):
                begun.ledger.append(StageEntry("training.train round 0", 1.0, exit_code))

    before = versions(name)
    within_a_flow(stages)
    assert versions(name) == before + 1
    assert artifact(name).flow_run_id is not None


def test_the_report_is_shown_with_its_figures_and_its_place(run: Run) -> None:
    write(run)
    within_a_flow(lambda: show_report(run, silent))
    text = str(artifact("synthetic-seed0-report").data)
    assert text.count("](data:image/png;base64,") == len(list(run.report.glob("*.png")))
    assert (run.report / "index.html").as_uri() in str(artifact("synthetic-seed0-report-file").data)


def test_a_long_stage_has_a_bar_that_follows_its_lines(run: Run) -> None:
    def stage() -> None:
        with watched(run, SAMPLING, silent, update_s=0.05) as tell:
            tell("vllm started in 3 s")
            for done in (20, 60):
                tell(f"round 0: sampling | {done}/80 rollouts | 4/s | 9 s left")
                time.sleep(0.5)
            tell("round 0: sampling | 80/80 rollouts | 4/s | 20 s")

    within_a_flow(stage)
    shown = artifact("synthetic-seed0-round-0-sampling")
    assert float(str(shown.data)) == 100.0
    assert shown.description == "round 0: sampling | 80/80 rollouts | 4/s | 20 s"
    assert versions(str(shown.key)) == 1, "one bar is updated, not one made for each line"


def test_a_stage_that_ends_soon_has_no_bar(run: Run) -> None:
    def stage() -> None:
        with watched(run, round_steps(0)[2], silent) as tell:
            tell("groups | 1/1 rows | 1/s | 0 s")

    within_a_flow(stage)
    assert versions("synthetic-seed0-round-0-groups") == 0


def test_a_failure_names_the_stage_its_last_lines_and_the_remedy(run: Run) -> None:
    log = run.root / "logs" / "rollouts.generate_round_0.log"
    log.write_text("".join(f"line {i}\n" for i in range(50)) + HOSTILE + "\n")

    def stage() -> None:
        with watched(run, SAMPLING, silent):
            raise StageFailed("the engine ran out of memory; lower engine.max_num_seqs")

    with pytest.raises(StageFailed):
        within_a_flow(stage)
    text = str(artifact("synthetic-seed0-failed").data)
    assert text.startswith("# synthetic-seed0: round 0: sampling failed")
    assert "lower engine.max" in text
    assert "line 49" in text
    assert "line 20\n" not in text, "only the last lines"
    assert "continues with this stage" in text
    assert text.count("```````") == 2, "what a model wrote cannot close the fence"


def test_what_a_person_must_mend_is_said_and_a_stop_is_no_failure(run: Run) -> None:
    assert "is not tried again before" in failure_text(run, SAMPLING, DataError("x is missing"))
    lines: list[str] = []
    with pytest.raises(Interrupted), watched(run, SAMPLING, lines.append):
        raise Interrupted("stopped")
    assert not lines


@pytest.mark.slow
def test_a_server_that_does_not_answer_is_said_once_and_stops_nothing(run: Run) -> None:
    lines: list[str] = []

    def stage() -> None:
        # a client of its own, as long as the context asks for other settings than the flow's
        elsewhere = temporary_settings({PREFECT_API_URL: "http://127.0.0.1:9/api", PREFECT_CLIENT_MAX_RETRIES: 0})
        with SyncClientContext(httpx_settings={"timeout": 1.0}), elsewhere:
            with watched(run, SAMPLING, lines.append, update_s=0.02) as tell:
                for done in range(5):
                    tell(f"sampling | {done}/5 rollouts | 1/s | 1 s left")
                    time.sleep(0.2)
            show_round(run, 0, lines.append)

    within_a_flow(stage)
    assert sum("not shown in Prefect" in line for line in lines) == 2, lines
    assert len(lines) == 7


def test_a_key_is_what_prefect_allows() -> None:
    assert key("My_run.v2-seed0", "round", 3) == "my-run-v2-seed0-round-3"
