"""Settings from flags and ``TRIPTYCH_<SERVICE>_*`` variables: the one place that reads them."""

from pathlib import Path
from typing import Literal, TypeVar

from pydantic import Field, SecretStr, ValidationError
from pydantic_core import ErrorDetails
from pydantic_settings import BaseSettings, CliApp, SettingsConfigDict, SettingsError

from triptych.errors import SetupError

LogLevel = Literal["debug", "info", "warning", "error"]
LogFormat = Literal["text", "json"]

_SettingsT = TypeVar("_SettingsT", bound=BaseSettings)


def settings_config(env_prefix: str, command: str) -> SettingsConfigDict:
    """The configuration of the settings class of ``triptych COMMAND``."""
    return SettingsConfigDict(
        env_prefix=env_prefix,
        frozen=True,
        extra="ignore",
        cli_prog_name=f"triptych {command}",
        cli_kebab_case=True,
        cli_implicit_flags=True,
        cli_hide_none_type=True,
        cli_avoid_json=True,
        cli_parse_none_str="none",
    )


class ServiceSettings(BaseSettings):
    """What every service takes."""

    host: str = Field("127.0.0.1", description="address to listen on")
    http_port: int = Field(0, ge=0, le=65535, description="port for JSON; 0 = any")
    log_level: LogLevel = Field("info", description="least severity that is logged")
    log_format: LogFormat = Field("text", description="text, or json: one object a line")
    otlp_endpoint: str | None = Field(
        None,
        description="base URL of an OpenTelemetry collector (OTLP over HTTP) that gets traces; "
        "default: no traces",
    )
    cors_origins: str | None = Field(
        None,
        description="origins whose pages may call from a browser, separated by commas, or *; "
        "default: none",
    )
    max_body_bytes: int = Field(
        32 * 2**20, ge=1024, description="largest request body, in bytes; above it: 413"
    )
    drain_timeout_s: float = Field(
        25.0, ge=0, le=3600, description="seconds that running requests may take after SIGTERM"
    )


class SecretSettings(BaseSettings):
    """Mixed into the settings of both ends of a hop: what a caller of a panel must know."""

    hop_secret: SecretStr | None = Field(
        None,
        min_length=16,
        description="what callers of a panel send as a bearer token, at both doors; better by the "
        "variable or a file, since flags show in the list of processes; default: none needed",
    )
    hop_secret_file: Path | None = Field(None, description="a file that holds the hop secret")


class TlsSettings(BaseSettings):
    """Mixed into the settings of both ends of a hop: certificates, as PEM files."""

    tls_cert: Path | None = Field(
        None,
        description="certificate chain: a panel's for its doors, the gateway's for its calls; "
        "default: no TLS",
    )
    tls_key: Path | None = Field(None, description="private key of --tls-cert")
    tls_ca: Path | None = Field(
        None,
        description="certificates that sign the other end's: gRPC callers of a panel need one "
        "then, and the gateway trusts panels that have one",
    )


class PanelSettings(ServiceSettings, SecretSettings, TlsSettings):
    """What render, generate and derender take beside."""

    grpc_port: int = Field(0, ge=0, le=65535, description="port for gRPC; 0 = any")


class ModelSettings(BaseSettings):
    """Mixed into the settings of services that read a model."""

    model: str = Field(
        "smollm2",
        description="a model directory, a .gguf file, a hub id, or the built-in name smollm2",
    )
    served_model_name: str | None = Field(
        None, description="name in requests and answers; default: the built-in name or folder name"
    )
    max_model_len: int | None = Field(
        None, ge=2, description="context in tokens, prompt and output; default: the model's own"
    )
    max_logprobs: int = Field(
        20, ge=-1, description="most candidates per position; -1 = the whole vocabulary"
    )


class TemplateSettings(BaseSettings):
    """Mixed into the settings of the services that know what a chat answer consists of."""

    response_template: str = Field(
        "auto",
        description="how reasoning and tool calls are found in chat answers: a built-in template's "
        "name, a .json file, none, or auto: the tokenizer's own, or the one its tokens fit",
    )


def parse_settings(settings: type[_SettingsT], args: list[str]) -> _SettingsT:
    """``settings`` from ``args``, then the environment, then defaults.

    Raises:
        SetupError: a line per bad value, naming the flag.
        SystemExit: after ``--help``, or for an unknown flag (argparse says which).
    """
    try:
        return CliApp.run(settings, cli_args=args)
    except ValidationError as error:
        raise SetupError("\n".join(map(_describe, error.errors(include_url=False)))) from error
    except SettingsError as error:
        raise SetupError(str(error).splitlines()[0]) from error


def cache_directory() -> Path:
    """Where prepared models lie: ``$TRIPTYCH_CACHE``, else the user's cache folder."""

    class _CacheSettings(BaseSettings):
        triptych_cache: Path | None = None
        xdg_cache_home: Path | None = None

    places = _CacheSettings()
    if places.triptych_cache is not None:
        return places.triptych_cache
    return (places.xdg_cache_home or Path.home() / ".cache") / "triptych"


def _describe(fault: ErrorDetails) -> str:
    flag = ".".join(str(part) for part in fault["loc"]).replace("_", "-")
    value = fault["input"]
    is_secret = flag.endswith(("key", "secret"))
    is_shown = isinstance(value, str | int | float) and not is_secret
    given = f" (got {value!r})" if is_shown else ""
    return f"--{flag}: {fault['msg']}{given}"
