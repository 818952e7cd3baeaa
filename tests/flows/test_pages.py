"""Prefect's own pages of a round, in headless Chromium: the form, the run with its stages, the artifacts.

OAPL_SCREENSHOTS=DIR pytest -m browser tests/flows/test_pages.py      keeps a picture of each page in DIR
"""

import os
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.prefect_server import PrefectServer, prefect_server
from tests.whole_run import small_demo

pytestmark = [pytest.mark.browser, pytest.mark.timeout(900)]
CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome") or "chromium"


@dataclass(frozen=True)
class Pages:
    """The pages of one finished round."""

    server: PrefectServer
    flow_run: str
    pictures: Path

    def text(self, path: str, name: str) -> str:
        """What the page at ``path`` shows once its scripts have run; its picture is kept as ``name``."""
        browser = [
            CHROMIUM,
            "--headless=new",
            "--no-sandbox",
            "--hide-scrollbars",
            "--virtual-time-budget=25000",
            "--window-size=1400,2000",
            f"--user-data-dir={self.server.folder / 'chromium'}",
        ]
        url = f"http://127.0.0.1:{self.server.port}{path}"
        picture = self.pictures / f"{name}.png"
        subprocess.run([*browser, f"--screenshot={picture}", url], check=True, capture_output=True, timeout=400)
        assert picture.stat().st_size > 10_000
        return subprocess.run(
            [*browser, "--dump-dom", url], check=True, capture_output=True, text=True, timeout=400
        ).stdout


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pages]:
    folder = tmp_path_factory.mktemp("pages")
    experiment, *overrides = small_demo(folder)
    pictures = Path(os.environ.get("OAPL_SCREENSHOTS", folder / "pictures"))
    pictures.mkdir(parents=True, exist_ok=True)
    with prefect_server(folder / "server", PREFECT_SERVER_UI_ENABLED="true") as server:
        server.start_worker()
        flow_run = server.run(Path(experiment), overrides=overrides)
        assert server.ended(flow_run, 600)["state_name"] == "Completed"
        yield Pages(server, flow_run, pictures)


def test_the_form_says_what_each_parameter_is(pages: Pages) -> None:
    deployment = pages.server.client.get("/deployments/name/oapl-round/oapl-round").json()["id"]
    text = pages.text(f"/deployments/deployment/{deployment}/run", "form")
    assert "experiment" in text and "the folder of a run that exists" in text
    assert "overrides" in text and "Settings that differ from the file" in text


def test_a_run_says_its_round_and_its_stages(pages: Pages) -> None:
    text = pages.text(f"/runs/flow-run/{pages.flow_run}", "run")
    assert "demo-seed0, round 0" in text
    assert "round 0: sampling" in text


def test_a_round_has_a_page_with_its_counts(pages: Pages) -> None:
    text = pages.text("/artifacts/key/demo-seed0-round-0", "round")
    assert "rollouts" in text
    assert "pass@1" in text


def test_the_artifacts_are_listed(pages: Pages) -> None:
    text = pages.text("/artifacts", "artifacts")
    assert "demo-seed0-round-0-counts" in text
