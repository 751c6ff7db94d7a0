"""What render reads from a model directory besides tokenizer.json: context, templates, names."""

import json
from pathlib import Path
from typing import Any

import msgspec

from triptych.errors import SetupError

_SPECIAL_TOKENS = (
    "bos_token",
    "eos_token",
    "unk_token",
    "sep_token",
    "pad_token",
    "cls_token",
    "mask_token",
)
#: The names under which config.json gives the context length, by model family.
_CONTEXT_LENGTHS = ("max_position_embeddings", "n_positions", "max_seq_len", "seq_length")


class ModelFiles(msgspec.Struct, frozen=True, kw_only=True):
    """``templates`` maps names to sources: ``default`` and, for some models, ``tool_use``."""

    vocab_size: int | None
    context_len: int | None
    tokenizer_class: str | None
    special_tokens: dict[str, str]
    templates: dict[str, str]


def read_model_files(directory: Path) -> ModelFiles:
    """Reads what is there; only broken files are errors.

    Raises:
        SetupError: the directory does not exist, or a file in it cannot be read.
    """
    if not directory.is_dir():
        raise SetupError(f"the model directory {directory} does not exist")
    config = _read_json(directory / "config.json")
    text_config = config.get("text_config")
    config = {**config, **(text_config if isinstance(text_config, dict) else {})}
    tokenizer_config = _read_json(directory / "tokenizer_config.json")
    lengths = [config[name] for name in _CONTEXT_LENGTHS if isinstance(config.get(name), int)]
    vocab_size = config.get("vocab_size")
    tokenizer_class = tokenizer_config.get("tokenizer_class")
    return ModelFiles(
        vocab_size=vocab_size if isinstance(vocab_size, int) else None,
        context_len=lengths[0] if lengths else None,
        tokenizer_class=tokenizer_class if isinstance(tokenizer_class, str) else None,
        special_tokens=_special_tokens(directory, tokenizer_config),
        templates=_templates(directory, tokenizer_config),
    )


def _special_tokens(directory: Path, tokenizer_config: dict[str, Any]) -> dict[str, str]:
    declared = {**_read_json(directory / "special_tokens_map.json"), **tokenizer_config}
    found = {}
    for name in _SPECIAL_TOKENS:
        value = declared.get(name)
        text = value.get("content") if isinstance(value, dict) else value
        if isinstance(text, str):
            found[name] = text
    return found


def _templates(directory: Path, tokenizer_config: dict[str, Any]) -> dict[str, str]:
    """Template files win over tokenizer_config.json, as in transformers."""
    templates = _declared_templates(tokenizer_config.get("chat_template"))
    if not templates:
        chat_template = _read_json(directory / "chat_template.json").get("chat_template")
        templates = _declared_templates(chat_template)
    main = directory / "chat_template.jinja"
    if main.is_file():
        more = sorted((directory / "additional_chat_templates").glob("*.jinja"))
        templates = {"default": _read_text(main), **{path.stem: _read_text(path) for path in more}}
    return templates


def _declared_templates(value: Any) -> dict[str, str]:
    if isinstance(value, str):
        return {"default": value}
    if isinstance(value, list):
        return {
            entry["name"]: entry["template"]
            for entry in value
            if isinstance(entry, dict) and {"name", "template"} <= entry.keys()
        }
    return {}


def _read_json(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    try:
        # Not msgspec: transformers writes Infinity into some configs.
        content = json.loads(_read_text(path))
    except json.JSONDecodeError as error:
        raise SetupError(f"{path} is not valid JSON: {error}") from error
    return content if isinstance(content, dict) else {}


def _read_text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise SetupError(f"cannot read {path}: {error}") from error
