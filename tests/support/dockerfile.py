"""What deploy/Dockerfile says of each image, read without a Docker engine."""

import json
import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

#: ``$PATH`` of the images that the file begins with.
_BASE_PATH = "/usr/local/bin:/usr/local/sbin:/usr/sbin:/usr/bin:/sbin:/bin"


@dataclass(frozen=True, slots=True)
class Stage:
    """One FROM and the instructions after it: keyword and text, lines joined."""

    name: str
    base: str
    instructions: list[tuple[str, str]] = field(default_factory=list)

    def texts(self, keyword: str) -> list[str]:
        return [text for key, text in self.instructions if key == keyword]


@dataclass(frozen=True, slots=True)
class Image:
    """What a container of a target starts with."""

    environment: dict[str, str]
    entrypoint: list[str]
    command: list[str]
    user: str
    ports: list[int]
    healthcheck: list[str] | None


def read_stages(path: Path) -> dict[str, Stage]:
    stages: dict[str, Stage] = {}
    current: Stage | None = None
    for keyword, text in _instructions(path.read_text()):
        if keyword == "FROM":
            base, _, name = text.partition(" AS ")
            current = stages[name] = Stage(name, base)
        elif current is not None:
            current.instructions.append((keyword, text))
    return stages


def lineage(stages: dict[str, Stage], target: str) -> list[Stage]:
    """The stages that ``target`` is built on, the first one first, itself last."""
    chain: list[Stage] = []
    name = target
    while name in stages:
        chain.insert(0, stages[name])
        name = stages[name].base
    return chain


def read_image(stages: dict[str, Stage], target: str) -> Image:
    """The image of ``target``: later instructions win, as in a build."""
    texts: dict[str, list[str]] = {}
    for stage in lineage(stages, target):
        for keyword, text in stage.instructions:
            texts.setdefault(keyword, []).append(text)
    check = re.search(r"CMD (\[.*\])", texts["HEALTHCHECK"][-1])
    return Image(
        environment=read_env(texts["ENV"]),
        entrypoint=json.loads(texts["ENTRYPOINT"][-1]),
        command=json.loads(texts["CMD"][-1]),
        user=texts["USER"][-1],
        ports=[int(port) for text in texts.get("EXPOSE", []) for port in text.split()],
        healthcheck=json.loads(check[1]) if check else None,
    )


def read_env(texts: list[str]) -> dict[str, str]:
    """The variables of ENV instructions."""
    pairs = (pair.partition("=") for text in texts for pair in shlex.split(text))
    return {name: value.replace("$PATH", _BASE_PATH) for name, _, value in pairs}


def _instructions(source: str) -> Iterator[tuple[str, str]]:
    lines = [line for line in source.splitlines() if not line.lstrip().startswith("#")]
    for line in re.sub(r"\\\n\s*", "", "\n".join(lines)).splitlines():
        keyword, _, text = line.strip().partition(" ")
        if keyword:
            yield keyword, text.strip()
