"""Token in, token out for RL: sample rollouts, score them again, and compare the logprobs.

    python importance.py 504 3575 282 4649 314

The importance ratio of a token is p(now) / p(when it was sampled). With the same weights it is 1,
and here exactly 1.0: a token has the same logprob, to the bit, sampled or scored in a prompt.
"""

import argparse
import math

import grpc

from triptych.v1 import generate_pb2, generate_pb2_grpc

Stub = generate_pb2_grpc.GenerateServiceStub


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("prompt", nargs="+", type=int, help="token ids")
    parser.add_argument("--generate", default="127.0.0.1:9002", help="host:port of generate's gRPC")
    parser.add_argument("--rollouts", type=int, default=4)
    parser.add_argument("--seed", type=int, default=1)
    asked = parser.parse_args()
    with grpc.insecure_channel(asked.generate) as channel:
        stub = Stub(channel)
        for output, sampled in rollouts(stub, asked.prompt, n=asked.rollouts, seed=asked.seed):
            scored = score(stub, asked.prompt + output)[len(asked.prompt) :]
            ratios = [math.exp(new - old) for new, old in zip(scored, sampled, strict=True)]
            print(f"{len(output)} tokens, logprob {sum(sampled):.4f}, ratios {set(ratios)}")


def rollouts(
    stub: Stub, prompt: list[int], *, n: int, seed: int
) -> list[tuple[list[int], list[float]]]:
    """``n`` outputs at temperature 1, each with the logprob that every token had."""
    request = generate_pb2.GenerateRequest(
        token_ids=prompt,
        sampling_params=generate_pb2.SamplingParams(n=n, seed=seed, max_tokens=24, logprobs=0),
    )
    outputs: list[tuple[list[int], list[float]]] = [([], []) for _ in range(n)]
    for delta in stub.Generate(request, timeout=60):
        for choice in delta.choices:
            token_ids, logprobs = outputs[choice.index]
            token_ids += choice.token_ids
            logprobs += choice.logprobs.logprobs  # logprobs=0: one entry a token, its own
    return outputs


def score(stub: Stub, token_ids: list[int]) -> list[float]:
    """The logprob of every id under the weights that are served now; 0.0 for the first."""
    request = generate_pb2.GenerateRequest(
        token_ids=token_ids,
        sampling_params=generate_pb2.SamplingParams(max_tokens=0, prompt_logprobs=0),
    )
    deltas = stub.Generate(request, timeout=60)
    return [0.0, *(each for delta in deltas for each in delta.prompt_logprobs.logprobs)]


if __name__ == "__main__":
    main()
