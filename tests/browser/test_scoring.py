"""The perplexity view, against the gateway's own scores, with SmolLM2."""

import json
import math
import urllib.request
from typing import Any

from playwright.sync_api import expect

from browser.conftest import API_KEY, OpenLens
from browser.page import card, exported_json, figure, part, run
from support.stack import Stack

TEXT = "The capital of France is Paris.\n\nIn 2024, 7 of 10 said: 🧀 東京"


def scores(stack: Stack) -> dict[str, Any]:
    body = {"prompt": TEXT, "echo": True, "max_tokens": 0, "logprobs": 4, "prompt_logprobs": 4}
    asked = urllib.request.Request(
        f"{stack.gateway}/v1/completions",
        json.dumps({**body, "return_token_ids": True}).encode(),
        {"content-type": "application/json", "authorization": f"Bearer {API_KEY}"},
    )
    with urllib.request.urlopen(asked, timeout=60) as answer:
        (choice,) = json.load(answer)["choices"]
    return dict(choice)


def test_a_text_is_scored_token_by_token(open_lens: OpenLens, stack: Stack) -> None:
    expected = scores(stack)
    page = open_lens(stack.gateway, key=API_KEY)
    page.click("text=Score a text")
    part(page, ".text-prompt textarea").fill(TEXT)
    run(page, logprobs="4")
    saved = exported_json(page)
    values = expected["logprobs"]["token_logprobs"]
    assert [each["logprob"] for each in saved["tokens"]] == values
    assert [each["token_id"] for each in saved["tokens"]] == expected["prompt_token_ids"]
    assert bytes(byte for each in saved["tokens"] for byte in each["bytes"]).decode() == TEXT
    ranks = [
        None if each is None else each[str(token_id)]["rank"]
        for token_id, each in zip(
            expected["prompt_token_ids"], expected["prompt_logprobs"], strict=True
        )
    ]
    assert [each["rank"] for each in saved["tokens"]] == ranks
    perplexity = math.exp(-sum(values[1:]) / len(values[1:]))
    assert figure(page, "perplexity") == f"{perplexity:.2f}"
    assert math.isclose(saved["summary"]["perplexity"], perplexity, rel_tol=1e-9)
    expect(part(page, ".state")).to_have_text("scored")


def test_the_first_token_has_no_score(open_lens: OpenLens, stack: Stack) -> None:
    page = open_lens(stack.gateway, key=API_KEY)
    page.click("text=Score a text")
    run(page)
    first = part(page, ".t").first
    assert "unscored" in (first.get_attribute("class") or "")
    first.hover()
    assert "not scored" in card(page)
    part(page, ".t").last.hover()
    assert "rank" in card(page)
    assert part(page, ".bytes").count() >= 2  # the emoji of the example
