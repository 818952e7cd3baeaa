"""Routes of an engine's answers: what vLLM tells of the experts that it chose, and on CPU what its workers keep."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from oapl_core.errors import StageFailed
from oapl_core.rollouts.kept_routes import EXTENSION
from oapl_core.routes import Routing

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


class ToldRoutes:
    """The ``Reporter`` of routes."""

    def __init__(self, routing: Routing) -> None:
        """Tell routes of a model with this routing."""
        self._routing = routing
        self._keeping: Any = None  # the engine, where its workers keep routes

    def arguments(self, on_cpu: bool) -> Mapping[str, Any]:
        """Ask vLLM for routes, or on CPU, where it refuses them, for workers that keep them."""
        return {"worker_extension_cls": EXTENSION} if on_cpu else {"enable_return_routed_experts": True}

    def begin(self, engine: Any, on_cpu: bool) -> None:
        """Let the workers of a CPU keep routes, if no step is ahead of another."""
        if not on_cpu:
            return
        routing, self._keeping = self._routing, engine
        steps = engine.vllm_config.max_concurrent_batches, type(engine.engine_core).__name__
        kept = engine.collective_rpc("keep_routes", args=(routing.layers, routing.top_k, routing.dtype))
        if steps != (1, "InprocClient") or not all(kept):
            raise NotImplementedError(
                "sampling.routes on CPU needs an engine in this process (VLLM_ENABLE_V1_MULTIPROCESSING=0, no pipeline "
                "of stages), routers that are vLLM's own, and a layer of full attention"
            )

    def of(self, key: str, tokens: int, output: Any) -> "NDArray[np.unsignedinteger[Any]]":
        """Return [tokens, layers, top_k] of a finished request.

        Raises:
            StageFailed: the engine told less.
        """
        if self._keeping is not None:
            found = self._keeping.collective_rpc("routes_of", args=(key, tokens))[0]
        else:
            found = output.routed_experts
        if found is None or found[:tokens].shape != (tokens, *self._routing.shape):
            raise StageFailed(f"the engine did not tell the routes of {key!r}; leave sampling.routes out")
        routes: NDArray[np.unsignedinteger[Any]] = found[:tokens].astype(self._routing.dtype)
        return routes
