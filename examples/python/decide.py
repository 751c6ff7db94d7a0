"""A decision from label probabilities: one request reads up to 26 labels at one position.

python decide.py --question "Is this praise?" "The soup was cold." "yes" "no"
"""

import argparse
import math
import string

import httpx


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("state", help="what is to be decided about")
    parser.add_argument("options", nargs="+", help="at most 26")
    parser.add_argument("--question", required=True)
    parser.add_argument("--threshold", type=float, default=0.5, help="abstain below this")
    parser.add_argument("--gateway", default="http://127.0.0.1:8000")
    asked = parser.parse_args()
    if len(asked.options) > len(string.ascii_uppercase):
        parser.error(f"{len(asked.options)} options, at most {len(string.ascii_uppercase)}")
    letters = string.ascii_uppercase[: len(asked.options)]
    prompts = [prompt(text, asked.question, asked.options) for text in (asked.state, "N/A")]
    with httpx.Client(base_url=asked.gateway, timeout=60) as client:
        label_ids = [only_id(client, f" {letter}") for letter in letters]
        logprobs, leaning = label_logprobs(client, prompts, label_ids)
    mass = math.fsum(map(math.exp, logprobs))
    given = normalised(logprobs)
    # what the labels get without any state is the model's own leaning, and is divided out
    calibrated = normalised([one - other for one, other in zip(logprobs, leaning, strict=True)])
    print("        raw  among labels  calibrated")
    rows = zip(letters, map(math.exp, logprobs), given, calibrated, asked.options, strict=True)
    for letter, raw, share, probability, option in rows:
        print(f"{letter} {raw:>9.6f} {share:>13.4f} {probability:>11.4f}  {option}")
    print(f"the labels hold {mass:.4f} of the model's probability")
    best = max(calibrated)
    chosen = asked.options[calibrated.index(best)]
    print(f"decision: {chosen if best >= asked.threshold else 'none'} ({best:.4f})")


def prompt(state: str, question: str, options: list[str]) -> str:
    lettered = zip(string.ascii_uppercase, options, strict=False)
    listed = "\n".join(f"{letter}. {option}" for letter, option in lettered)
    return f"{state}\n\nQuestion: {question}\n{listed}\nAnswer:"


def only_id(client: httpx.Client, label: str) -> int:
    """The one token id that ``label`` is; a label of several tokens has no single probability."""
    reply = client.post("/tokenize", json={"prompt": label}).raise_for_status()
    (token_id,) = reply.json()["tokens"]
    return int(token_id)


def label_logprobs(
    client: httpx.Client, prompts: list[str], label_ids: list[int]
) -> list[list[float]]:
    """Per prompt the logprob of each label as the next token, over the whole vocabulary."""
    asked = {
        "prompt": prompts,
        "max_tokens": 1,
        "temperature": 0,
        "allowed_token_ids": label_ids,
        "logprobs": len(label_ids),  # every allowed id is among the best that many
        "return_tokens_as_token_ids": True,
    }
    choices = client.post("/v1/completions", json=asked).raise_for_status().json()["choices"]
    found = [choice["logprobs"]["top_logprobs"][0] for choice in choices]
    return [[listed[f"token_id:{label}"] for label in label_ids] for listed in found]


def normalised(logprobs: list[float]) -> list[float]:
    """Probabilities among the labels alone."""
    greatest = max(logprobs)
    weights = [math.exp(each - greatest) for each in logprobs]
    return [weight / math.fsum(weights) for weight in weights]


if __name__ == "__main__":
    main()
