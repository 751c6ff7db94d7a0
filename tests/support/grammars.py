"""A vocabulary for the tiny models, and what was written with it."""

from triptych.structured import make_vocabulary
from triptych.wire import GenerateRequest, SamplingParams, StructuredOutputs

FINGERPRINT = "tiny"
#: Ids 0 to 94 are the printable ASCII characters, 95 is a line end, then come words of JSON and
#: the digits again in pairs. 180 to 189 are special, and the model has some ids more.
_WORDS = ['"', '": ', '", "', "{", "}", "true", "false", "null", '{"', "a", "ab", "id", "yes"]
TOKENS: list[bytes] = [
    *(bytes([code]) for code in range(32, 127)),
    b"\n",
    *(word.encode() for word in _WORDS),
    *(f"{number:02}".encode() for number in range(180 - 96 - len(_WORDS))),
    *([b""] * 10),
]
EOS_ID = 185
VOCABULARY = make_vocabulary(FINGERPRINT, TOKENS)


def text_of(token_ids: list[int]) -> str:
    """What ``token_ids`` spell; special tokens spell nothing."""
    return b"".join(TOKENS[token_id] for token_id in token_ids).decode()


def ask_structured(
    token_ids: list[int], outputs: StructuredOutputs, *, resume_from: int = 0, **params: object
) -> GenerateRequest:
    """A request; greedy, and of at most 60 tokens, unless ``params`` says otherwise."""
    given = {"temperature": 0.0, "max_tokens": 60, **params}
    return GenerateRequest(
        token_ids=token_ids,
        sampling_params=SamplingParams(**given, structured_outputs=outputs),  # type: ignore[arg-type]
        resume_from=resume_from,
        tokenizer_fingerprint=FINGERPRINT,
    )
