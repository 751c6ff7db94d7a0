"""Every family against transformers, and what is refused."""

import random
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from support.generate_runs import answers, ask, load_service, running_service
from support.tiny_models import FAMILIES, VOCAB_SIZE, make_tiny_model, plain_model, tiny_config
from triptych.errors import SetupError
from triptych_generate.families import SUPPORTED_FAMILIES, check_config

_NUM_OUTPUT = 12
#: Shorter and longer than a KV block and a window; 130 is cut into chunks.
_LENGTHS = (1, 5, 63, 64, 130)


def test_families_are_all_compared() -> None:
    assert set(FAMILIES) == SUPPORTED_FAMILIES


@pytest.mark.parametrize("family", sorted(FAMILIES))
async def test_family_greedy_ids_and_logprobs_equal_transformers(
    family: str, tiny_dir: Callable[[str], Path]
) -> None:
    model_dir = tiny_dir(family)
    draw = random.Random(3)
    prompts = [[draw.randrange(VOCAB_SIZE) for _ in range(length)] for length in _LENGTHS]
    plain = plain_model(model_dir)
    async with running_service(model_dir, max_step_tokens=100) as service:
        given = await answers(
            service, [ask(p, max_tokens=_NUM_OUTPUT, logprobs=3) for p in prompts]
        )
    for prompt, answer in zip(prompts, given, strict=True):
        expected = plain.generate(
            torch.tensor([prompt]), max_new_tokens=_NUM_OUTPUT, do_sample=False
        )[0].tolist()
        assert prompt + answer.token_ids == expected
        with torch.inference_mode():
            logits = plain(torch.tensor([expected])).logits[0].float()
        values = torch.log_softmax(logits, -1)[len(prompt) - 1 : -1]
        for position, candidates in enumerate(answer.logprobs.positions()):
            for candidate in candidates:
                wanted = values[position, candidate.token_id].item()
                assert candidate.logprob == pytest.approx(wanted, abs=1e-4)


@pytest.mark.parametrize(
    ("family", "changes", "reason"),
    [
        ("qwen3_next", {}, "linear_attention"),
        ("llama4_text", {}, "chunked_attention"),
        ("falcon", {"rope_parameters": None}, "attention interface"),
        ("opt", {}, "supported are"),
    ],
)
def test_family_that_would_be_wrong_is_refused(
    family: str, changes: dict[str, object], reason: str
) -> None:
    with pytest.raises(SetupError, match=reason):
        check_config(tiny_config(family, **changes))


@pytest.mark.parametrize("kind", ["longrope", "dynamic"])
def test_rope_that_depends_on_the_batch_is_refused(kind: str) -> None:
    config = tiny_config("llama")
    config.rope_parameters = {"rope_type": kind, "rope_theta": 10000.0, "factor": 2.0}
    with pytest.raises(SetupError, match=kind):
        check_config(config)


def test_rope_of_one_layer_type_is_checked() -> None:
    config = tiny_config("gemma3_text")
    config.rope_parameters["full_attention"]["rope_type"] = "dynamic"
    with pytest.raises(SetupError, match="dynamic"):
        check_config(config)


@pytest.mark.parametrize("kind", ["linear", "llama3", "yarn"])
async def test_rope_with_fixed_factors_equals_transformers(kind: str, tmp_path: Path) -> None:
    rope = {"rope_type": kind, "rope_theta": 10000.0, "factor": 4.0}
    if kind != "linear":
        rope["original_max_position_embeddings"] = 128
    if kind == "llama3":
        rope |= {"low_freq_factor": 1.0, "high_freq_factor": 4.0}
    model_dir = make_tiny_model("llama", tmp_path, rope_parameters=rope)
    prompt = list(range(90))
    async with running_service(model_dir) as service:
        (given,) = await answers(service, [ask(prompt, max_tokens=8)])
    expected = plain_model(model_dir).generate(
        torch.tensor([prompt]), max_new_tokens=8, do_sample=False
    )
    assert prompt + given.token_ids == expected[0].tolist()


def test_directory_that_does_not_exist_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SetupError, match="does not exist"):
        load_service(tmp_path / "nothing")


def test_directory_without_config_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SetupError, match=r"config\.json"):
        load_service(tmp_path)


def test_directory_without_weights_is_refused(
    tmp_path: Path, tiny_dir: Callable[[str], Path]
) -> None:
    (tmp_path / "config.json").write_bytes((tiny_dir("llama") / "config.json").read_bytes())
    with pytest.raises(SetupError, match="weights"):
        load_service(tmp_path)


@pytest.mark.parametrize("name", ["config.json", "model.safetensors"])
def test_damaged_file_is_refused_in_one_line(
    name: str, tmp_path: Path, tiny_dir: Callable[[str], Path]
) -> None:
    for path in tiny_dir("llama").iterdir():
        content = path.read_bytes()
        (tmp_path / path.name).write_bytes(
            content[: len(content) // 2] if path.name == name else content
        )
    with pytest.raises(SetupError, match="cannot be"):
        load_service(tmp_path)


def test_weights_that_lack_a_tensor_are_refused(
    tmp_path: Path, tiny_dir: Callable[[str], Path]
) -> None:
    for path in tiny_dir("llama").iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    tensors = load_file(tmp_path / "model.safetensors")
    del tensors["model.layers.1.mlp.up_proj.weight"]
    save_file(tensors, tmp_path / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(SetupError, match=r"lack 1 tensors, first model\.layers\.1"):
        load_service(tmp_path)


def test_context_beyond_the_model_is_refused(tiny_dir: Callable[[str], Path]) -> None:
    with pytest.raises(SetupError, match=r"max_model_len is 1,000.*512"):
        load_service(tiny_dir("llama"), max_model_len=1000)


def test_context_beyond_the_cache_is_refused(tiny_dir: Callable[[str], Path]) -> None:
    with pytest.raises(SetupError, match=r"max_model_len is 512.*kv_cache|KV cache"):
        load_service(tiny_dir("llama"), max_model_len=512, kv_cache_bytes=1 << 17)


def test_device_that_does_not_exist_is_refused(tiny_dir: Callable[[str], Path]) -> None:
    with pytest.raises(SetupError, match="device nowhere"):
        load_service(tiny_dir("llama"), device="nowhere")
