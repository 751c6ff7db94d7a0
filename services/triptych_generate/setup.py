"""Builds the parts of an engine from its options: model, KV cache, scheduler, runner."""

import logging
import os
from dataclasses import dataclass
from typing import Any

import torch

from triptych.errors import SetupError
from triptych_generate.blocks import BlockPool
from triptych_generate.fused import FUSED_FAMILIES, fuse_layers
from triptych_generate.kv_cache import KvCache, LayerShape, block_bytes
from triptych_generate.linears import can_pack, pack_linears
from triptych_generate.loader import LoadedModel, load_model
from triptych_generate.options import EngineOptions
from triptych_generate.runner import MakeRunner, Runner, probe_layers, use_paged_attention
from triptych_generate.scheduler import Scheduler
from triptych_generate.selftest import check_against_plain, is_invariant, plain_reference

_log = logging.getLogger(__name__)

#: Default size of the KV cache on the CPU, unless one sequence of full length needs more.
_CPU_CACHE_BYTES = 1 << 30
#: Default shares of the free memory that the KV cache may take.
_CPU_SHARE, _CUDA_SHARE = 0.5, 0.8


@dataclass(frozen=True, slots=True)
class EngineParts:
    """What an engine runs on.

    ``invariant``: the check at load found the same bits in any batch.
    """

    loaded: LoadedModel
    runner: Runner
    scheduler: Scheduler
    max_model_len: int
    invariant: bool


def set_up(options: EngineOptions) -> EngineParts:
    """Load and check the model and reserve its KV blocks.

    Raises:
        SetupError: the model cannot be loaded or is computed wrongly, or memory is too small.
    """
    if options.num_threads is not None:
        torch.set_num_threads(options.num_threads)
    loaded = load_model(options)
    reference = plain_reference(loaded)
    use_paged_attention(loaded)
    shapes = prepare_layers(loaded)
    make_runner = _make_runner(options, loaded)
    checks: dict[str, Any] = {"block_size": options.block_size, "make_runner": make_runner}
    check_against_plain(loaded, shapes, reference, **checks)
    invariant = is_invariant(loaded, shapes, reference.prompt, **checks)
    max_model_len, num_blocks = _sizes(options, loaded, shapes)
    cache = KvCache(
        shapes,
        num_blocks=num_blocks,
        block_size=options.block_size,
        dtype=loaded.dtype,
        device=loaded.device,
    )
    scheduler = Scheduler(
        BlockPool(num_blocks, options.block_size),
        max_step_tokens=options.max_step_tokens,
        max_num_sequences=options.max_num_sequences,
        prefix_cache=options.prefix_cache,
    )
    _log.info(
        "model ready: dtype %s on %s, context %d, %d KV blocks of %d tokens, batch-invariant: %s",
        options.dtype,
        options.device,
        max_model_len,
        num_blocks,
        options.block_size,
        "yes" if invariant else "no",
    )
    return EngineParts(loaded, make_runner(loaded, cache), scheduler, max_model_len, invariant)


def _make_runner(options: EngineOptions, loaded: LoadedModel) -> MakeRunner:
    if loaded.device.type != "cuda":
        return Runner
    from triptych_generate.cuda import use_cuda  # triton is there only with CUDA

    return use_cuda(
        loaded,
        max_num_sequences=options.max_num_sequences,
        use_graphs=options.cuda_graphs,
    )


def prepare_layers(loaded: LoadedModel) -> dict[int, LayerShape]:
    """Replace the layers by faster ones with fixed bits; what each attention layer stores."""
    probe = probe_layers(loaded)
    if loaded.kernels is not None and loaded.family in FUSED_FAMILIES:
        fuse_layers(loaded.model, probe.scorings, loaded.kernels)
    if can_pack(loaded.dtype, loaded.device):
        pack_linears(loaded.model, loaded.kernels)
    return probe.shapes


def _sizes(
    options: EngineOptions, loaded: LoadedModel, shapes: dict[int, LayerShape]
) -> tuple[int, int]:
    """The context in tokens, and the number of KV blocks."""
    wanted_len = options.max_model_len or loaded.max_positions
    if wanted_len > loaded.max_positions:
        raise SetupError(
            f"max_model_len is {wanted_len:,}, but the model has {loaded.max_positions:,} positions"
        )
    per_block = block_bytes(shapes, options.block_size, loaded.dtype)
    blocks_per_sequence = -(-wanted_len // options.block_size)
    cache_bytes = options.kv_cache_bytes or _default_cache_bytes(
        loaded.device, least=blocks_per_sequence * per_block
    )
    most = blocks_per_sequence * options.max_num_sequences
    num_blocks = min(cache_bytes // per_block, most)
    if num_blocks < 1:
        raise SetupError(
            f"kv_cache_bytes is {cache_bytes:,}; at least {per_block:,} are needed "
            f"(a block of {options.block_size} tokens)"
        )
    capacity = num_blocks * options.block_size
    if options.max_model_len is not None and capacity < wanted_len:
        raise SetupError(
            f"max_model_len is {wanted_len:,}, but the KV cache of {cache_bytes:,} bytes holds "
            f"{capacity:,} tokens; it needs {blocks_per_sequence * per_block:,} bytes"
        )
    return min(wanted_len, capacity), num_blocks


def _default_cache_bytes(device: torch.device, *, least: int) -> int:
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        return int(free * _CUDA_SHARE)
    free = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return min(max(_CPU_CACHE_BYTES, least), int(free * _CPU_SHARE))
