"""Size of an experiment's model before anything is loaded. Reads config.json, headers of weights."""

from pathlib import Path

from oapl_core.model_files.model_folder import model_config, parameters
from oapl_core.model_files.model_hub import cached
from oapl_core.planning.model_size import ModelSize
from oapl_core.settings.experiment import Experiment
from oapl_core.settings.operation.estimate import EstimateConfig
from oapl_core.settings.pretrain import PretrainConfig


def known_size(experiment: Experiment) -> tuple[ModelSize, str] | None:
    """Return the model's size and its source; None: its folder is not there and `[estimate]` does not say."""
    if experiment.pretrain is not None:
        return _pretrained(experiment.pretrain), "made by [pretrain], at most"
    folder = experiment.model
    if experiment.hub_model:
        folder = cached(experiment.hub_model) or folder
    if folder is not None and (folder / "config.json").is_file():
        return _stored(folder), str(folder)
    return _stated(experiment.estimate)


def _stated(estimate: EstimateConfig) -> tuple[ModelSize, str] | None:
    if estimate.model_parameters is None:
        return None
    if estimate.model_shape is None:
        return ModelSize.like(estimate.model_parameters), "estimate.model_parameters"
    made = ModelSize.shaped(estimate.model_parameters, estimate.model_shape.get)
    return made, "estimate.model_parameters"


def _stored(folder: Path) -> ModelSize:
    config = model_config(folder)
    config = config.get("text_config", config)  # models that also see images nest their language model
    return ModelSize.shaped(parameters(folder), config.get)


def _pretrained(made: PretrainConfig) -> ModelSize:
    width = made.hidden_size
    # query, key, value and output projections; gate, up and down of the MLP
    layer = 4 * width**2 + 3 * width * made.intermediate_size
    parameters = made.vocabulary * width + made.layers * layer
    return ModelSize(
        parameters, made.layers, width, width, width, made.intermediate_size, made.vocabulary, made.max_positions
    )
