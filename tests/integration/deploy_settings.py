"""The settings that deploy's files give each service, as the service's own class reads them."""

from typing import Any

import pytest
from pydantic_settings import BaseSettings

from integration.fleet import ROOT
from support.dockerfile import read_stages
from triptych.settings import parse_settings
from triptych_cli.prepare import PrepareSettings
from triptych_derender.settings import DerenderSettings
from triptych_gateway.settings import GatewaySettings
from triptych_generate.settings import GenerateSettings
from triptych_render.settings import RenderSettings

SETTINGS: dict[str, type[BaseSettings]] = {
    "gateway": GatewaySettings,
    "render": RenderSettings,
    "generate": GenerateSettings,
    "derender": DerenderSettings,
    "prepare": PrepareSettings,
}
PANELS = ("render", "generate", "derender")
DEPLOY = ROOT / "deploy"
STAGES = read_stages(DEPLOY / "Dockerfile")
#: Seconds between the end of a drain and the end of the process (`serving`, twice its bound).
CLOSE_S = 2


def settings_of(
    monkeypatch: pytest.MonkeyPatch, argv: list[str], environment: dict[str, str]
) -> Any:
    """The settings that a process with ``argv`` (after ``triptych``) and ``environment`` gets.

    Every TRIPTYCH variable that a service's class does not know is a failure.
    """
    command, *flags = argv
    kind = SETTINGS[command]
    prefix = str(kind.model_config["env_prefix"])
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
        if name.startswith("TRIPTYCH_") and name != "TRIPTYCH_CACHE":
            field = name.removeprefix(prefix).lower()
            assert name.startswith(prefix), f"{name} is not {command}'s"
            assert field in kind.model_fields, f"{command} has no {name}"
    return parse_settings(kind, flags)
