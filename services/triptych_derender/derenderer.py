"""The derenderer: one token table, and the ways in: whole, stream, stateless, and JSON bodies."""

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Self

import msgspec

from triptych.errors import InvalidRequestError, ModelNotFoundError, SetupError
from triptych.reply import ReplySpec
from triptych.response_template import ResponseFamily, find_family
from triptych.structured import make_vocabulary
from triptych.wire import (
    ChoiceDelta,
    Generated,
    GenerateDelta,
    Usage,
    Vocabulary,
    count_usage,
)
from triptych_derender.bodies import (
    ChunkBody,
    WholeBody,
    parse_chat,
    parse_completion,
)
from triptych_derender.chat import ChatFormat
from triptych_derender.checks import (
    check_choices,
    check_distinct,
    check_output_len,
    check_prompt,
    check_spec,
)
from triptych_derender.choice import TextRules, text_rules
from triptych_derender.completions import CompletionFormat
from triptych_derender.entries import EntryWriter
from triptych_derender.formats import PromptFacts, PromptReply, ReplyContext, ReplyFormat
from triptych_derender.pieces import Piece
from triptych_derender.prompts import Prompt, PromptRules
from triptych_derender.reply_stream import ReplyStream
from triptych_derender.split_start import split_start
from triptych_derender.split_state import SplitRules, Template
from triptych_derender.stream_state import StateCodec, refusal
from triptych_derender.token_table import TokenTable, load_token_table

__all__ = ["Derenderer", "ReplyStream"]


