"""Moves a step's results to the host: all copies first, then one wait."""

import torch
from torch import Tensor


def to_host(*tensors: Tensor) -> tuple[Tensor, ...]:
    """The tensors on the CPU, whole; those that are there are returned as they are."""
    if all(tensor.device.type == "cpu" for tensor in tensors):
        return tensors
    copies = tuple(
        torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True) for tensor in tensors
    )
    for copy, tensor in zip(copies, tensors, strict=True):
        copy.copy_(tensor, non_blocking=True)
    torch.cuda.current_stream(tensors[0].device).synchronize()
    return copies
