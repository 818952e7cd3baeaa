"""Is each turn given exactly what stands before it, with published chat templates? ``python -m bench.chat_templates``.

    python -m bench.chat_templates FOLDER --to docs/benchmarks/data/chat_templates.json

FOLDER has the templates, NAME.jinja; llama.cpp keeps such a folder (models/templates), and a model has its own
(chat_template.jinja). For each one a round on the real engine: 16 rollouts of a random model, each of whose first two
turns a tool answers. Counted are rows and turns, rows that `oapl check` finds unsound, and those that the template
would render otherwise than the model saw them.
"""

import argparse
import json
import tempfile
from pathlib import Path

from oapl_core.rollouts.engine import SamplingEngine
from tests.core.rollouts.engine_session import CONFIG, by_template
from tests.tiny_model import write_tiny_model

PROMPT_TOKENS, MAX_TOKENS = 600, 420
"""The tests' tokenizer has a token for almost each byte, and templates write system turns of their own."""


def main() -> None:
    """Sample and count."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--to", type=Path, required=True)
    options = parser.parse_args()
    templates = {path.stem: path.read_text("utf-8") for path in sorted(options.folder.glob("*.jinja"))}
    config = CONFIG.model_copy(update={"max_model_len": PROMPT_TOKENS + MAX_TOKENS, "kv_cache_gib": 0.5})
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with SamplingEngine(write_tiny_model(folder / "first", seed=1, sharpness=8), config) as engine:
            made = by_template(engine, folder, templates, PROMPT_TOKENS, MAX_TOKENS)
    found = {
        name: {
            "rows": one["rows"],
            "turns": sum(one["turns"]),
            "unsound": len(one["unsound"]),
            "reworded": len(one["reworded"]),
            "between": one["between"][-1],
        }
        for name, one in made.items()
    }
    options.to.write_text(json.dumps(found, indent=1) + "\n")
    print({key: sum(one[key] for one in found.values()) for key in ("rows", "turns", "unsound", "reworded")})


if __name__ == "__main__":
    main()
