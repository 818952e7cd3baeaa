"""Which tokens of a padded row are a response: those that have a log-prob, a log-ratio and a gradient. Pure."""

import torch
from torch import Tensor


def response_mask(prompt_length_S: Tensor, length_S: Tensor, width: int, sampled_ST: Tensor | None = None) -> Tensor:
    """Return a mask, [S, width - 1], true in column t if token t + 1 belongs to the response. Stored lengths decide,
    never token ids.

    With ``sampled_ST``, of the same shape, only where that is true, too: between turns the environment speaks.
    """
    position_T = torch.arange(1, width, device=length_S.device)
    is_response_ST = (position_T >= prompt_length_S[:, None]) & (position_T < length_S[:, None])
    return is_response_ST if sampled_ST is None else is_response_ST & sampled_ST
