"""What a client was already given of one generate answer, and the requests that give the rest."""

import msgspec

from triptych.wire import GenerateDelta, GenerateRequest


class Partial:
    """The answer of ``request`` so far: the ids of every choice that is not finished."""

    def __init__(self, request: GenerateRequest, *, has_begun: bool = False) -> None:
        """``has_begun``: ``request`` is the rest of an answer of which something was received."""
        self.request = request
        self.has_begun = has_begun
        self._has_prompt_logprobs = False
        first = request.choice_index
        self._ids: dict[int, list[int]] = {
            index: [] for index in range(first, first + request.sampling_params.n)
        }

    @property
    def num_unfinished(self) -> int:
        return len(self._ids)

    def take(self, delta: GenerateDelta) -> None:
        """Note a delta that is handed on."""
        self.has_begun = True
        self._has_prompt_logprobs |= delta.prompt_logprobs is not None
        for choice in delta.choices:
            if choice.finish_reason is not None:
                self._ids.pop(choice.index, None)
            elif choice.index in self._ids:
                self._ids[choice.index] += choice.token_ids

    def rests(self) -> list[GenerateRequest]:
        """A request per unfinished choice that goes on where it was cut.

        The rest of a choice 0 without output gives prompt logprobs again (docs/wire.md, Resume), so
        they are asked for only until they have come: that may be with another choice's output.
        """
        asked = self.request
        params = msgspec.structs.replace(asked.sampling_params, n=1)
        if self._has_prompt_logprobs:
            params = msgspec.structs.replace(params, prompt_logprobs=None)
        return [
            msgspec.structs.replace(
                asked,
                token_ids=asked.token_ids + ids,
                resume_from=asked.resume_from + len(ids),
                choice_index=index,
                sampling_params=params,
            )
            for index, ids in self._ids.items()
        ]
