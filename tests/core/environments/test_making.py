"""Every tool that ships is described to a chat template, from its types and its docstring."""

from pathlib import Path
from typing import Any

import pytest

from oapl_core.environments.making import schemas
from oapl_core.environments.search import index
from oapl_core.settings.environment import EnvironmentConfig


@pytest.mark.parametrize(
    ("function", "parameters"),
    [
        ("calculator", {"calc": ["expression"]}),
        ("python", {"python": ["code"]}),
        ("search", {"search": ["query"], "read": ["page"]}),
        ("attempts", {}),
    ],
)
def test_schemas(function: str, parameters: dict[str, list[str]], tmp_path: Path) -> None:
    settings: dict[str, Any] = {}
    if function == "search":
        index([{"title": "a", "text": "b"}], tmp_path / "pages.sqlite")
        settings = {"corpus": str(tmp_path / "pages.sqlite")}
    if function == "attempts":
        pytest.importorskip("reasoning_gym")
    found = [one["function"] for one in schemas(EnvironmentConfig(function=function, settings=settings))]
    assert {one["name"]: list(one["parameters"]["properties"]) for one in found} == parameters
    assert all(one["description"] for one in found)
