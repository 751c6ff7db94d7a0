"""A reply that is written as its deltas come: the state of all prompts of one request."""

from functools import partial

import msgspec

from triptych.errors import InvalidRequestError
from triptych.reply import Fed, ReplySpec
from triptych.wire import GenerateDelta, Usage, count_usage
from triptych_derender.checks import check_choices, check_prompt
from triptych_derender.formats import PromptFacts, ReplyFormat
from triptych_derender.plain import PlainChoice, PlainFormOf
from triptych_derender.prompts import Prompt, PromptRules


class ReplyStream:
    """One streaming reply. The work per token does not depend on what came before."""

    def __init__(
        self,
        spec: ReplySpec,
        rules: list[PromptRules],
        body: ReplyFormat,
        prompt_ids: list[list[int]],
        plain_form: PlainFormOf | None,
    ) -> None:
        """``plain_form``: how plain tokens of the one prompt are written, if there is one."""
        self._spec = spec
        self._body = body
        self._prompt_ids = prompt_ids
        self._prompts = [Prompt(each) for each in rules]
        self._num_open = len(prompt_ids)
        self._num_cached = 0
        self._shows_usage = spec.include_usage and spec.continuous_usage_stats
        self._plain_form = None if self._shows_usage or len(rules) > 1 else plain_form
        self._plain: dict[int, PlainChoice] = {}

    def feed(self, prompt_index: int, delta: GenerateDelta) -> Fed:
        """The chunks that ``delta`` of one prompt gives; nothing for choices that are done.

        Raises:
            InvalidRequestError: no such prompt or choice, or logprobs that do not fit the ids.
        """
        if not prompt_index and (chunk := self.plain(delta)) is not None:
            return Fed(chunks=[chunk], done_prompts=[], is_done=False)
        self._check(prompt_index, delta)
        self._num_cached += delta.cached_tokens
        prompt = self._prompts[prompt_index]
        updates = prompt.feed(delta)
        facts = PromptFacts(self._prompt_ids[prompt_index], delta.prompt_logprobs)
        if first := prompt_index * self._spec.n:
            updates = [msgspec.structs.replace(each, index=first + each.index) for each in updates]
        chunks = self._body.chunks(updates, facts, self._usage() if self._shows_usage else None)
        done_prompts = []
        has_end = False
        for update in updates:
            if update.is_first and self._plain_form is not None:
                self._plain[update.index] = self._plain_choice(update.index, self._plain_form)
            has_end = has_end or update.piece.finish_reason is not None
        if has_end and prompt.is_done():
            done_prompts = [prompt_index]
            self._num_open -= 1
            if self.is_done and self._spec.include_usage:
                chunks.append(self._body.usage_chunk(self._usage()))
        return Fed(chunks=chunks, done_prompts=done_prompts, is_done=self.is_done)

    @property
    def is_done(self) -> bool:
        """All choices of all prompts are finished or stopped."""
        return self._num_open == 0

    def _plain_choice(self, index: int, plain_form: PlainFormOf) -> PlainChoice:
        choice = self._prompts[0].choice(index)
        return PlainChoice(choice, partial(plain_form, index, choice.channels))

    def plain(self, delta: GenerateDelta) -> bytes | None:
        """The chunk of plain tokens of one choice of the only prompt; None: feed ``delta``."""
        if len(delta.choices) != 1 or delta.prompt_logprobs is not None or delta.cached_tokens:
            return None
        (choice,) = delta.choices
        plain = self._plain.get(choice.index)
        return None if plain is None else plain.chunk(choice)

    def _usage(self) -> Usage:
        return count_usage(
            sum(map(len, self._prompt_ids)),
            sum(prompt.num_tokens() for prompt in self._prompts),
            self._num_cached,
        )

    def _check(self, prompt_index: int, delta: GenerateDelta) -> None:
        if not 0 <= prompt_index < len(self._prompts):
            raise InvalidRequestError(
                f"prompt_index is {prompt_index}, the reply has {len(self._prompts)} prompts",
                param="prompt_index",
            )
        check_choices(delta.choices, self._spec.n)
        if delta.prompt_logprobs is not None:
            check_prompt(self._prompt_ids[prompt_index], delta.prompt_logprobs)
