"""Which languages' tools this machine has: a question of `oapl doctor`, found by name. Starts each tool once."""

from typing import Literal

from oapl_core.errors import SandboxError
from oapl_core.languages import languages


def tools() -> tuple[Literal["ok"], str]:
    """Name each language with the version of its tools, and what to install for the others."""
    names, missing = ["Python"], list[str]()
    for language in languages().values():
        try:
            names.append(f"{language.title} ({language.found_version()})")
        except SandboxError:
            missing.append(f"{language.title} (apt-get install {language.package})")
    without = f"; not here, and needed only by problems that ask for it: {', '.join(missing)}" if missing else ""
    return "ok", ", ".join(names) + without
