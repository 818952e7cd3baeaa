"""What a forge reads: the workflow, the forms for issues, the package's words about itself, and the security page."""

import os
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

from oapl_core.sandbox import __doc__ as THREAT_MODEL
from oapl_core.sandbox.jail import _SCRATCH_BYTES
from tests.architecture.sources import ROOT

PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
CITATION = yaml.safe_load((ROOT / "CITATION.cff").read_text())
SECURITY = (ROOT / "SECURITY.md").read_text()
FORMS = sorted(path for path in (ROOT / ".github/ISSUE_TEMPLATE").glob("*.yml") if path.name != "config.yml")
ASKED = {"markdown", "textarea", "input", "dropdown", "checkboxes"}
"""Kinds of fields that GitHub's forms have."""
HOLES = {
    "Bugs of the kernel and of the CPU": "Bugs of the kernel and of the CPU",
    "Many threads": "many threads",
    "Memory of the private directory": "A bound on all memory",
    "The host's load": "A loaded host",
    "Other processes of the same user": "other processes of the same user",
    "Weak tests": "A weak test",
}
"""What the threat model does not cover, and the words of the security page for it."""


def pythons() -> list[str]:
    """The minor versions that `requires-python` allows."""
    (low, high) = re.fullmatch(r">=3\.(\d+),<3\.(\d+)", PROJECT["requires-python"]).groups()  # type: ignore[union-attr]
    return [f"3.{minor}" for minor in range(int(low), int(high))]


def test_the_workflow_runs_what_ci_runs_on_the_oldest_and_the_newest_python_and_each_week_what_is_slow() -> None:
    workflow = yaml.safe_load((ROOT / ".github/workflows/ci.yml").read_text())
    assert workflow[True].keys() == {"push", "pull_request", "schedule"}  # YAML 1.1 takes `on` for a truth value
    assert [len(one["cron"].split()) for one in workflow[True]["schedule"]] == [5]
    assert "github.event_name" in workflow["concurrency"]["group"], "a push must not cancel the week's run"
    (job,) = workflow["jobs"].values()
    assert job["strategy"]["matrix"]["python"] == [pythons()[0], pythons()[-1]]
    runs = {step["run"]: step["if"] for step in job["steps"] if step.get("env", {}).get("OAPL_LOCK") == "cpu"}
    assert runs == {
        ".ci/run": "github.event_name != 'schedule'",
        "make work && .venv/bin/python -m pytest -m slow": "github.event_name == 'schedule'",
    }
    assert os.access(ROOT / ".ci/run", os.X_OK)


@pytest.mark.parametrize("path", FORMS, ids=lambda path: str(path.stem))
def test_a_form_asks_in_fields_that_a_forge_knows_and_names_files_that_exist(path: Path) -> None:
    form = yaml.safe_load(path.read_text())
    assert form["name"] and form["description"]
    fields = [field for field in form["body"] if field["type"] != "markdown"]
    assert {field["type"] for field in form["body"]} <= ASKED
    assert len({field["id"] for field in fields}) == len(fields) and all(f["attributes"]["label"] for f in fields)
    assert any(field.get("validations", {}).get("required") for field in fields)
    named = re.findall(r"\b(?:docs/\w+|SECURITY)\.md\b", path.read_text())
    assert named and all((ROOT / name).is_file() for name in named)


def test_the_package_says_of_itself_what_the_citation_says_and_knows_no_other_address() -> None:
    assert [author["name"] for author in PROJECT["authors"]] == [author["name"] for author in CITATION["authors"]]
    assert PROJECT["keywords"] == CITATION["keywords"]
    assert set(PROJECT["urls"].values()) <= {reference["url"] for reference in CITATION["references"]}
    python = "Programming Language :: Python :: "
    said = [line.removeprefix(python) for line in PROJECT["classifiers"] if line.startswith(python)]
    assert said == pythons()
    assert not [line for line in PROJECT["classifiers"] if line.startswith("License")], "the expression says it"


def test_the_security_page_names_each_hole_of_the_threat_model() -> None:
    assert f"private folder of {_SCRATCH_BYTES >> 20} MiB" in SECURITY
    not_covered = str(THREAT_MODEL).split("Not covered:")[1]
    holes = re.findall(r"^- (.*)", not_covered, re.MULTILINE)
    assert [hole for hole, start in zip(holes, HOLES, strict=True) if not hole.startswith(start)] == []
    assert [words for words in HOLES.values() if words not in SECURITY] == []
