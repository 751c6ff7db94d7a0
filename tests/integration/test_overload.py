"""Ten times more at once than there is room for, at each bound: who is served, and who is not."""

import asyncio
import re
from collections import Counter
from pathlib import Path
from typing import Any

import httpx
import pytest

from support.scripted import TextPanels, text_panels
from support.whole_fleet import Fleet, make_generate_model, whole_fleet

pytestmark = pytest.mark.model

ROOM = 6
NUM_TOKENS = 24
BODY = {"prompt": "one two three four five", "max_tokens": NUM_TOKENS, "ignore_eos": True}


@pytest.fixture(scope="module")
def texts(smollm2_dir: Path) -> TextPanels:
    return text_panels(smollm2_dir, "none")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_generate_model(tmp_path_factory.mktemp("model"))


#: Bounds of the gateway by requests and by prompt tokens, and of generate: a step holds as many as
#: may wait beside it, but all may come before the step that starts the first of them.
BOUNDS: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({"max_requests": ROOM}, {}),
    ({"max_prompt_tokens": 5 * ROOM}, {}),
    ({}, {"max_num_sequences": ROOM // 2, "max_waiting": ROOM // 2}),
    ({}, {"max_num_sequences": ROOM // 2, "max_waiting_tokens": 5 * ROOM // 2}),
]


@pytest.mark.parametrize(("gateway", "engine"), BOUNDS)
async def test_admitted_requests_finish_and_the_others_are_refused_at_once(
    gateway: dict[str, Any], engine: dict[str, Any], texts: TextPanels, model: Path
) -> None:
    async with (
        whole_fleet(texts, model, gateway=gateway, engine=engine) as fleet,
        httpx.AsyncClient(base_url=fleet.http("gateway"), timeout=120) as client,
    ):
        for _ in range(2):
            asking = [ask(client, is_stream=bool(index % 2)) for index in range(10 * ROOM)]
            ends = Counter(await asyncio.gather(*asking))
            assert set(ends) == {"whole", "refused"}
            assert (
                (ROOM if gateway else ROOM // 2) <= ends["whole"] < 5 * ROOM
            )  # who comes late may find room again
        await all_is_given_back(fleet)


async def ask(client: httpx.AsyncClient, *, is_stream: bool) -> str:
    """How a request ended, as its client sees it."""
    answer = await client.post("/v1/completions", json={**BODY, "stream": is_stream})
    if answer.status_code == 429:
        assert int(answer.headers["retry-after"]) >= 1
        assert answer.json()["error"]["code"] == "overloaded"
        return "refused"
    assert answer.status_code == 200
    if not is_stream:
        is_whole = answer.json()["usage"]["completion_tokens"] == NUM_TOKENS
    else:
        is_whole = answer.text.endswith("data: [DONE]\n\n") and "event: error" not in answer.text
    return "whole" if is_whole else "broken"


async def all_is_given_back(fleet: Fleet) -> None:
    gateway, generate = await fleet.metrics("gateway"), await fleet.metrics("generate")
    assert value(gateway, "triptych_gateway_requests_held") == 0
    assert value(gateway, "triptych_gateway_prompt_tokens_held") == 0
    for name in ("waiting", "waiting_tokens", "running"):
        assert value(generate, f"triptych_generate_{name}") == 0
    free, blocks = (value(generate, f"triptych_generate_kv_blocks{x}") for x in ("_free", ""))
    assert free == blocks


def value(page: str, name: str) -> float:
    (found,) = re.findall(rf"^{name} (\S+)$", page, re.MULTILINE)
    return float(found)
