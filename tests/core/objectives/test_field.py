"""The page of what the field has: each objective and option that it names exists, and each that exists is named."""

import re
from pathlib import Path

from oapl_core import plugins
from oapl_core.objectives import shipped

PAGE = Path("docs/field.md").read_text(encoding="utf-8")


def rows(title: str) -> list[list[str]]:
    """Cells of the table below a heading, without its head."""
    lines = [line for line in PAGE.split(f"\n## {title}\n")[1].split("\n## ")[0].splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]


def test_what_the_page_names_exists_and_what_exists_is_named() -> None:
    names, options = set(shipped()), set(plugins.BUILT_IN["objective_option"])
    named = set()
    for method, here, absent in rows("Losses"):
        found = set(re.findall(r"`(\w+)`", here))
        assert found <= names | options, method
        assert (here == "no") == (not found), method
        assert here != "no" or absent, f"{method}: why not?"
        named |= found
    assert named == names | options


def test_every_system_has_a_reason_where_it_is_not_whole() -> None:
    names = set(shipped())
    for system, here, absent in rows("Around the loss"):
        assert here and (absent or here != "no"), system
        objectives = set(re.findall(r"`([a-z_]+)`", here))
        assert objectives <= names, system
