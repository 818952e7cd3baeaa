"""Experts that vLLM chose, where it does not tell: on CPU, whose workers have none of its `routed_experts`.

Routes are kept as keys and values are: in a place for each slot of the key-value cache, written as a token is computed.
So the routes of a prompt that is found in the cache are there. A request that was put back has the routes of its second
time. A finished request's slots are its own until the next step.
"""

from functools import partial
from typing import TYPE_CHECKING, Any

from oapl_core.rollouts.reloading import Reloading

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

# vLLM takes one extension: the one that keeps routes replaces weights, too
EXTENSION = f"{__name__}.KeepingRoutes"
_WHOLE = ("FullAttentionSpec", "MLAAttentionSpec")
"""Caches that keep every token of a sequence."""


class KeepingRoutes(Reloading):
    """The base that vLLM adds to its worker class where workers keep routes."""

    if TYPE_CHECKING:
        model_runner: Any

    def keep_routes(self, layers: int, top_k: int, dtype: str) -> bool:
        """Keep them from now on; False if no router or no cache is found that would tell them."""
        import torch

        cache = self.model_runner.kv_cache_config
        groups = enumerate(cache.kv_cache_groups)
        whole = [(number, one.kv_cache_spec) for number, one in groups if type(one.kv_cache_spec).__name__ in _WHOLE]
        routers = [
            layer for layer in self.get_model().modules() if hasattr(getattr(layer, "router", None), "capture_fn")
        ]
        if not whole or not routers:
            return False
        self._group, spec = whole[0]
        self._kept = torch.zeros(cache.num_blocks * spec.block_size, layers, top_k, dtype=getattr(torch, dtype))
        for layer in routers:
            layer.router.set_capture_fn(partial(self._keep, layer.layer_id))
        return True

    def _keep(self, layer: int, chosen_TK: Any) -> None:
        slot_T = self._table.slot_mapping.gpu[: len(chosen_TK)]
        is_used_T = slot_T >= 0  # else padding
        self._kept[slot_T[is_used_T], layer] = chosen_TK[is_used_T].to(self._kept.dtype)

    @property
    def _table(self) -> Any:
        """Table of the blocks that requests have in the cache."""
        return self.model_runner.input_batch.block_table[self._group]

    def routes_of(self, request: str, tokens: int) -> "NDArray[np.unsignedinteger[Any]]":
        """Return [tokens, layers, top_k] of the first tokens of a request in the batch or in the last step."""
        import torch

        # vLLM adds random digits to a request's name
        rows = self.model_runner.input_batch.req_id_to_index.items()
        (row,) = [row for name, row in rows if name.rpartition("-")[0] == request]
        place_T, size = torch.arange(tokens), self._table.block_size
        slot_T = self._table.block_table.cpu[row][place_T // size] * size + place_T % size
        return self._kept[slot_T].numpy()
