"""Settings of ``triptych bench``."""

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Literal

from pydantic import Field, SecretStr, field_validator
from pydantic_settings import BaseSettings

from triptych.settings import settings_config

_PICTURES = (".png", ".svg", ".pdf")

Endpoint = Literal["chat", "completions", "generate"]


@dataclass(frozen=True, slots=True)
class Level:
    """One load: so many requests at once, or so many a second, which come at random times."""

    concurrency: int | None = None
    rate: float | None = None

    @property
    def label(self) -> str:
        return f"{self.concurrency}" if self.rate is None else f"{self.rate:g}/s"


class TargetSettings(BaseSettings):
    """What is measured."""

    flag_group: ClassVar[str] = "server"

    url: str | None = Field(
        None, description="of the server; default: port 8000, of generate: 8002"
    )
    model: str | None = Field(
        None,
        description="its name there; default: the first it lists",
        json_schema_extra={"metavar": "NAME"},
    )
    endpoint: Endpoint = Field("chat", description="one of")
    api_key: SecretStr | None = Field(
        None, description="bearer token; better the variable; default: none"
    )
    timeout_s: float = Field(600.0, gt=0, description="seconds that one answer may take")


class LoadSettings(BaseSettings):
    """How many requests, and when."""

    flag_group: ClassVar[str] = "load"

    concurrency: str = Field(
        "1,4,16", description="requests at once, in turn", json_schema_extra={"metavar": "N,…"}
    )
    rate: str | None = Field(
        None,
        description="requests a second instead, as they come; default: none",
        json_schema_extra={"metavar": "N,…"},
    )
    requests: int = Field(32, ge=1, description="requests of each level")
    warmup: int = Field(2, ge=0, description="requests before, which do not count")
    seed: int = Field(0, description="of prompts and arrivals")

    @property
    def levels(self) -> list[Level]:
        if self.rate is not None:
            return [Level(rate=float(each)) for each in self.rate.split(",")]
        return [Level(concurrency=int(each)) for each in self.concurrency.split(",")]

    @field_validator("concurrency")
    @classmethod
    def _is_a_list_of_counts(cls, listed: str) -> str:
        if not all(each.strip().isdecimal() and int(each) > 0 for each in listed.split(",")):
            raise ValueError("must be whole numbers above 0, separated by commas")
        return listed

    @field_validator("rate")
    @classmethod
    def _is_a_list_of_rates(cls, listed: str | None) -> str | None:
        if listed is not None and not all(map(_is_rate, listed.split(","))):
            raise ValueError("must be numbers above 0, separated by commas")
        return listed


class PromptSettings(BaseSettings):
    """What is asked."""

    flag_group: ClassVar[str] = "requests"

    prompt_tokens: int = Field(128, ge=1, description="length of random prompts, about")
    output_tokens: int = Field(64, ge=1, description="length of answers")
    prompts: Path | None = Field(
        None, description="prompts or bodies, JSON a line; default: random words"
    )
    logprobs: int | None = Field(None, ge=0, description="candidates a token; default: none")
    ignore_eos: bool = Field(True, description="no answer ends early; OpenAI refuses it")


class BenchSettings(TargetSettings, LoadSettings, PromptSettings):
    """Measure a running OpenAI-compatible server: throughput, and time to and between tokens.

    Every request streams. Latencies count from the moment a request was due.
    """

    model_config = settings_config("TRIPTYCH_BENCH_", "bench")
    flag_group: ClassVar[str] = "results, beside the table"
    flag_examples: ClassVar[tuple[str, ...]] = (
        "triptych bench --concurrency 1,8,64 --plot bench.png",
        "triptych bench --url https://host/v1 --rate 2,4,8 --json bench.json",
    )

    json_file: Path | None = Field(
        None, description="all figures; default: none", json_schema_extra={"flag": "--json"}
    )
    plot_file: Path | None = Field(
        None,
        description="a picture, .png or .svg; default: none",
        json_schema_extra={"flag": "--plot"},
    )

    @field_validator("plot_file")
    @classmethod
    def _is_a_picture(cls, path: Path | None) -> Path | None:
        if path is not None and path.suffix not in _PICTURES:
            raise ValueError(f"must end in {', '.join(_PICTURES)}")
        return path


def _is_rate(text: str) -> bool:
    try:
        return 0 < float(text) < float("inf")
    except ValueError:
        return False
