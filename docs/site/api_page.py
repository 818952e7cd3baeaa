"""The page of the library's names, each with the docstrings of its source; mkdocstrings writes what follows `:::`."""

import oapl_core

GROUPS = {
    "Runs and tables": "Run read_table",
    "Settings": "load_experiment",
    "Problems and prompts": "read_problem_set messages load_encoder",
    "Sampling": "SamplingEngine Request SampledAnswer",
    "Judging": "Verifier Verdict Outcome",
    "Environments": "ToolEnvironment ToolError Action Observation",
    "Losses": "Method Oapl Inputs Loss StepSizes",
    "Errors": "OaplError ConfigError DataError SandboxError",
}
"""The names that are documented here, by what they are for."""
SETTINGS = "Experiment EngineConfig VerifierConfig Objective"
"""The names whose keys are on the page of the settings."""
HEAD = """\
# The library, name by name

What `import oapl_core` gives, made from the docstrings. [Library](library.md) shows how the names are used, and which
of them are frozen. Classes of settings (`Experiment`, `EngineConfig`, `VerifierConfig`) have the keys of
[an experiment file](settings.md); `Objective` is any of its objectives. Capitals at a name's end are the shape of what
it holds: S sequences, T tokens, K statistics.
"""


def api_page() -> str:
    """The page in Markdown. Raises ValueError for a public name that is in no group."""
    grouped = [name for names in GROUPS.values() for name in names.split()]
    # a new public name must not be missing here without anybody noticing
    if left_out := set(oapl_core.__all__) ^ {*grouped, *SETTINGS.split()}:
        raise ValueError(f"docs/site/api_page.py: the groups and oapl_core.__all__ differ by {sorted(left_out)}")
    sections = [
        f"\n## {title}\n" + "".join(f"\n::: {oapl_core._HOME_OF[name]}.{name}\n" for name in names.split())
        for title, names in GROUPS.items()
    ]
    return HEAD + "".join(sections)
