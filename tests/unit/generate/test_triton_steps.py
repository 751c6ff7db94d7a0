"""Whole models on the kernels, through Triton's interpreter: the CUDA path without its graphs."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from triptych.wire import SamplingParams
from triptych_generate.batch import lay_out, tiles_of
from triptych_generate.blocks import BlockPool
from triptych_generate.decode_graphs import Capture, padded_rows
from triptych_generate.invariant_ops import override
from triptych_generate.kernel_steps import KernelSteps
from triptych_generate.kv_cache import KvCache, LayerShape
from triptych_generate.loader import LoadedModel, load_model
from triptych_generate.options import DTypeName, EngineOptions
from triptych_generate.runner import MakeRunner, Runner, probe_layers, use_paged_attention
from triptych_generate.scheduler import Plan, Scheduler, Slice
from triptych_generate.selftest import (
    PlainReference,
    check_against_plain,
    is_invariant,
    plain_reference,
)
from triptych_generate.sequence import Sequence
from triptych_generate.step_inputs import TILE_ROWS, StepInputs, sizes_of
from triptych_generate.triton_attention import paged_attention

BLOCK_SIZE = 16
NUM_TOKENS = 20
CPU = torch.device("cpu")


@dataclass(frozen=True, slots=True)
class Paged:
    loaded: LoadedModel
    shapes: dict[int, LayerShape]
    reference: PlainReference

    def new_cache(self, num_blocks: int) -> KvCache:
        return KvCache(
            self.shapes,
            num_blocks=num_blocks,
            block_size=BLOCK_SIZE,
            dtype=self.loaded.dtype,
            device=CPU,
        )


@contextmanager
def overridden() -> Iterator[None]:
    """The operators of the CPU are the kernels'."""
    library = override("CPU")
    try:
        yield
    finally:
        library._destroy()  # type: ignore[no-untyped-call]


def load(model_dir: Path, dtype: DTypeName) -> Paged:
    loaded = load_model(EngineOptions(model_dir=model_dir, served_model_name="m", dtype=dtype))
    whole = plain_reference(loaded)
    # The interpreter is slow: enough for a second block and, among others, a second chunk.
    reference = PlainReference(whole.prompt[:NUM_TOKENS], whole.logprobs[:NUM_TOKENS])
    use_paged_attention(loaded)
    return Paged(loaded, probe_layers(loaded).shapes, reference)


class Calls:
    """Repeats a call in place of replaying a graph; its inputs are as fixed as a graph's."""

    def __init__(self) -> None:
        self.num_captures = 0

    def __call__(self, run: Callable[[], Tensor]) -> Callable[[], Tensor]:
        self.num_captures += 1
        return run


def runners_on_kernels(capture: Capture | None) -> MakeRunner:
    def make_runner(loaded: LoadedModel, cache: KvCache) -> Runner:
        steps = KernelSteps(
            loaded.model,
            cache,
            paged_attention,
            device=CPU,
            max_num_sequences=5,
            capture=capture,
        )
        return Runner(loaded, cache, steps)

    return make_runner


@pytest.mark.parametrize(
    ("family", "dtype"),
    [("llama", "float32"), ("gemma2", "float32"), ("gpt_oss", "bfloat16")],
)
def test_model_on_kernels_is_invariant_and_equals_transformers(
    family: str, dtype: DTypeName, tiny_dir: Callable[[str], Path]
) -> None:
    paged, capture = load(tiny_dir(family), dtype), Calls()
    checks: dict[str, Any] = {"block_size": BLOCK_SIZE, "make_runner": runners_on_kernels(capture)}
    with overridden():
        check_against_plain(paged.loaded, paged.shapes, paged.reference, **checks)
        assert is_invariant(paged.loaded, paged.shapes, paged.reference.prompt, **checks)
    assert capture.num_captures > 0


def test_recorded_steps_have_the_bits_of_others_and_store_nothing_else(
    tiny_dir: Callable[[str], Path],
) -> None:
    paged, capture = load(tiny_dir("llama"), "float32"), Calls()
    with overridden():
        plain_logits, plain_cache = decode_all(paged, None)
        logits, cache = decode_all(paged, capture)
    assert all(torch.equal(one, other) for one, other in zip(logits, plain_logits, strict=True))
    for layer in cache.keys:
        assert torch.equal(cache.keys[layer][:-1], plain_cache.keys[layer][:-1])
        assert torch.equal(cache.values[layer][:-1], plain_cache.values[layer][:-1])
    # 3, 2 and 1 rows, recorded for 4, 2 and 1; the cache's 6 blocks fit the shortest tables.
    assert capture.num_captures == 3


def decode_all(paged: Paged, capture: Capture | None) -> tuple[list[Tensor], KvCache]:
    """The logits of every step of three sequences that end one after another, and the cache."""
    sequences = [
        Sequence(key, 0, list(range(key + 3)), key + 3, key + 5 + 2 * key, SamplingParams(), 0)
        for key in range(3)
    ]
    cache = paged.new_cache(6)
    runner = runners_on_kernels(capture)(paged.loaded, cache)
    scheduler = Scheduler(BlockPool(6, BLOCK_SIZE), max_step_tokens=64, max_num_sequences=3)
    for sequence in sequences:
        scheduler.add(sequence)
    steps = []
    while scheduler.has_work:
        plan = scheduler.schedule()
        step = runner.run(plan)
        steps.append(step.sample_logits)
        advance(plan, step.samplers, step.sample_logits.argmax(-1).tolist())
        for sequence in [one for one in scheduler.running if one.is_full]:
            scheduler.remove(sequence)
    return steps, cache


def advance(plan: Plan, samplers: list[Sequence], token_ids: list[int]) -> None:
    for part in plan.slices:
        part.sequence.num_computed += part.num_tokens
    for sequence, token_id in zip(samplers, token_ids, strict=True):
        sequence.token_ids.append(token_id)


def test_step_inputs_hold_the_layout_and_harmless_padding() -> None:
    decoding = Sequence(0, 0, list(range(50)), 40, 60, SamplingParams(), 0)
    decoding.num_computed, decoding.block_ids = 49, [7, 2, 5, 4]
    starting = Sequence(1, 0, list(range(100, 140)), 40, 60, SamplingParams(), 0)
    starting.block_ids = [1, 3, 6]
    layout = lay_out([Slice(decoding, 1), Slice(starting, 40)], BLOCK_SIZE)
    inputs = StepInputs(sizes_of(layout), CPU)
    inputs.load(layout, trash_block=9)
    assert inputs.input_ids.tolist() == [[49, *range(100, 140)]]
    assert inputs.position_ids.tolist() == [[49, *range(40)]]
    assert inputs.blocks.tolist() == [4] + [1] * 16 + [3] * 16 + [6] * 8
    assert inputs.offsets.tolist() == [1, *range(16), *range(16), *range(8)]
    assert inputs.logit_rows.tolist() == [0, 40]
    assert inputs.tables.tolist() == [[7, 2, 5, 4], [1, 3, 6, 0]]
    assert inputs.tiles.tolist() == [[0, 1, 0, 49], [1, 32, 1, 0], [33, 8, 1, 32]]
    assert tiles_of(layout, TILE_ROWS) == [tuple(tile) for tile in inputs.tiles.tolist()]


@pytest.mark.parametrize("most", [1, 5, 64])
def test_padded_rows_are_few_sizes_that_hold_the_rows(most: int) -> None:
    sizes = {num_rows: padded_rows(num_rows, most) for num_rows in range(1, most + 1)}
    assert all(num_rows <= size <= most for num_rows, size in sizes.items())
    assert len(set(sizes.values())) <= 4 + most // 8
