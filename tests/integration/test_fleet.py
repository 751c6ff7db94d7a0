"""The compose file's topology as processes: clients go on when replicas are killed."""

import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from integration.fleet import Fleet
from support.private_network import can_have_networks
from support.tiny_models import make_tiny_model
from triptych.settings import cache_directory

pytestmark = [
    pytest.mark.model,
    pytest.mark.timeout(600),  # a whole fleet starts on two cores
    pytest.mark.xdist_group("fleet"),
]

TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja")


@pytest.fixture(scope="module")
def models_dir(smollm2_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a tiny model that has the built-in model's tokenizer."""
    folder = tmp_path_factory.mktemp("models")
    make_tiny_model("llama", folder / "tiny", vocab_size=49152, eos_token_id=2)
    for name in TOKENIZER_FILES:
        shutil.copy(smollm2_dir / name, folder / "tiny" / name)
    for path in (folder, *folder.rglob("*")):  # the containers' user is another one
        path.chmod(0o755 if path.is_dir() else 0o644)
    return folder


def fleet_of(models_dir: Path, folder: Path, *, is_private: bool, scale: dict[str, int]) -> Fleet:
    return Fleet(
        folder,
        variables={"MODEL": "/models/tiny", "MODELS_DIR": str(models_dir), "GENERATE_CPUS": "1"},
        volumes={"cache": cache_directory()},
        scale=scale,
        is_private=is_private,
    )


@pytest.fixture(scope="module")
def fleet(models_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    if not can_have_networks():
        pytest.skip("network namespaces need root and iproute2")
    scale = {"render": 2, "generate": 2, "derender": 2}
    folder = tmp_path_factory.mktemp("fleet")
    with fleet_of(models_dir, folder, is_private=True, scale=scale) as started:
        yield started


def ask(fleet: Fleet) -> Any:
    """One greedy chat answer with logprobs, by the openai client; its own retries are on."""
    with openai.OpenAI(base_url=f"{fleet.url('gateway')}/v1", api_key="none") as client:
        answer = client.chat.completions.create(
            model="tiny",
            messages=[{"role": "user", "content": "Say hi."}],
            temperature=0,
            max_tokens=8,
            logprobs=True,
            top_logprobs=2,
        )
    (choice,) = answer.choices
    return choice.model_dump()


def test_fleet_answers_alike_while_replicas_come_and_go(fleet: Fleet) -> None:
    undisturbed = ask(fleet)
    assert len(undisturbed["logprobs"]["content"]) == 8
    for service in ("render", "derender"):
        fleet.send(service, 0, signal.SIGKILL)
        assert ask(fleet) == undisturbed
        fleet.stop(service, 0)
        fleet.scale(service, 2)
        assert ask(fleet) == undisturbed
