"""Settings of the commands that ask a running gateway: ``score`` and ``chat``."""

from typing import ClassVar, Literal

from pydantic import Field, SecretStr
from pydantic_settings import BaseSettings, CliPositionalArg

from triptych.settings import settings_config

InputFormat = Literal["auto", "jsonl", "text"]


class ClientSettings(BaseSettings):
    """Where the gateway is, and who asks."""

    flag_group: ClassVar[str] = "gateway"

    url: str = Field("http://127.0.0.1:8000", description="where it is")
    api_key: SecretStr | None = Field(
        None, description="its key; better the variable; default: none"
    )
    timeout_s: float = Field(600.0, gt=0, description="seconds of silence to bear")

    @property
    def key(self) -> str | None:
        return None if self.api_key is None else self.api_key.get_secret_value()


class ScoreSettings(ClientSettings):
    """Score texts: the logprob and the perplexity of each line of a file or a pipe.

    Writes a JSON object a line, in order: those of JSONL with logprob, num_tokens, num_scored and
    perplexity added. A refused line gives an error in its place. Totals go to standard error.
    """

    model_config = settings_config("TRIPTYCH_SCORE_", "score")
    flag_group: ClassVar[str] = "texts"
    flag_examples: ClassVar[tuple[str, ...]] = (
        "triptych score texts.jsonl --output scores.jsonl --resume",
        "echo 'The capital of France is Paris.' | triptych score - --tokens",
    )

    file: CliPositionalArg[str] = Field(
        description="a text a line, or JSONL; - is standard input",
        json_schema_extra={"metavar": "FILE"},
    )
    format: InputFormat = Field("auto", description="of the lines")
    field: str = Field(
        "text",
        description="of an object, the text or its token ids",
        json_schema_extra={"metavar": "NAME"},
    )
    tokens: bool = Field(False, description="write every token's logprob and rank")
    output: str = Field(
        "-", description="- is standard output", json_schema_extra={"metavar": "FILE"}
    )
    resume: bool = Field(False, description="go on behind what --output has")
    concurrency: int = Field(8, ge=1, le=1024, description="requests at a time")


class ChatSettings(ClientSettings):
    """Talk to the model in the terminal, or ask it one question through a pipe.

    Ctrl-C ends an answer, Ctrl-D the talk; /help lists what else there is. Without a terminal,
    standard input is the question, and the answer is all that is written.
    """

    model_config = settings_config("TRIPTYCH_CHAT_", "chat")
    flag_group: ClassVar[str] = "chat"
    flag_examples: ClassVar[tuple[str, ...]] = (
        "triptych chat --show-probs --top-k 5",
        "echo 'Say hi.' | triptych chat --temperature 0",
    )

    show_probs: bool = Field(False, description="colour each token by its probability")
    top_k: int = Field(0, ge=0, description="list each token with N candidates")
    system: str | None = Field(
        None,
        description="system message; default: the model's",
        json_schema_extra={"metavar": "TEXT"},
    )
    max_tokens: int | None = Field(None, ge=1, description="of an answer; default: what fits")
    temperature: float | None = Field(None, ge=0, description="0 = greedy; default: 1")
    top_p: float | None = Field(
        None, gt=0, le=1, description="sample from this much probability; default: 1"
    )
    seed: int | None = Field(None, description="for the same answers again; default: drawn")


def has_colours() -> bool:
    """Whether a terminal may be sent colours: not with NO_COLOR, and not if it is dumb."""

    class _Terminal(BaseSettings):
        no_color: str = ""
        term: str = ""

    terminal = _Terminal()
    return not terminal.no_color and terminal.term != "dumb"
