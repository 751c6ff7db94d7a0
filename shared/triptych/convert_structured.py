"""Structured outputs and vocabularies to protobuf and back."""

from typing import Any

from triptych.errors import InvalidRequestError
from triptych.structured import text_of
from triptych.v1 import generate_pb2
from triptych.wire import StructuredOutputs, Vocabulary


def structured_to_proto(
    outputs: StructuredOutputs | None,
) -> generate_pb2.StructuredOutputs | None:
    """The message of ``outputs``, which ``structured.check_structured`` has passed."""
    if outputs is None:
        return None
    message = generate_pb2.StructuredOutputs(disable_any_whitespace=outputs.disable_any_whitespace)
    if outputs.json is not None:
        message.json = text_of(outputs, "json")
    elif outputs.regex is not None:
        message.regex = outputs.regex
    elif outputs.choice is not None:
        message.choice.texts.extend(outputs.choice)
    elif outputs.grammar is not None:
        message.grammar = outputs.grammar
    elif outputs.json_object:
        message.json_object = True
    elif outputs.structural_tag is not None:
        message.structural_tag = outputs.structural_tag
    return message


def structured_from_proto(message: generate_pb2.StructuredOutputs) -> StructuredOutputs:
    """``message`` as a struct.

    Raises:
        InvalidRequestError: no kind is set.
    """
    kind = message.WhichOneof("kind")
    if kind is None:
        raise InvalidRequestError(
            "structured_outputs is empty; one of json, regex, choice, grammar, json_object and "
            "structural_tag is needed",
            param="sampling_params.structured_outputs",
        )
    value: Any = list(message.choice.texts) if kind == "choice" else getattr(message, kind)
    given: dict[str, Any] = {kind: value, "disable_any_whitespace": message.disable_any_whitespace}
    return StructuredOutputs(**given)


def vocabulary_to_proto(vocabulary: Vocabulary) -> generate_pb2.Vocabulary:
    return generate_pb2.Vocabulary(
        fingerprint=vocabulary.fingerprint, tokens=vocabulary.tokens, sha256=vocabulary.sha256
    )


def vocabulary_from_proto(message: generate_pb2.Vocabulary) -> Vocabulary:
    return Vocabulary(
        fingerprint=message.fingerprint, tokens=list(message.tokens), sha256=message.sha256
    )
