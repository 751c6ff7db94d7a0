"""An answer that outlives a broken connection: retries, and going on where the stream ended.

    python resume.py 504 3575 282 4649 314

Whatever happens in between, ids and logprobs are those of a call that nothing broke, to the bit.
"""

import argparse
import sys
import time
from collections.abc import Iterator

import grpc

from triptych.v1 import generate_pb2, generate_pb2_grpc

#: Statuses after which the same request may succeed. The others say that it never will.
RETRIED = {grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.RESOURCE_EXHAUSTED}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("prompt", nargs="+", type=int, help="token ids")
    parser.add_argument("--generate", default="127.0.0.1:9002", help="host:port of generate's gRPC")
    asked = parser.parse_args()
    request = generate_pb2.GenerateRequest(
        token_ids=asked.prompt,  # a seed, because a resumed call has to draw as the first one did
        sampling_params=generate_pb2.SamplingParams(seed=1, max_tokens=40, logprobs=0),
    )
    with grpc.insecure_channel(asked.generate) as channel:
        for choice in generate(channel, request, timeout_s=120):
            for token_id, logprob in zip(choice.token_ids, choice.logprobs.logprobs, strict=True):
                print(token_id, logprob, flush=True)


def generate(
    channel: grpc.Channel, request: generate_pb2.GenerateRequest, *, timeout_s: float
) -> Iterator[generate_pb2.ChoiceDelta]:
    """The deltas of one choice; a call that breaks is followed by one that goes on from there."""
    stub = generate_pb2_grpc.GenerateServiceStub(channel)
    deadline = time.monotonic() + timeout_s
    attempt = generate_pb2.GenerateRequest()
    attempt.CopyFrom(request)
    while True:
        try:
            for delta in stub.Generate(attempt, timeout=deadline - time.monotonic()):
                for choice in delta.choices:
                    attempt.token_ids.extend(choice.token_ids)
                    attempt.resume_from += len(choice.token_ids)
                    yield choice
                    if choice.finish_reason:
                        return
        except grpc.RpcError as error:
            wait_s = retry_after_s(error)
            if error.code() not in RETRIED or time.monotonic() + wait_s > deadline:
                raise
            print(f"{error.code().name} after {attempt.resume_from} tokens", file=sys.stderr)
            time.sleep(wait_s)


def retry_after_s(error: grpc.RpcError) -> float:
    """What the server asks for, else a second."""
    for trailer in error.trailing_metadata() or ():
        if trailer.key == "retry-after":
            return float(trailer.value)
    return 1.0


if __name__ == "__main__":
    main()
