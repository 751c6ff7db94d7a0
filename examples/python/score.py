"""Prompt scoring: the logprob of every token of a text, and its perplexity, without any output.

python score.py --tokenizer MODEL_DIR/tokenizer.json "The capital of France is Paris."
"""

import argparse
import math

import grpc
from tokenizers import Tokenizer

from frontend import Pieces, rows
from triptych.v1 import generate_pb2, generate_pb2_grpc


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("text", help="two tokens or more")
    parser.add_argument("--tokenizer", required=True, help="path of tokenizer.json")
    parser.add_argument("--generate", default="127.0.0.1:9002", help="host:port of generate's gRPC")
    asked = parser.parse_args()
    pieces = Pieces(Tokenizer.from_file(asked.tokenizer))
    request = generate_pb2.GenerateRequest(
        token_ids=pieces.tokenizer.encode(asked.text).ids,
        sampling_params=generate_pb2.SamplingParams(max_tokens=0, prompt_logprobs=1),
    )
    with grpc.insecure_channel(asked.generate) as channel:
        stub = generate_pb2_grpc.GenerateServiceStub(channel)
        for delta in stub.Generate(request, timeout=60):
            if delta.HasField("prompt_logprobs"):  # all of them, in one message
                report(delta.prompt_logprobs, pieces)


def report(columns: generate_pb2.Logprobs, pieces: Pieces) -> None:
    """Print logprob, rank and text of every scored token, and the best one where it differs."""
    _, *scored = rows(columns)  # nothing comes before the first token, so it has no score
    for own, *others in scored:
        better = [f"(best: {pieces.shown(other)})" for other in others]
        print(f"{own.logprob:>10.5f} {own.rank:>6}", pieces.shown(own), *better)
    mean = sum(own.logprob for own, *_ in scored) / len(scored)
    print(f"perplexity of {len(scored)} tokens: {math.exp(-mean):.4f}")


if __name__ == "__main__":
    main()
