"""A shop whose prices the model has to ask for: `[environment] function = "examples.shop.shop:Shop"`.

Every problem has its own prices, in its column `info`, so no answer can be known without the tool.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from oapl_core import ToolEnvironment, ToolError


class Shop(ToolEnvironment):
    """One tool, `price`. The verifier judges the text of the last turn, as it judges any answer."""

    def reset(self, problem: Mapping[str, Any], seed: int) -> None:
        """Open with the prices of the problem."""
        self.prices: dict[str, int] = json.loads(problem["info"])["prices"]

    def tools(self) -> Sequence[Callable[..., str]]:
        """What the model may call: functions with types and a docstring, which chat templates show it."""
        return [self.price]

    def price(self, item: str) -> str:
        """Looks up what one piece costs.

        Args:
            item: Its name.

        Returns:
            The price.
        """
        name = item.strip()
        if name not in self.prices:
            # the model's mistake, which it reads as the call's result; any other exception would be the shop's own
            raise ToolError(f"there is no {name[:20]!r} here")
        return str(self.prices[name])
