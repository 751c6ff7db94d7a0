"""The logprobs of rollouts beside those that transformers computes from the same weights.

python compare.py --model MODEL_DIR 504 3575 282 4649 314
"""

import argparse

import grpc
import torch
from transformers import AutoModelForCausalLM

from importance import Stub, rollouts


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("prompt", nargs="+", type=int, help="token ids")
    parser.add_argument("--model", required=True, help="the served model's directory")
    parser.add_argument("--generate", default="127.0.0.1:9002", help="host:port of generate's gRPC")
    asked = parser.parse_args()
    model = AutoModelForCausalLM.from_pretrained(asked.model, dtype=torch.float32).eval()
    with grpc.insecure_channel(asked.generate) as channel:
        for output, sampled in rollouts(Stub(channel), asked.prompt, n=2, seed=1):
            token_ids = torch.tensor(asked.prompt + output)
            with torch.inference_mode():
                rows = model(token_ids[None]).logits[0].log_softmax(-1)
            theirs = rows[:-1].gather(1, token_ids[1:, None])[len(asked.prompt) - 1 :, 0]
            difference = (theirs - torch.tensor(sampled)).abs().max().item()
            print(f"{len(output)} tokens, at most {difference:.1e} nats from transformers")


if __name__ == "__main__":
    main()