class Derenderer:
    """Token ids and integer logprobs to OpenAI replies. It holds no state of any request.

    Args:
        table: bytes of every token id.
        model: the served name; other names are refused.
        max_model_len: most output ids of a choice (tokens); None = no limit.
        max_logprobs: most candidates of a position beside the sampled one; -1 = no limit.
        family: how chat answers are split into channels; None = everything is content.
        state_key: signs the stateless stream's state; None = it has a checksum alone.
        clock: seconds since 1970, for ``created`` of the JSON endpoints.

    Raises:
        SetupError: the family's template is not one.
    """

    def __init__(
        self,
        table: TokenTable,
        *,
        model: str,
        max_model_len: int | None = None,
        max_logprobs: int = 20,
        family: ResponseFamily | None = None,
        state_key: bytes | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.table = table
        self.model = model
        self.max_model_len = max_model_len
        self.max_logprobs = max_logprobs
        self.family = family
        self._template = None if family is None else _load_template(family)
        self._states = StateCodec(state_key, f"{table.fingerprint} {family and family.name}")
        self._clock = clock
        self._writers = {
            as_ids: EntryWriter(table, as_token_ids=as_ids) for as_ids in (False, True)
        }

    @classmethod
    def from_directory(
        cls,
        directory: Path,
        *,
        model: str,
        max_model_len: int | None = None,
        max_logprobs: int = 20,
        response_template: str = "auto",
        state_key: bytes | None = None,
    ) -> Self:
        """A derenderer from a directory with a tokenizer.json.

        Of other files, tokenizer_config.json is read, where ``response_template`` is ``auto``.

        Raises:
            SetupError: there is none, it cannot be decoded here, or there is no such template.
        """
        return cls(
            load_token_table(Path(directory)),
            model=model,
            max_model_len=max_model_len,
            max_logprobs=max_logprobs,
            family=find_family(response_template, Path(directory)),
            state_key=state_key,
        )

    def vocabulary(self) -> Vocabulary:
        """The bytes of every id, for structured outputs; special tokens are no text."""
        table = self.table
        tokens = [
            b"" if token_id in table.special_ids else raw
            for token_id, raw in enumerate(table.bytes_of)
        ]
        return make_vocabulary(table.fingerprint, tokens)

    def whole(
        self, spec: ReplySpec, answers: Sequence[Generated], *, request_id: str, created: int
    ) -> bytes:
        """The JSON body of a whole reply.

        Args:
            spec: how to write it.
            answers: one per prompt, in order.
            request_id: the reply's ``id``.
            created: seconds since 1970.

        Raises:
            InvalidRequestError: an answer does not fit the limits, the spec or itself.
        """
        body = self._format(spec, request_id=request_id, created=created)
        if not answers or (spec.endpoint == "chat" and len(answers) > 1):
            raise InvalidRequestError(f"a {spec.endpoint} reply cannot have {len(answers)} answers")
        num_choices = max(spec.n, *(_num_choices(answer) for answer in answers))
        prompts, num_tokens = [], 0
        for answer in answers:
            num_output, prompt = self._whole_prompt(spec, answer)
            prompts.append(prompt)
            num_tokens += num_output
        usage = count_usage(
            sum(answer.prompt_tokens for answer in answers),
            num_tokens,
            sum(answer.cached_tokens for answer in answers),
        )
        return body.whole(prompts, num_choices=num_choices, usage=usage)

    def open(
        self, spec: ReplySpec, *, request_id: str, created: int, prompts: Sequence[list[int]]
    ) -> ReplyStream:
        """A streaming reply.

        Args:
            spec: how to write it.
            request_id: the ``id`` of every chunk.
            created: seconds since 1970.
            prompts: each prompt's token ids, for echo and usage.
        """
        body = self._format(spec, request_id=request_id, created=created)
        rules = [self._prompt_rules(spec, spec.n, ids) for ids in prompts]
        plain_form = body.plain_form if isinstance(body, ChatFormat) else None
        return ReplyStream(spec, rules, body, list(prompts), plain_form)

    def feed_stateless(
        self,
        spec: ReplySpec,
        delta: GenerateDelta,
        stream_state: str | None,
        *,
        request_id: str,
        created: int,
        prompt_tokens: int,
        prompt_token_ids: list[int] | None,
        usage: Usage | None = None,
    ) -> tuple[bytes, str]:
        """One chunk with all choices of ``delta``, and the state for the next call.

        Args:
            spec: how to write it; the same in every call.
            delta: what generate sent; without choices it gives the usage chunk.
            stream_state: what the previous call returned; None begins.
            request_id: the chunk's ``id``.
            created: seconds since 1970.
            prompt_tokens: for usage.
            prompt_token_ids: for echo and ``return_token_ids``.
            usage: what generate sent, if it did; shown, but for tokens after a stop string.
        """
        check_choices(delta.choices)
        check_output_len(delta.choices, self.max_model_len)
        check_prompt(prompt_token_ids, delta.prompt_logprobs)
        body = self._format(spec, request_id=request_id, created=created)
        state = self._states.decode(stream_state, self._text_rules(spec))
        has_begun = all(choice.index in state.choices for choice in delta.choices)
        rules = self._prompt_rules(spec, spec.n, prompt_token_ids, has_begun=has_begun)
        try:
            prompt = Prompt(rules, state)
            updates = prompt.feed(delta) if delta.choices else []
            state = prompt.state()
        except (ValueError, LookupError, TypeError, AttributeError) as error:
            if stream_state is None:
                raise
            raise refusal("was changed") from error  # what its checks did not find
        if usage is not None:
            num_output = prompt.num_tokens() if prompt.is_cut() else usage.completion_tokens
            cached = (usage.prompt_tokens_details or {}).get("cached_tokens", 0)
            usage = count_usage(prompt_tokens, num_output, cached)
        facts = PromptFacts(prompt_token_ids, delta.prompt_logprobs)
        return body.stateless_chunk(updates, facts, usage), self._states.encode(state)

    def derender_chat(self, body: bytes) -> bytes:
        """The chat derender endpoint: JSON request to JSON response, whole or one chunk.

        Raises:
            InvalidRequestError: the body is malformed or over a limit.
            ModelNotFoundError: it names another model.
        """
        return self._derender(parse_chat(body, model=self.model, max_logprobs=self.max_logprobs))

    def derender_completion(self, body: bytes) -> bytes:
        """The completions derender endpoint; see ``derender_chat``."""
        return self._derender(
            parse_completion(body, model=self.model, max_logprobs=self.max_logprobs)
        )

    def _derender(self, body: WholeBody | ChunkBody) -> bytes:
        for name in (body.model, body.spec.model):
            if name not in (None, self.model):
                raise ModelNotFoundError(
                    f"the model {name!r} is not served here; {self.model!r} is", param="model"
                )
        created = int(self._clock())
        if isinstance(body, WholeBody):
            request_id = body.answers[0].request_id
            return self.whole(body.spec, body.answers, request_id=request_id, created=created)
        chunk, state = self.feed_stateless(
            body.spec,
            body.delta,
            body.stream_state,
            request_id=body.delta.request_id,
            created=created,
            prompt_tokens=body.prompt_tokens,
            prompt_token_ids=body.prompt_token_ids,
            usage=body.usage,
        )
        return b'{"chunk":%b,"stream_state":%b}' % (chunk, msgspec.json.encode(state))

    def _whole_prompt(self, spec: ReplySpec, answer: Generated) -> tuple[int, PromptReply]:
        """How many tokens count for usage, and what the reply says of this prompt."""
        check_choices(answer.choices)
        check_distinct(answer.choices)
        check_output_len(answer.choices, self.max_model_len)
        check_prompt(answer.prompt_token_ids, answer.prompt_logprobs)
        delta = GenerateDelta(
            request_id=answer.request_id,
            choices=[_ended(choice) for choice in answer.choices],
            prompt_logprobs=answer.prompt_logprobs,
        )
        rules = self._prompt_rules(spec, 0, answer.prompt_token_ids)
        prompt = Prompt(rules)
        pieces = {update.index: update.piece for update in prompt.feed(delta)}
        for choice in answer.choices:
            pieces[choice.index] = _as_sent(choice, pieces[choice.index])
        facts = PromptFacts(answer.prompt_token_ids, answer.prompt_logprobs)
        return prompt.num_tokens(), PromptReply(facts, pieces)

    def _prompt_rules(
        self,
        spec: ReplySpec,
        num_choices: int,
        prompt_token_ids: list[int] | None,
        *,
        has_begun: bool = False,
    ) -> PromptRules:
        if spec.echo and prompt_token_ids is None and not has_begun:
            raise InvalidRequestError("echo needs prompt_token_ids", param="prompt_token_ids")
        rules = self._text_rules(spec)
        start = None if has_begun else split_start(rules, self.family, prompt_token_ids)
        return PromptRules(
            text=rules,
            num_choices=num_choices,
            echo_ids=prompt_token_ids if spec.echo else None,
            start=start,
        )

    def _text_rules(self, spec: ReplySpec) -> TextRules:
        if self._template is None or spec.endpoint != "chat":
            return text_rules(spec, self.table)
        split = SplitRules(
            template=self._template, tools=spec.tools, allows_parallel=spec.parallel_tool_calls
        )
        return text_rules(spec, self.table, split)

    def _format(self, spec: ReplySpec, *, request_id: str, created: int) -> ReplyFormat:
        check_spec(spec, self.table.fingerprint, self.family)
        context = ReplyContext(
            spec=spec,
            request_id=request_id,
            created=created,
            table=self.table,
            writer=self._writers[spec.return_tokens_as_token_ids],
            call_id_chars=self.family.call_id_chars if self.family else None,
        )
        return ChatFormat(context) if spec.endpoint == "chat" else CompletionFormat(context)


def _load_template(family: ResponseFamily) -> Template:
    """Imports transformers, which takes most of a second: only where a template is used.

    Raises:
        SetupError: transformers is not installed, or does not take the template.
    """
    try:
        from triptych_derender.reply_template import ReplyTemplate
    except ImportError as error:
        raise SetupError(
            f"response template {family.name} needs transformers ({error}): install "
            f"triptych[derender], or use --response-template none"
        ) from error
    return ReplyTemplate(family)


def _num_choices(answer: Generated) -> int:
    return 1 + max((choice.index for choice in answer.choices), default=-1)


def _ended(choice: ChoiceDelta) -> ChoiceDelta:
    """A choice of a whole answer ends, even where the sender gave no reason."""
    if choice.finish_reason is not None:
        return choice
    return msgspec.structs.replace(choice, finish_reason="length")


def _as_sent(choice: ChoiceDelta, piece: Piece) -> Piece:
    """``piece`` with the sender's missing reason, unless a stop string gave one."""
    if choice.finish_reason is None and piece.finish_reason == "length":
        return msgspec.structs.replace(piece, finish_reason=None)
    return piece
