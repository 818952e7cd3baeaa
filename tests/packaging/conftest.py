"""A wheel built from the files of the repository, for tests of what it holds and how it installs."""

from pathlib import Path

import pytest

from tests.packaging.building import build_wheel


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_wheel(tmp_path_factory.mktemp("wheel"))
