"""Moves ids to the device, and a step's results to the host: all copies first, then one wait."""

from collections.abc import Collection

import numpy as np
import torch
from torch import Tensor


def ids_on(device: torch.device, ids: Collection[int]) -> Tensor:
    """``ids`` as int64. By an array, because torch takes ten times as long to read a list."""
    return torch.from_numpy(np.fromiter(ids, np.int64, len(ids))).to(device)


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
