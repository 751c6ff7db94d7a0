"""What the logs, metrics and errors of a whole fleet say of a request: no text, ids or secrets."""

import logging
from pathlib import Path
from typing import Any

import httpx
import pytest

from support.scripted import text_panels
from support.whole_fleet import make_generate_model, whole_fleet
from triptych.hops import Hops
from triptych.logs import JsonFormatter

pytestmark = pytest.mark.model

PROMPT = "zebra umbrella"
KEY = "sk-abcdefgh"
WRONG_KEY = "sk-wrongwrong"
HOP_SECRET = "hop-secret-0123456789"
CHAT = "/v1/chat/completions"

GOOD: dict[str, Any] = {"messages": [{"role": "user", "content": PROMPT}], "max_tokens": 3}
#: Requests that are refused by each hop, and the path they are refused at.
BAD: list[dict[str, Any]] = [
    {"messages": [{"role": PROMPT, "content": PROMPT}]},
    {"messages": PROMPT},
    {**GOOD, "max_tokens": 10**6},
    {**GOOD, "model": PROMPT},
    {**GOOD, PROMPT.replace(" ", "_") + "_field": PROMPT, "temperature": PROMPT},
    {**GOOD, "response_format": {"type": "json_schema", "json_schema": {"schema": PROMPT}}},
]


async def test_logs_and_metrics_name_the_key_and_hold_no_secret_or_text(
    smollm2_dir: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    keys = tmp_path / "keys"
    keys.write_text(f"{KEY} alice requests_per_minute=600\n")
    texts = text_panels(smollm2_dir, "none")
    with caplog.at_level(logging.INFO):
        async with whole_fleet(
            texts,
            make_generate_model(tmp_path / "model"),
            hops=Hops(secret=HOP_SECRET.encode()),
            panel={"hop_secret": HOP_SECRET},
            gateway={"api_keys_file": keys},
        ) as fleet:
            async with httpx.AsyncClient(base_url=fleet.http("gateway"), timeout=60) as client:
                statuses = [
                    (await ask(client, {**body, "stream": is_stream}, KEY)).status_code
                    for is_stream in (False, True)
                    for body in (GOOD, *BAD)
                ]
                statuses.append((await ask(client, GOOD, WRONG_KEY)).status_code)
            pages = "".join([await fleet.metrics(name) for name in fleet.services])
    assert statuses == [200, *[400, 400, 400, 404, 400, 400]] * 2 + [401]
    formatter = JsonFormatter()
    written = caplog.text + "".join(map(formatter.format, caplog.records))
    assert caplog.text.count("key=alice") == 2 * (1 + len(BAD))
    assert 'key="alice"' in pages
    for hidden in (KEY, WRONG_KEY, HOP_SECRET, "zebra", "umbrella"):
        assert hidden not in written
        assert hidden not in pages


async def ask(client: httpx.AsyncClient, body: dict[str, Any], key: str) -> httpx.Response:
    return await client.post(CHAT, json=body, headers={"authorization": f"Bearer {key}"})
