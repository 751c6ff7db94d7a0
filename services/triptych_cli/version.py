"""``triptych version``."""

from importlib.metadata import version
from typing import ClassVar

from pydantic_settings import BaseSettings

from triptych.settings import settings_config


class VersionSettings(BaseSettings):
    """Print the version."""

    model_config = settings_config("TRIPTYCH_VERSION_", "version")
    flag_examples: ClassVar[tuple[str, ...]] = ("triptych version",)


def main(settings: VersionSettings) -> int:
    del settings
    print(f"triptych {version('triptych')}")
    return 0
