"""Settings from flags and ``TRIPTYCH_<SERVICE>_*`` variables: the one place that reads them."""

from pathlib import Path
from typing import Any, ClassVar, Literal, TypeVar

from pydantic import Field, SecretStr, ValidationError
from pydantic_core import ErrorDetails
from pydantic_settings import BaseSettings, SettingsConfigDict, SettingsError

from triptych.errors import SetupError
from triptych.flags import flag_name, values_of

LogLevel = Literal["debug", "info", "warning", "error"]
LogFormat = Literal["text", "json"]

_SettingsT = TypeVar("_SettingsT", bound=BaseSettings)


def settings_config(env_prefix: str, command: str) -> SettingsConfigDict:
    """The configuration of the settings class of ``triptych COMMAND``.

    Two class variables say how its help reads: ``flag_group``, of each class that brings fields,
    is their heading; ``flag_examples``, of the command's own class, are lines at the end.
    """
    return SettingsConfigDict(
        env_prefix=env_prefix, frozen=True, extra="ignore", cli_prog_name=f"triptych {command}"
    )


class LogSettings(BaseSettings):
    """What a service says of itself while it runs."""

    flag_group: ClassVar[str] = "logs and traces"

    log_level: LogLevel = Field("info", description="at least")
    log_format: LogFormat = Field("text", description="of log lines")
    otlp_endpoint: str | None = Field(
        None,
        description="OpenTelemetry collector, HTTP; default: no traces",
        json_schema_extra={"metavar": "URL"},
    )


class ServiceSettings(LogSettings):
    """What every service takes."""

    flag_group: ClassVar[str] = "listening"

    host: str = Field("127.0.0.1", description="address to listen on")
    http_port: int = Field(0, ge=0, le=65535, description="port for JSON; 0 = any")
    cors_origins: str | None = Field(
        None, description="origins that may call: A,B or *; default: none"
    )
    max_body_bytes: int = Field(32 * 2**20, ge=1024, description="of a request; above it: 413")
    drain_timeout_s: float = Field(
        25.0, ge=0, le=3600, description="seconds to finish in after SIGTERM"
    )


class SecretSettings(BaseSettings):
    """Mixed into the settings of both ends of a hop: what a caller of a panel must know."""

    flag_group: ClassVar[str] = "between the gateway and the panels"

    hop_secret: SecretStr | None = Field(
        None,
        min_length=16,
        description="bearer token of panels; safer in a file; default: none",
    )
    hop_secret_file: Path | None = Field(
        None, description="a file that holds the bearer token; default: none"
    )


class TlsSettings(BaseSettings):
    """Mixed into the settings of both ends of a hop: certificates, as PEM files.

    The certificate is a panel's for its doors, and the gateway's for its calls. With ``tls_ca``,
    gRPC callers of a panel need a certificate, and the gateway trusts panels that have one.
    """

    flag_group: ClassVar[str] = "between the gateway and the panels"

    tls_cert: Path | None = Field(None, description="certificate chain, PEM; default: no TLS")
    tls_key: Path | None = Field(None, description="private key of --tls-cert, PEM; default: none")
    tls_ca: Path | None = Field(
        None, description="who signs the other end's certificate; default: anyone"
    )


class GrpcSettings(BaseSettings):
    """Mixed into the settings of services that also have a door for gRPC."""

    flag_group: ClassVar[str] = "listening"

    grpc_port: int = Field(0, ge=0, le=65535, description="port for gRPC; 0 = any")


class PanelSettings(ServiceSettings, GrpcSettings, SecretSettings, TlsSettings):
    """What render, generate and derender take beside."""


class ModelSettings(BaseSettings):
    """Mixed into the settings of services that read a model."""

    flag_group: ClassVar[str] = "model"

    model: str = Field(
        "smollm2",
        description="directory, .gguf file, hub id or name",
        examples=["smollm2"],
    )
    served_model_name: str | None = Field(
        None, description="name in requests and answers; default: of the model"
    )
    max_model_len: int | None = Field(
        None, ge=2, description="context, prompt and output; default: the model's"
    )
    max_logprobs: int = Field(20, ge=-1, description="most candidates per position; -1 = all")


class DeviceSettings(BaseSettings):
    """Mixed into the settings of what computes: where, in what, and with how much memory."""

    flag_group: ClassVar[str] = "engine"

    device: str = Field("cpu", description="cpu, cuda or cuda:N", examples=["cpu", "cuda"])
    dtype: Literal["float32", "bfloat16", "float16"] = Field("float32", description="of weights")
    threads: int | None = Field(
        None, ge=1, description="torch threads on the CPU; default: all cores"
    )
    kv_cache_gb: float | None = Field(
        None, gt=0, description="GB (10^9) of KV cache; default: by what is free"
    )


class TemplateSettings(BaseSettings):
    """Mixed into the settings of the services that know what a chat answer consists of.

    ``auto`` is the tokenizer's own template, or the built-in one that its tokens fit.
    """

    flag_group: ClassVar[str] = "model"

    response_template: str = Field(
        "auto",
        description="built-in name, .json file, none or auto",
        examples=["auto", "none"],
        json_schema_extra={"metavar": "NAME"},
    )


def parse_settings(settings: type[_SettingsT], args: list[str]) -> _SettingsT:
    """``settings`` from ``args``, then the environment, then defaults.

    Raises:
        SetupError: a line per bad value, naming the flag or the variable.
        SystemExit: after ``--help``, or (2) after a line about a flag that does not exist.
    """
    given = values_of(settings, args)
    try:
        return settings(**given)
    except ValidationError as error:
        faults = error.errors(include_url=False)
        raise SetupError("\n".join(_describe(each, settings, given) for each in faults)) from error
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


def _describe(fault: ErrorDetails, settings: type[BaseSettings], given: dict[str, Any]) -> str:
    """One line: where the value stands, what it must be, and the value unless it is secret."""
    name = ".".join(str(part) for part in fault["loc"])
    variable = f"{settings.model_config.get('env_prefix')}{name.upper()}"
    place = flag_name(settings, name) if name in given else variable
    value = fault["input"]
    is_shown = isinstance(value, str | int | float) and not name.endswith(("key", "secret"))
    shown = f" (got {value!r})" if is_shown else ""
    message = fault["msg"].replace("Input should be", "must be").removeprefix("Value error, ")
    return f"{place}: {message}{shown}" if name else message
