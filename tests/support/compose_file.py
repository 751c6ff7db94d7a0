"""deploy's compose files as they are run: variables filled in, each service with its image's facts.

Of several files the later ones change the first, as ``docker compose -f A -f B`` takes them.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from support.dockerfile import Image, read_image, read_stages

_VARIABLE = re.compile(r"\$\{(\w+)(?::-([^}]*))?\}")
#: Lists to which a later file adds; others it replaces.
_ADDED = {"secrets", "volumes"}


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


def read_compose(paths: Sequence[Path], variables: dict[str, str]) -> dict[str, Any]:
    """The files with ``${NAME:-default}`` filled in from ``variables``, and with merge keys."""

    def value(found: re.Match[str]) -> str:
        return variables.get(found[1]) or found[2] or ""

    merged: dict[str, Any] = {}
    for path in paths:
        merged = _merged(merged, yaml.safe_load(_VARIABLE.sub(value, path.read_text())))
    return merged


def read_services(paths: Sequence[Path], variables: dict[str, str]) -> dict[str, ComposeService]:
    """The services built from deploy/Dockerfile that start without a profile."""
    stages = read_stages(paths[0].with_name("Dockerfile"))
    loaded = read_compose(paths, variables)
    secrets = {name: entry["file"] for name, entry in loaded.get("secrets", {}).items()}
    return {
        name: _service(
            name, entry, read_image(stages, entry["build"]["target"]), variables, secrets
        )
        for name, entry in loaded["services"].items()
        if "build" in entry and "profiles" not in entry
    }


def _merged(first: dict[str, Any], later: dict[str, Any]) -> dict[str, Any]:
    merged = dict(first)
    for key, value in later.items():
        if isinstance(value, dict):
            merged[key] = _merged(merged.get(key) or {}, value)
        elif key in _ADDED:
            merged[key] = [*merged.get(key, []), *value]
        else:
            merged[key] = value
    return merged


def _service(
    name: str,
    entry: dict[str, Any],
    image: Image,
    variables: dict[str, str],
    secrets: dict[str, str],
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
        mounts=[
            *(_mount(text) for text in entry.get("volumes", [])),
            *(
                Mount(secrets[each], f"/run/secrets/{each}", is_writable=False)
                for each in entry.get("secrets", [])
            ),
        ],
        tmpfs=dict(text.split(":", 1) for text in entry["tmpfs"]),
        user=entry["user"],
        is_read_only=entry["read_only"],
        needs=list(conditions),
        healthcheck=_healthcheck(entry, image),
        stop_grace_s=float(entry.get("stop_grace_period", "10s").removesuffix("s")),
    )


def _healthcheck(entry: dict[str, Any], image: Image) -> list[str] | None:
    if "healthcheck" not in entry:
        return image.healthcheck
    test: list[str] = entry["healthcheck"]["test"]
    assert test[0] == "CMD"
    return test[1:]


def _mount(text: str) -> Mount:
    source, target, *options = text.split(":")
    return Mount(source, target, is_writable="ro" not in options)
