"""An engine in the middle of decoding, without doors."""

import random
import time
from typing import Literal

from triptych.models import ensure
from triptych.wire import SamplingParams
from triptych_generate.engine import Engine
from triptych_generate.metrics import EngineMetrics
from triptych_generate.options import EngineOptions
from triptych_generate.sequence import Sequence
from triptych_generate.setup import EngineParts, set_up

Dtype = Literal["float32", "bfloat16"]


#: What scores 26 labels at every position, and nothing else.
LABELS = SamplingParams(
    temperature=0, ignore_eos=True, logprobs=0, logprob_token_ids=list(range(1000, 1026))
)
PLAIN = SamplingParams(temperature=0, ignore_eos=True)


def decoding(
    dtype: Dtype, at_once: int, params: SamplingParams = PLAIN
) -> tuple[Engine, EngineParts]:
    """SmolLM2 at about 80 tokens of context, of up to 380; ``engine.step()`` makes a step."""
    parts = set_up(
        EngineOptions(
            model_dir=ensure("smollm2").directory,
            served_model_name="bench",
            dtype=dtype,
            kv_cache_bytes=1 << 28,
            max_model_len=2048,
        )
    )
    engine = Engine(
        parts.runner,
        parts.scheduler,
        metrics=EngineMetrics(),
        deliver=lambda _: None,
        on_death=lambda _: None,
    )
    for index in range(at_once):
        engine.submit([_sequence(index, params)], since=time.perf_counter())
    engine._take_commands()
    while any(one.num_uncomputed > 1 for one in parts.scheduler.running + parts.scheduler.waiting):
        engine.step()
    return engine, parts


def _sequence(index: int, params: SamplingParams) -> Sequence:
    ids = random.Random(index).choices(range(100, 49000), k=80)
    return Sequence(index, 0, ids, len(ids), len(ids) + 300, params, 0)
