"""docs/tutorial.md: its commands are run in order as they stand there, and print the lines that follow them."""

from pathlib import Path

import pytest

from tests.site import pages

PAGE = pages.ROOT / "docs/tutorial.md"


def test_its_commands_and_options_exist() -> None:
    assert pages.check_options(PAGE) >= 7


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_it_is_true(tmp_path: Path) -> None:
    for name in ("deployments", "data/demo"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).symlink_to(pages.ROOT / name)
    pages.run(PAGE, tmp_path)
    assert (tmp_path / "data/runs/demo-seed0/report/index.html").is_file()
