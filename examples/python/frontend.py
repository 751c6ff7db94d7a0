"""A custom frontend: text to ids, a stream of ids from generate, text with every token's bytes.

    python frontend.py --tokenizer MODEL_DIR/tokenizer.json "The capital of France is"

It needs grpcio, protobuf, tokenizers, and the code generated from generate.proto, which the package
`triptych` brings as `triptych.v1`. The tokenizer has to be the served model's, and byte-level.
"""

import argparse
import json
import math
import sys
from collections.abc import Iterator
from itertools import islice
from typing import NamedTuple

import grpc
from tokenizers import Tokenizer

from triptych.v1 import generate_pb2, generate_pb2_grpc


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("prompt")
    parser.add_argument("--tokenizer", required=True, help="path of tokenizer.json")
    parser.add_argument("--generate", default="127.0.0.1:9002", help="host:port of generate's gRPC")
    parser.add_argument("--max-tokens", type=int, default=16)
    parser.add_argument("--stop", help="end the answer before this text")
    asked = parser.parse_args()
    pieces = Pieces(Tokenizer.from_file(asked.tokenizer))
    request = generate_pb2.GenerateRequest(
        token_ids=pieces.tokenizer.encode(asked.prompt).ids,
        sampling_params=generate_pb2.SamplingParams(
            temperature=0, max_tokens=asked.max_tokens, logprobs=3
        ),
    )
    try:
        with grpc.insecure_channel(asked.generate) as channel:
            answer(channel, request, pieces, stop=(asked.stop or "").encode())
    except grpc.RpcError as error:
        print(f"generate: {error.code().name}: {error.details()}", file=sys.stderr)
        return 1
    return 0


def answer(
    channel: grpc.Channel, request: generate_pb2.GenerateRequest, pieces: "Pieces", *, stop: bytes
) -> None:
    """Print each token as it comes, then the text, up to ``stop`` where it is not empty."""
    stream = generate_pb2_grpc.GenerateServiceStub(channel).Generate(request, timeout=60)
    text, finish = b"", ""
    for delta in stream:
        for choice in delta.choices:  # one, unless n says otherwise
            for token_id, row in zip(choice.token_ids, rows(choice.logprobs), strict=True):
                text += pieces.bytes_of(token_id)
                shown = [pieces.shown(candidate) for candidate in row]
                print(f"{token_id:>6}", *shown, flush=True)
            if choice.finish_reason:
                finish = generate_pb2.FinishReason.Name(choice.finish_reason)
        if stop and stop in text:  # generate knows no text, so a stop string is ours to find
            text, finish = text[: text.index(stop)], "stop string"
            stream.cancel()  # frees what the request held
            break
    print(f"text: {json.dumps(text.decode(errors='replace'), ensure_ascii=False)}")
    print(f"finish: {finish}")


class Candidate(NamedTuple):
    """One entry of the packed columns."""

    token_id: int
    logprob: float
    rank: int


def rows(columns: generate_pb2.Logprobs) -> Iterator[list[Candidate]]:
    """Per position its candidates, the position's own token first."""
    entries = map(Candidate, columns.token_ids, columns.logprobs, columns.ranks)
    for count in columns.counts:
        yield list(islice(entries, count))


class Pieces:
    """The exact bytes of every id of a byte-level tokenizer; none for special tokens."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer
        self._added = tokenizer.get_added_tokens_decoder()
        printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
        others = [byte for byte in range(256) if byte not in printable]
        self._byte_of = {chr(byte): byte for byte in printable}
        self._byte_of |= {chr(256 + number): byte for number, byte in enumerate(others)}

    def bytes_of(self, token_id: int) -> bytes:
        if token_id in self._added:
            token = self._added[token_id]
            return b"" if token.special else token.content.encode()
        piece = self.tokenizer.id_to_token(token_id) or ""
        return bytes(self._byte_of[letter] for letter in piece)

    def shown(self, candidate: Candidate) -> str:
        """A token with its probability; in hex where it holds a part of a character."""
        token = self.bytes_of(candidate.token_id)
        try:
            text = json.dumps(token.decode(), ensure_ascii=False)
        except UnicodeDecodeError:
            text = f"<{token.hex(' ')}>"
        return f"{text} {math.exp(candidate.logprob):.4f}"


if __name__ == "__main__":
    sys.exit(main())
