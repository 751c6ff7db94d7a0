"""A toy model directory: 256 bytes and a few special tokens, any template, any post-processor."""

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors

from triptych_render.renderer import Renderer

SPECIAL_TOKENS = ["<unk>", "<s>", "</s>", "<|im_start|>", "<|im_end|>"]
BOS_ID = 1
CONTEXT = 512
CHATML = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\\n' "
    "+ message['content'] + '<|im_end|>\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)


def toy_tokenizer(*, adds_bos: bool) -> Tokenizer:
    pieces = [*SPECIAL_TOKENS, *sorted(pre_tokenizers.ByteLevel.alphabet())]
    vocab = {piece: index for index, piece in enumerate(pieces)}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[], unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(text, special=True) for text in SPECIAL_TOKENS])
    if adds_bos:
        tokenizer.post_processor = processors.TemplateProcessing(
            single="<s> $A", pair="<s> $A <s> $B", special_tokens=[("<s>", BOS_ID)]
        )
    return tokenizer


def write_model(
    directory: Path,
    *,
    template: str | list[dict[str, str]] | None = CHATML,
    adds_bos: bool = False,
    config: dict[str, Any] | None = None,
    tokenizer: Tokenizer | None = None,
) -> Path:
    (tokenizer or toy_tokenizer(adds_bos=adds_bos)).save(str(directory / "tokenizer.json"))
    (directory / "config.json").write_text(
        json.dumps({"vocab_size": 261, "max_position_embeddings": CONTEXT, **(config or {})})
    )
    tokenizer_config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": {"content": "<s>", "lstrip": False},
        "eos_token": "</s>",
        "unk_token": "<unk>",
        "chat_template": template,
    }
    (directory / "tokenizer_config.json").write_text(json.dumps(tokenizer_config))
    return directory


@pytest.fixture
def make_model(tmp_path: Path) -> Callable[..., Path]:
    """Writes the toy model; keyword arguments change its parts."""
    return partial(write_model, tmp_path)


@pytest.fixture
def make_tokenizer() -> Callable[..., Tokenizer]:
    def make(*, truncation: int, padding: int) -> Tokenizer:
        tokenizer = toy_tokenizer(adds_bos=False)
        tokenizer.enable_truncation(truncation)
        tokenizer.enable_padding(length=padding)
        return tokenizer

    return make


@pytest.fixture
def make_renderer(make_model: Callable[..., Path]) -> Callable[..., Renderer]:
    """The renderer of a toy model that the keyword arguments change."""

    def make(*, allow_request_templates: bool = False, **parts: Any) -> Renderer:
        return Renderer.from_directory(
            make_model(**parts), model="toy", allow_request_templates=allow_request_templates
        )

    return make


@pytest.fixture(scope="session")
def renderer(tmp_path_factory: pytest.TempPathFactory) -> Renderer:
    directory = write_model(tmp_path_factory.mktemp("toy"))
    return Renderer.from_directory(directory, model="toy")


@pytest.fixture(scope="session")
def smol(smollm2_dir: Path) -> Renderer:
    """The renderer that the recordings are compared with: their model name and context."""
    return Renderer.from_directory(smollm2_dir, model="smol", max_model_len=4096)
