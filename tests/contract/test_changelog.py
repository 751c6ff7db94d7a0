"""CHANGELOG.md against the version, which comes after its releases or is the latest of them."""

import re
import tomllib
from pathlib import Path

from triptych.version import VERSION

ROOT = Path(__file__).parents[2]
HEADING = re.compile(r"^## (.*)$", re.MULTILINE)
RELEASE = re.compile(r"\[(\d+)\.(\d+)\.(\d+)\] - \d{4}-\d{2}-\d{2}")


def test_version_is_the_changelogs_latest_or_comes_after_it() -> None:
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    current = tuple(map(int, version.split(".")))
    latest, *before = HEADING.findall((ROOT / "CHANGELOG.md").read_text())
    if latest != "[Unreleased]":
        before = [latest, *before]
    releases = [RELEASE.fullmatch(heading) for heading in before]
    numbers = [tuple(map(int, found.groups())) for found in releases if found]
    assert len(numbers) == len(before), "a heading is [X.Y.Z] - YYYY-MM-DD"
    assert numbers == sorted(set(numbers), reverse=True), "newest first, each once"
    if latest == "[Unreleased]":
        assert all(number < current for number in numbers)
    else:
        assert numbers[0] == current


def test_installed_version_is_that_of_the_project() -> None:
    assert tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"] == VERSION
