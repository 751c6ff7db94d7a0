"""How many KV blocks an engine gets, and how long a context they hold."""

import math
from dataclasses import dataclass

from triptych.errors import SetupError
from triptych_generate.options import EngineOptions

#: Default size of the KV cache on the CPU, unless one sequence of full length needs more.
_CPU_CACHE_BYTES = 1 << 30
#: Default shares of the free memory that the KV cache may take.
_CPU_SHARE, _CUDA_SHARE = 0.5, 0.8


@dataclass(frozen=True, slots=True)
class KvSizes:
    """``max_model_len`` in tokens. ``cut_from``: the wanted context, where memory cut it short."""

    num_blocks: int
    max_model_len: int
    cut_from: int | None = None


def kv_sizes(
    options: EngineOptions, *, max_positions: int, bytes_per_block: int, free_bytes: int
) -> KvSizes:
    """The sizes for a model of ``max_positions``, given the memory that is free after loading it.

    A context that was asked for is kept or refused; the model's own is cut to what fits.

    Raises:
        SetupError: the context is over the model's, or memory is too small; it says what is needed.
    """
    wanted_len = options.max_model_len or max_positions
    if wanted_len > max_positions:
        raise SetupError(
            f"max_model_len is {wanted_len:,}, but the model has {max_positions:,} positions"
        )
    blocks_of_one = -(-wanted_len // options.block_size)
    needed = blocks_of_one * bytes_per_block
    budget = _budget(options, needed=needed, free_bytes=free_bytes)
    num_blocks = min(budget // bytes_per_block, blocks_of_one * options.max_num_sequences)
    is_fixed = options.max_model_len is not None
    too_little = options.kv_cache_bytes is not None and budget > free_bytes
    if too_little or num_blocks < (blocks_of_one if is_fixed else 1):
        raise SetupError(
            f"the KV cache may take {budget / 1e9:.3g} GB, and {free_bytes / 1e9:.3g} GB are free; "
            f"a context of {wanted_len:,} tokens needs {needed_gb(needed)} GB, "
            f"{options.block_size} tokens {needed_gb(bytes_per_block)} GB "
            f"(--kv-cache-gb, --max-model-len)"
        )
    capacity = num_blocks * options.block_size
    if capacity < wanted_len:
        return KvSizes(num_blocks, capacity, cut_from=wanted_len)
    return KvSizes(num_blocks, wanted_len)


def needed_gb(num_bytes: int) -> str:
    """``num_bytes`` in GB (10^9 bytes), rounded up to 3 digits: as a setting it is enough."""
    unit = 10.0 ** (math.floor(math.log10(num_bytes)) - 2)
    return f"{math.ceil(num_bytes / unit) * unit / 1e9:.3g}"


def _budget(options: EngineOptions, *, needed: int, free_bytes: int) -> int:
    """Bytes that the KV cache may take: as set, or a share of what is free."""
    if options.kv_cache_bytes is not None:
        return options.kv_cache_bytes
    if options.device.startswith("cuda"):
        return int(free_bytes * _CUDA_SHARE)
    return min(max(_CPU_CACHE_BYTES, needed), int(free_bytes * _CPU_SHARE))
