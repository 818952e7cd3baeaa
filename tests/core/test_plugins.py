"""One lookup by name: the table, installed packages, then module:object; one clear line where nothing is found."""

import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from oapl_core import plugins
from oapl_core.errors import ConfigError
from oapl_core.objectives import OwnObjective
from oapl_core.settings.environment import EnvironmentConfig
from oapl_core.settings.experiment_file import parse_experiment, read_toml
from oapl_core.settings.reward import RewardConfig
from tests.architecture.sources import ROOT
from tests.installed_package import installed


@pytest.fixture
def package(tmp_path: Path) -> Iterator[Path]:
    """The folder of an installed package that names an objective, an environment, a reward and a command."""
    (tmp_path / "broken_shiny.py").write_text("raise RuntimeError('not today')\n")
    source = "def score(problem, response, verdict):\n    return 1.0\n\nclass Own:\n    pass\n"
    lines = (
        "[oapl.reward]\nshiny = shiny:score\nbroken = broken_shiny:score\n",
        "[oapl.environment]\nown = shiny:Own\n",
        "[oapl.objective]\nmine = shiny:Own\n",
    )
    with installed(tmp_path, source, "\n".join(lines)):
        yield tmp_path
    sys.modules.pop("broken_shiny", None)


@pytest.mark.parametrize("kind", plugins.KINDS)
def test_everything_that_ships_can_be_imported(kind: plugins.Kind) -> None:
    for name in plugins.BUILT_IN[kind]:
        assert callable(plugins.resolve(kind, name)) or plugins.resolve(kind, name)


def test_a_package_s_names_are_found_and_listed(package: Path) -> None:
    assert plugins.resolve("reward", "shiny")(None, None, None) == 1.0
    assert {"shiny", "broken"} <= set(plugins.names("reward"))
    assert EnvironmentConfig(function="own").target == "shiny:Own"
    assert not EnvironmentConfig(function="own").ships
    assert RewardConfig(function="shiny").place == "shiny:score"


def test_a_package_s_objective_is_one_of_a_person_s_own(package: Path) -> None:
    demo = read_toml(ROOT / "deployments" / "experiments" / "demo.toml")
    objective = parse_experiment(demo | {"objective": {"name": "mine", "strength": 2.0}}, "here").objective
    assert isinstance(objective, OwnObjective) and objective.place == "shiny:Own"


def test_what_ships_wins_over_a_package_s_name(package: Path) -> None:
    (package / "shiny-1.0.dist-info" / "entry_points.txt").write_text("[oapl.environment]\npython = shiny:Own\n")
    plugins._installed.cache_clear()
    assert plugins.place("environment", "python") == plugins.BUILT_IN["environment"]["python"]
    assert plugins.names("environment").count("python") == 1


@pytest.mark.parametrize("name", ["nothing", "a b:c", "module:", ":name", "mod-ule:thing", ""])
def test_a_name_that_nothing_has_is_refused_with_those_there_are(name: str) -> None:
    with pytest.raises(ConfigError, match=r"there is no environment .*known are calculator, python, search") as error:
        plugins.place("environment", name)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("name", "why"),
    [("broken", "RuntimeError: not today"), ("shiny:absent", "AttributeError"), ("nowhere_at_all:x", "ModuleNotFound")],
)
def test_what_cannot_be_imported_says_why_in_one_line(package: Path, name: str, why: str) -> None:
    with pytest.raises(ConfigError, match=f"reward.function: {name} cannot be imported.*{why}") as error:
        plugins.resolve("reward", name)
    assert "\n" not in str(error.value)


def test_a_module_of_the_current_folder_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "from_here.py").write_text("def score(problem, response, verdict):\n    return 0.5\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    assert plugins.resolve("reward", "from_here:score")(None, None, None) == 0.5


def test_every_kind_is_a_row_of_its_page() -> None:
    page = (ROOT / "docs" / "plugins.md").read_text(encoding="utf-8")
    assert sorted(re.findall(r"^\| `(\w+)` \|", page, re.MULTILINE)) == sorted(plugins.KINDS)
