"""The model as transformers alone computes it, for the clients' tests.

Runs in triptych's environment, because the clients' has no torch. A line of JSON in gives a line of
JSON out: ``{"ids", "picks"}`` is scored, ``{"ids", "max_tokens"}`` is continued greedily. The first
line out is empty and says that the model is loaded. Usage: direct_model.py MODEL_DIRECTORY
"""

import json
import sys
from typing import Any

import torch
from transformers import AutoModelForCausalLM
from transformers.utils import logging


def main() -> None:
    logging.disable_progress_bar()
    torch.set_num_threads(1)
    model = AutoModelForCausalLM.from_pretrained(sys.argv[1], dtype=torch.float32).eval()
    sys.stdout.write("\n")
    sys.stdout.flush()
    for line in sys.stdin:
        asked = json.loads(line)
        work = continued if "max_tokens" in asked else scored
        with torch.inference_mode():
            sys.stdout.write(json.dumps(work(model, **asked)) + "\n")
        sys.stdout.flush()


def scored(model: Any, ids: list[int], picks: list[int]) -> dict[str, Any]:
    """Logprob of each id after the first and of the best id there; and what may come next."""
    logprobs = model(torch.tensor([ids])).logits[0].log_softmax(-1)
    own = logprobs[:-1].gather(1, torch.tensor(ids[1:], dtype=torch.int64)[:, None])[:, 0]
    return {
        "own": own.tolist(),
        "best": logprobs[:-1].amax(-1).tolist(),
        "picks": logprobs[-1][picks].tolist(),
        "next_ids": logprobs[-1].topk(20).indices.tolist(),
    }


def continued(model: Any, ids: list[int], max_tokens: int) -> list[int]:
    """The ids of greedy decoding, up to and with the model's end token."""
    made = model.generate(
        torch.tensor([ids]),
        attention_mask=torch.ones(1, len(ids), dtype=torch.int64),
        max_new_tokens=max_tokens,
        do_sample=False,
        top_p=None,
        temperature=None,
    )
    new_ids: list[int] = made[0, len(ids) :].tolist()
    return new_ids


if __name__ == "__main__":
    main()
