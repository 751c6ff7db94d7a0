"""``triptych chat``: a talk with the model in the terminal, or one question through a pipe."""

import contextlib
import io
import sys
from dataclasses import dataclass, field

from triptych.client.fields import ChatFields, Message
from triptych.client.http import Client
from triptych.client.replies import ChatChunk, ChatLogprobs, Entry
from triptych.errors import SetupError, TriptychError
from triptych_cli.chat_view import (
    ColourInk,
    Ink,
    MarkInk,
    TokenPainter,
    candidate_lines,
    legend,
    summary,
)
from triptych_cli.client_settings import ChatSettings, has_colours

#: Candidates that are asked for with probabilities, so that /top can list them afterwards.
_NUM_KEPT = 5
_HELP = """\
/reset     forget the talk
/probs     show probabilities, or stop
/top [N]   list each token of the last answer with N candidates
/quit      leave (or Ctrl-D)
Ctrl-C ends an answer. Everything else is said to the model."""


def main(settings: ChatSettings) -> int:
    is_terminal = sys.stdin.isatty() and sys.stdout.isatty()
    with Client(settings.url, api_key=settings.key, timeout_s=settings.timeout_s) as client:
        talk = Talk(client, settings, _ink(sys.stdout.isatty()))
        try:
            if not is_terminal:
                return talk.answer_one(_question())
            name = client.models()[0].id
        except TriptychError as error:
            raise SetupError(error.message) from error
        print(f"{name} at {settings.url}; /help says what there is, Ctrl-D leaves")
        return talk.run()


@dataclass(slots=True)
class Answer:
    """What has come of one answer."""

    text: str = ""
    entries: list[Entry] = field(default_factory=list)
    finish_reason: str | None = None


