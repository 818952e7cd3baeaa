"""Extension of vLLM's workers: they replace their weights. vLLM imports it by name, in their processes."""

import logging
from typing import TYPE_CHECKING, Any

EXTENSION = f"{__name__}.Reloading"


class Reloading:
    """A base that vLLM adds to its worker class; methods are called by name, as only names reach other processes."""

    if TYPE_CHECKING:
        reload_weights: Any
        get_model: Any

    def reload_from(self, folder: str) -> list[str]:
        """Replace the weights by those of ``folder``.

        Returns:
            Kinds of layers that keep their old ones (GPT-OSS's experts): vLLM only logs that. It says the same of
            layers of constants and of shared weights, which are not among them.
        """
        left: list[str] = []

        class Listener(logging.Handler):
            def emit(self, record: logging.LogRecord) -> None:
                if "Failed to load weights" in str(record.msg):
                    left.extend(str(word) for word in record.args or ())

        told, listener = logging.getLogger("vllm.model_executor.model_loader.reload.layerwise"), Listener()
        level = told.level
        told.setLevel(logging.WARNING)  # whatever VLLM_LOGGING_LEVEL says
        told.addHandler(listener)
        try:
            self.reload_weights(weights_path=folder)
        finally:
            told.removeHandler(listener)
            told.setLevel(level)
        return _with_weights_of_their_own(self.get_model(), set(left))

    def forget_packed_experts(self) -> None:
        """Have experts' weights packed again: on CPU vLLM packs them with their kernel, at the first load alone."""
        for layer in self.get_model().modules():
            method: Any = getattr(layer, "quant_method", None)
            if getattr(method, "moe_kernel", None) is not None:
                method.moe_kernel = None

    def repack_output_layer(self) -> None:
        """Repack an output layer tied to the embeddings: on CPU a reload leaves it a packed copy of old weights."""
        for layer in self.get_model().modules():
            if type(layer).__name__ == "ParallelLMHead":  # the class is vLLM's, which is imported in one place
                layer.quant_method.process_weights_after_loading(layer)


def _with_weights_of_their_own(model: Any, kinds: set[str]) -> list[str]:
    """Return the ``kinds`` (names of classes) of which a layer has weights that no layer of another kind holds."""
    layers = [(layer, list(layer.parameters(recurse=False))) for layer in model.modules()]
    loaded = {weight.data_ptr() for layer, weights in layers if type(layer).__name__ not in kinds for weight in weights}

    def is_left(layer: Any, weights: list[Any]) -> bool:
        # vLLM packs the weights of experts out of sight; what has a method to multiply with them has some
        return any(weight.data_ptr() not in loaded for weight in weights) or (
            not weights and hasattr(layer, "quant_method")
        )

    return sorted({type(layer).__name__ for layer, weights in layers if is_left(layer, weights)} & kinds)
