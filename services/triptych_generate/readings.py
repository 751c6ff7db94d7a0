"""What ``/metrics`` reads of the engine when it is asked: levels, and counts since the start."""

from triptych.metrics import Count, GaugeSource, ReadCounts
from triptych_generate.service import GenerateService


def gauges(service: GenerateService) -> tuple[GaugeSource, ...]:
    """How busy the engine is."""
    return (
        GaugeSource("waiting", "requests not started", lambda: service.occupancy().num_waiting),
        GaugeSource(
            "waiting_tokens",
            "tokens of the prompts of these",
            lambda: service.occupancy().num_waiting_tokens,
        ),
        GaugeSource("running", "sequences in the steps", lambda: service.occupancy().num_running),
        GaugeSource("kv_blocks", "KV blocks in all", lambda: service.occupancy().num_blocks),
        GaugeSource(
            "kv_blocks_free", "free KV blocks", lambda: service.occupancy().num_free_blocks
        ),
        GaugeSource(
            "invariant",
            "1: the start-up check found the same bits in any batch",
            lambda: float(bool(service.info().invariant)),
        ),
    )


def counts(service: GenerateService) -> ReadCounts:
    """What the scheduler and the prefix cache count themselves."""
    return ReadCounts(
        "generate",
        (
            Count(
                "preemptions",
                "sequences that gave their KV blocks back",
                lambda: service.occupancy().num_preemptions,
            ),
            Count(
                "prefix_cache_queries",
                "prompt tokens looked up in the prefix cache",
                lambda: service.occupancy().num_queried,
            ),
            Count(
                "prefix_cache_hits",
                "prompt tokens found there",
                lambda: service.occupancy().num_hit,
            ),
            Count(
                "prefix_cache_evictions",
                "cached KV blocks given to others",
                lambda: service.occupancy().num_evictions,
            ),
        ),
    )
