"""Every tool that ships is described to a chat template, from its types and its docstring."""

from pathlib import Path
from typing import Any

import pytest

from oapl_core.environments.making import maker, schemas
from oapl_core.environments.protocol import Action, tools_of
from oapl_core.environments.search import index
from oapl_core.environments.syntax import calls
from oapl_core.errors import ConfigError
from oapl_core.files import sha256_of
from oapl_core.plugins.own_function import source_hash
from oapl_core.plugins.trying import check_environment
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


SHOP = '''
from oapl_core import ToolEnvironment

def price(item: str) -> str:
    """Looks up a price.

    Args:
        item: Its name.
    """
    return "3"

class Listed(ToolEnvironment):
    tools = [price]

class Own(ToolEnvironment):
    def price(self, item: str) -> str:
        """Looks up a price.

        Args:
            item: Its name.
        """
        return "4"

    tools = [price]

class One(ToolEnvironment):
    tools = price

class Text(ToolEnvironment):
    tools = ["price"]

class Untyped(ToolEnvironment):
    def tools(self):
        return [self.look]

    def look(self, item):
        """Looks."""
        return "5"

class Strange(ToolEnvironment):
    def tools(self):
        return [self.look]

    def look(self, item: "Nowhere") -> str:
        """Looks.

        Args:
            item: Its name.
        """
        return "5"
'''


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    name = f"shop_{abs(hash(str(tmp_path)))}"
    (tmp_path / f"{name}.py").write_text(SHOP)
    monkeypatch.chdir(tmp_path)
    return name


@pytest.mark.parametrize(("name", "price"), [("Listed", "3"), ("Own", "4")])
def test_tools_may_be_a_plain_list(shop: str, name: str, price: str) -> None:
    schemas(EnvironmentConfig(function=f"{shop}:{name}"))
    environment = maker(EnvironmentConfig(function=f"{shop}:{name}"))()
    made = calls("<price>pear</price>", "tags", tools_of(environment))
    assert environment.step(Action("", made)).results[0].text == price


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("One", "has tools that cannot be called (TypeError: "),
        ("Text", "has tools that cannot be called (TypeError: `tools` must be a list of functions"),
        ("Untyped", "has a tool without a schema"),
        ("Strange", "has tools that cannot be called (NameError: name 'Nowhere' is not defined"),
        ("Missing", "cannot be imported (AttributeError"),
    ],
)
def test_tools_of_another_form_are_refused_in_one_line(shop: str, name: str, told: str) -> None:
    with pytest.raises(ConfigError) as error:
        schemas(EnvironmentConfig(function=f"{shop}:{name}"))
    assert str(error.value).startswith(f"environment.function: {shop}:{name} {told}")
    assert "\n" not in str(error.value)


def test_a_run_and_a_plan_try_the_class_before_anything_starts(shop: str) -> None:
    check_environment(EnvironmentConfig(function=f"{shop}:Listed").model_dump(mode="json"))
    with pytest.raises(ConfigError, match=rf"^environment\.function: {shop}:Text has tools that cannot be called"):
        check_environment(EnvironmentConfig(function=f"{shop}:Text").model_dump(mode="json"))


def test_a_module_may_lie_in_folders_that_are_no_packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mine" / "games").mkdir(parents=True)
    file = tmp_path / "mine" / "games" / "shop.py"
    file.write_text(SHOP)
    monkeypatch.chdir(tmp_path)
    assert source_hash("mine.games.shop:Listed") == sha256_of(file)
    assert source_hash("mine.games.missing:Listed") is None
    assert EnvironmentConfig(function="mine.games.shop:Listed").slice["sha256"] == sha256_of(file)