class Talk:
    """The messages so far, and the settings of the next answer."""

    def __init__(self, client: Client, settings: ChatSettings, ink: Ink) -> None:
        self._client = client
        self._settings = settings
        self._ink = ink
        self._has_probs = settings.show_probs
        self._messages: list[Message] = []
        self._last: list[Entry] = []
        self.reset()

    def run(self) -> int:
        """Questions until the end of input; a failed answer is told of and forgotten."""
        with contextlib.suppress(ImportError):
            import readline  # noqa: F401  # editing and history for input(), where Python has it
        if self._has_probs:
            print(legend(self._ink))
        while (line := _read_line()) is not None:
            if line.startswith("/"):
                if not self._obey(line):
                    return 0
            elif line.strip():
                try:
                    self.say(line)
                except TriptychError as error:
                    print(f"triptych chat: {error.message}", file=sys.stderr)
        return 0

    def answer_one(self, question: str) -> int:
        """Answer what came through a pipe.

        Raises:
            TriptychError: the answer failed.
            SetupError: there was no question.
            KeyboardInterrupt: Ctrl-C ended the answer.
        """
        if not question.strip():
            raise SetupError("standard input has no question")
        if self.say(question.rstrip("\n")):
            raise KeyboardInterrupt
        return 0

    def say(self, text: str) -> bool:
        """Send ``text``, write the answer as it comes, and keep both; whether Ctrl-C ended it.

        Raises:
            TriptychError: the answer failed; the talk is as it was before.
        """
        asked: Message = {"role": "user", "content": text}
        answer = Answer()
        is_interrupted = False
        try:
            self._write_answer([*self._messages, asked], answer)
        except KeyboardInterrupt:
            is_interrupted = True
        finally:
            print()
        if answer.text or not is_interrupted:
            self._messages += [asked, {"role": "assistant", "content": answer.text}]
        self._last = answer.entries
        self._write_end(answer, is_interrupted=is_interrupted)
        return is_interrupted

    def reset(self) -> None:
        system = self._settings.system
        self._messages = [] if system is None else [{"role": "system", "content": system}]
        self._last = []

    def _write_answer(self, messages: list[Message], answer: Answer) -> None:
        """Write what comes; ``answer`` has it also where Ctrl-C or an error ends it."""
        content, reasoning = TokenPainter(self._ink), TokenPainter(self._ink)
        with self._client.stream_chat(messages, **self._fields()) as chunks:
            for chunk in chunks:
                self._write_chunk(chunk, content, reasoning, answer)
        _write(reasoning.end() + content.end())

    def _write_chunk(
        self, chunk: ChatChunk, content: TokenPainter, reasoning: TokenPainter, answer: Answer
    ) -> None:
        for choice in chunk.choices:
            logprobs = choice.logprobs or ChatLogprobs()
            thought, text = choice.delta.reasoning_content or "", choice.delta.content or ""
            answer.text += text
            answer.entries += _all_entries(logprobs)
            answer.finish_reason = choice.finish_reason or answer.finish_reason
            if self._has_probs:
                thought = reasoning.feed(thought, logprobs.reasoning_content or ())
                text = content.feed(text, logprobs.content or ())
            else:
                thought, text = self._ink.aside(thought) if thought else "", self._ink.plain(text)
            _write(thought + text)

    def _write_end(self, answer: Answer, *, is_interrupted: bool) -> None:
        notes = ["stopped"] if is_interrupted else []
        notes += ["cut at max_tokens"] if answer.finish_reason == "length" else []
        if self._has_probs:
            notes += [summary(answer.entries)]
        if (note := "; ".join(filter(None, notes))) and sys.stdout.isatty():
            print(self._ink.aside(f"({note})"))
        if self._settings.top_k:
            self._write_candidates(self._settings.top_k)

    def _fields(self) -> ChatFields:
        settings, fields = self._settings, ChatFields()
        if settings.max_tokens is not None:
            fields["max_tokens"] = settings.max_tokens
        if settings.temperature is not None:
            fields["temperature"] = settings.temperature
        if settings.top_p is not None:
            fields["top_p"] = settings.top_p
        if settings.seed is not None:
            fields["seed"] = settings.seed
        if self._has_probs or settings.top_k:
            fields["logprobs"] = True
            fields["top_logprobs"] = max(settings.top_k, _NUM_KEPT)
        return fields

    def _obey(self, line: str) -> bool:
        """Carry out a command; False: leave."""
        name, _, value = line.strip().partition(" ")
        match name:
            case "/quit" | "/exit":
                return False
            case "/help":
                print(_HELP)
            case "/reset":
                self.reset()
            case "/probs":
                self._switch_probs()
            case "/top":
                self._write_candidates(int(value) if value.isdecimal() else _NUM_KEPT)
            case _:
                print(f"there is no command {name}; /help lists them")
        return True

    def _switch_probs(self) -> None:
        self._has_probs = not self._has_probs
        print(legend(self._ink) if self._has_probs else "no probabilities")

    def _write_candidates(self, num_candidates: int) -> None:
        if not self._last:
            print("no candidates: /probs, and ask again")
        for line in candidate_lines(self._last, num_candidates, self._ink):
            print(line)


def _all_entries(logprobs: ChatLogprobs) -> list[Entry]:
    lists = (logprobs.reasoning_content, logprobs.content, logprobs.tool_calls, logprobs.markup)
    return [entry for entries in lists for entry in entries or ()]


def _ink(is_terminal: bool) -> Ink:
    return ColourInk() if is_terminal and has_colours() else MarkInk(is_terminal=is_terminal)


def _question() -> str:
    """All of standard input.

    Raises:
        SetupError: it is no text.
    """
    try:
        return io.TextIOWrapper(sys.stdin.buffer, encoding="utf-8").read()
    except UnicodeDecodeError as error:
        raise SetupError(f"standard input is not UTF-8 at byte {error.start}") from error


def _read_line() -> str | None:
    """What is typed; empty after Ctrl-C, None at the end of input."""
    try:
        return input("> ")
    except KeyboardInterrupt:
        print("\n(Ctrl-D or /quit leaves)")
        return ""
    except EOFError:
        print()
        return None


def _write(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()
