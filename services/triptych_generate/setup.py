"""Builds the parts of an engine from its options: model, KV cache, scheduler, runner."""

import logging
from dataclasses import dataclass
from typing import Any

import torch

from triptych.errors import SetupError
from triptych_generate.blocks import BlockPool
from triptych_generate.fused import FUSED_FAMILIES, fuse_decoder
from triptych_generate.kv_cache import KvCache, LayerShape, block_bytes
from triptych_generate.kv_sizes import KvSizes, kv_sizes, needed_gb
from triptych_generate.linears import can_pack, pack_linears
from triptych_generate.loader import LoadedModel, load_model
from triptych_generate.memory import free_bytes, is_out_of_memory
from triptych_generate.options import EngineOptions
from triptych_generate.runner import MakeRunner, Runner, probe_layers, use_paged_attention
from triptych_generate.scheduler import Scheduler
from triptych_generate.selftest import check_against_plain, is_invariant, plain_reference

_log = logging.getLogger(__name__)


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
    try:
        return _set_up(options)
    except Exception as error:
        if not is_out_of_memory(error):
            raise
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise SetupError(f"memory ran out while the model was loaded: {reason}") from error


def _set_up(options: EngineOptions) -> EngineParts:
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
    per_block = block_bytes(shapes, options.block_size, loaded.dtype)
    sizes = kv_sizes(
        options,
        max_positions=loaded.max_positions,
        bytes_per_block=per_block,
        free_bytes=free_bytes(loaded.device),
    )
    cache = KvCache(
        shapes,
        num_blocks=sizes.num_blocks,
        block_size=options.block_size,
        dtype=loaded.dtype,
        device=loaded.device,
    )
    scheduler = Scheduler(
        BlockPool(sizes.num_blocks, options.block_size),
        max_step_tokens=options.max_step_tokens,
        max_num_sequences=options.max_num_sequences,
        prefix_cache=options.prefix_cache,
    )
    _log_ready(options, sizes, per_block, invariant=invariant)
    return EngineParts(
        loaded, make_runner(loaded, cache), scheduler, sizes.max_model_len, invariant
    )


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
        fuse_decoder(loaded.model, probe.scorings, loaded.kernels)
    if loaded.kernels is not None or can_pack(loaded.dtype, loaded.device):
        pack_linears(loaded.model, loaded.kernels)
    return probe.shapes


def _log_ready(
    options: EngineOptions, sizes: KvSizes, bytes_per_block: int, *, invariant: bool
) -> None:
    _log.info(
        "model ready: dtype %s on %s, context %d, %d KV blocks of %d tokens, batch-invariant: %s",
        options.dtype,
        options.device,
        sizes.max_model_len,
        sizes.num_blocks,
        options.block_size,
        "yes" if invariant else "no",
    )
    if not invariant:
        _log.warning(
            "the self-check found other bits in another batch: on this machine the same request "
            "may give other last digits, and at a tie another token, beside other requests"
        )
    if sizes.cut_from is not None:
        blocks = -(-sizes.cut_from // options.block_size)
        _log.warning(
            "memory for KV blocks cuts the context from %d to %d tokens; all of it needs "
            "--kv-cache-gb %s",
            sizes.cut_from,
            sizes.max_model_len,
            needed_gb(blocks * bytes_per_block),
        )
