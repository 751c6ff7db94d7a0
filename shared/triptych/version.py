"""The version of triptych, from the package's metadata: pyproject.toml is its one place."""

from importlib.metadata import version

VERSION = version("triptych")
