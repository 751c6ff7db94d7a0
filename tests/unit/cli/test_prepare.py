"""What `triptych prepare` leaves in the cache."""

from pathlib import Path

import pytest
from huggingface_hub.utils import filter_repo_objects

from triptych.errors import SetupError
from triptych.models import resolve
from triptych_cli.prepare import UNWANTED, WANTED, prepare


def test_what_a_killed_process_left_is_removed_by_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRIPTYCH_CACHE", str(tmp_path / "cache"))
    gguf = tmp_path / "name.Q4.gguf"
    gguf.write_bytes(b"no model")
    directory = resolve(str(gguf)).directory
    of_others = directory.with_name(f".preparing-{directory.name}-other")
    for left in (directory.with_name(f".preparing-{directory.name}"), of_others):
        left.mkdir(parents=True)
        (left / "model.safetensors").write_bytes(b"half")
    with pytest.raises(SetupError, match="GGUF"):
        prepare(str(gguf))
    kept = {each.name for each in directory.parent.iterdir()}
    assert kept == {of_others.name, f"{directory.name}.lock"}


def test_weights_are_fetched_once() -> None:
    """Of repositories as mistralai's and openai's, which hold them in two formats."""
    wanted = ["config.json", "model-00001-of-00002.safetensors", "tokenizer.json"]
    wanted += ["model.safetensors.index.json", "additional_chat_templates/tool_use.jinja"]
    others = ["consolidated.safetensors", "consolidated-00001-of-00002.safetensors"]
    others += ["original/model.safetensors", "metal/model.bin", "README.md"]
    found = filter_repo_objects(
        [*wanted, *others], allow_patterns=list(WANTED), ignore_patterns=list(UNWANTED)
    )
    assert list(found) == wanted
