"""deploy/compose.yaml as it is run: variables filled in, each service with its image's facts."""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from support.dockerfile import Image, read_image, read_stages

_VARIABLE = re.compile(r"\$\{(\w+)(?::-([^}]*))?\}")


@dataclass(frozen=True, slots=True)
class Mount:
    """A volume: its name or host path, where it appears, and whether it may be written."""

    source: str
    target: str
    is_writable: bool


@dataclass(frozen=True, slots=True)
class ComposeService:
    """One service of the file; ``needs`` must have ended well before it starts."""

    name: str
    image: Image
    argv: list[str]
    environment: dict[str, str]
    mounts: list[Mount]
    tmpfs: dict[str, str]
    user: str
    is_read_only: bool
    needs: list[str]
    healthcheck: list[str] | None
    stop_grace_s: float


def read_compose(path: Path, variables: dict[str, str]) -> dict[str, Any]:
    """The file with ``${NAME:-default}`` filled in from ``variables``, and with its merge keys."""

    def value(found: re.Match[str]) -> str:
        return variables.get(found[1]) or found[2] or ""

    loaded: dict[str, Any] = yaml.safe_load(_VARIABLE.sub(value, path.read_text()))
    return loaded


def read_services(path: Path, variables: dict[str, str]) -> dict[str, ComposeService]:
    """The services built from deploy/Dockerfile that start without a profile."""
    stages = read_stages(path.with_name("Dockerfile"))
    return {
        name: _service(name, entry, read_image(stages, entry["build"]["target"]), variables)
        for name, entry in read_compose(path, variables)["services"].items()
        if "build" in entry and "profiles" not in entry
    }


def _service(
    name: str, entry: dict[str, Any], image: Image, variables: dict[str, str]
) -> ComposeService:
    given = {
        key: variables.get(key) if value is None else str(value)
        for key, value in entry.get("environment", {}).items()
    }
    conditions = {key: need["condition"] for key, need in entry.get("depends_on", {}).items()}
    assert set(conditions.values()) <= {"service_completed_successfully"}
    return ComposeService(
        name=name,
        image=image,
        argv=[*image.entrypoint, *entry.get("command", image.command)],
        environment={
            **image.environment,
            **{key: value for key, value in given.items() if value is not None},
        },
        mounts=[_mount(text) for text in entry.get("volumes", [])],
        tmpfs=dict(text.split(":", 1) for text in entry["tmpfs"]),
        user=entry["user"],
        is_read_only=entry["read_only"],
        needs=list(conditions),
        healthcheck=image.healthcheck,
        stop_grace_s=float(entry.get("stop_grace_period", "10s").removesuffix("s")),
    )


def _mount(text: str) -> Mount:
    source, target, *options = text.split(":")
    return Mount(source, target, is_writable="ro" not in options)
