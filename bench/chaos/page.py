"""The tables of docs/benchmarks/chaos.md, made of docs/benchmarks/data/chaos.jsonl."""

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from bench.chaos.trial import FAULTS
from bench.chaos.world import ROOT

PAGE = ROOT / "docs" / "benchmarks" / "chaos.md"
DATA = ROOT / "docs" / "benchmarks" / "data" / "chaos.jsonl"
_MADE = re.compile(r"(<!-- made by bench\.chaos -->\n).*?(<!-- end -->\n)", re.DOTALL)


def page(text: str, lines: Sequence[Mapping[str, Any]]) -> str:
    """``text`` with its tables made anew."""
    return _MADE.sub(lambda found: found[1] + "\n" + tables(lines) + "\n" + found[2], text)


def tables(lines: Sequence[Mapping[str, Any]]) -> str:
    """A row for each kind of fault, then each trial that did not hold."""
    by_fault = defaultdict[str, list[Mapping[str, Any]]](list)
    for line in lines:
        by_fault[line["fault"]].append(line)
    rows = ["| fault | trials | held | starts after it, most | median s |", "|---|---|---|---|---|"]
    for name, fault in FAULTS.items():
        if mine := by_fault[name]:
            held = sum(not line["wrong"] for line in mine)
            seconds = sorted(line["seconds"] for line in mine)[len(mine) // 2]
            starts = max(line["starts"] for line in mine)
            rows.append(f"| {name}: {fault.text} | {len(mine)} | {held} | {starts} | {seconds:.0f} |")
    held = sum(not line["wrong"] for line in lines)
    commits = ", ".join(sorted({f"`{line['commit']}`" for line in lines}))
    rows.append(f"| **all** | **{len(lines)}** | **{held}** | | |")
    failed = [line for line in lines if line["wrong"]]
    rows += ["", f"Commits: {commits}.", ""]
    if failed:
        rows += ["| trial | commit | fault | what should not have happened |", "|---|---|---|---|"]
    for line in failed:
        what = _cell(f"{line['fault']} on {line['variant']}: {line['what']}")
        rows.append(f"| {line['trial']} | `{line['commit']}` | {what} | {_cell('; '.join(line['wrong']))} |")
    return "\n".join(rows) + "\n"


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ").replace("<", "&lt;")[:300]
