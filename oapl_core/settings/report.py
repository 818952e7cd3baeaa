"""Settings of ``[report]``: the numbers that pages show."""

from typing import Annotated

from pydantic import Field, PositiveFloat

from oapl_core.settings_group import Settings


class ReportConfig(Settings):
    """The pages that show a round's rollouts token by token."""

    shown_problems: Annotated[int, Field(ge=0)] = 12
    """Problems of each round whose rollouts are shown, drawn at random; 0: no such pages."""
    page_mb: PositiveFloat = 4.0
    """Largest page; long answers are cut in their middle to fit. MB."""
