"""Bytes and milliseconds of a generate answer on gRPC: 512 tokens with top-20 candidates."""

import random
import statistics
import time

import numpy as np

from triptych.convert import delta_from_proto, delta_to_proto
from triptych.logprobs import pack_logprobs
from triptych.v1 import generate_pb2
from triptych.wire import ChoiceDelta, GenerateDelta


def wire_cost(repeats: int = 50) -> tuple[int, float]:
    """Size in bytes, and the median of encode and decode together in milliseconds."""
    rng = random.Random(1)
    positions = [
        [(rng.randrange(49152), float(np.float32(-rng.random() * 12)), rank) for rank in range(21)]
        for _ in range(512)
    ]
    ids = [position[0][0] for position in positions]
    choice = ChoiceDelta(index=0, token_ids=ids, logprobs=pack_logprobs(positions))
    delta = GenerateDelta(request_id="bench", choices=[choice])
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        encoded = delta_to_proto(delta).SerializeToString()
        delta_from_proto(generate_pb2.GenerateDelta.FromString(encoded))
        times.append((time.perf_counter() - start) * 1000)
    return len(encoded), statistics.median(times)
