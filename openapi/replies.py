"""Schemas of what the services write."""

from openapi.bounds import TOKEN_ID
from openapi.schemas import NULL, Schema, nullable, ref, written_structs
from triptych.errors import ErrorBody, ErrorDetail
from triptych.json_bodies import (
    ChoiceJson,
    ChunkJson,
    ContentLogprobs,
    PositionLogprobs,
    ResponseJson,
    TokenLogprob,
)
from triptych.wire import Usage
from triptych_derender import chat, completions, tool_calls
from triptych_derender.formats import StreamUsage
from triptych_render.answers import DetokenizeAnswer, TokenizeAnswer, TokenizerInfo

_NUMBER: Schema = {"type": "number"}
_STRING: Schema = {"type": "string"}
_INTEGER: Schema = {"type": "integer"}
_BYTE: Schema = {"type": "integer", "minimum": 0, "maximum": 255}


def errors() -> dict[str, Schema]:
    return written_structs({ErrorBody: "Error", ErrorDetail: "ErrorDetail"})


def models() -> dict[str, Schema]:
    model: dict[str, Schema] = {
        "id": _STRING,
        "object": {"const": "model"},
        "created": _INTEGER,
        "owned_by": {"const": "triptych"},
        "root": _STRING,
        "parent": NULL,
        "max_model_len": nullable(_INTEGER),
    }
    listed: dict[str, Schema] = {
        "object": {"const": "list"},
        "data": {"type": "array", "items": ref("Model"), "minItems": 1, "maxItems": 1},
    }
    return {
        "Model": _object(**model),
        "Models": _object(**listed),
        "Version": _object(version=_STRING),
    }


def tokenizer_answers() -> dict[str, Schema]:
    return written_structs(
        {
            TokenizeAnswer: "TokenizeAnswer",
            DetokenizeAnswer: "DetokenizeAnswer",
            TokenizerInfo: "TokenizerInfo",
        }
    )


def generate_answers() -> dict[str, Schema]:
    """What generate answers, whole and as events of a stream."""
    made = written_structs(
        {
            ResponseJson: "GenerateResponse",
            ChunkJson: "GenerateEvent",
            ChoiceJson: "GenerateChoice",
            ContentLogprobs: "ContentLogprobs",
            PositionLogprobs: "PositionLogprobs",
            TokenLogprob: "TokenLogprob",
            Usage: "Usage",
        }
    )
    made["GenerateChoice"]["properties"]["logprobs"] = nullable(ref("ContentLogprobs"))
    for name in ("GenerateResponse", "GenerateEvent"):
        made[name]["properties"]["prompt_logprobs"] = nullable(_prompt_logprobs())
    return {
        **made,
        **_prompt_logprob(),
        "AbortAnswer": _object(aborted={"type": "array", "items": _STRING}),
        "VocabularyAnswer": _object(is_new={"type": "boolean"}),
    }


def chat_replies() -> dict[str, Schema]:
    """OpenAI's ``chat.completion`` and its chunks."""
    made = written_structs(
        {
            chat.Reply: "ChatReply",
            chat.Choice: "ChatChoice",
            chat.Message: "ChatMessage",
            chat.Chunk: "ChatChunk",
            chat.ChunkChoice: "ChatChunkChoice",
            chat.Delta: "ChatDelta",
            tool_calls.ToolCall: "CalledTool",
            tool_calls.ToolFunction: "CalledFunction",
            Usage: "Usage",
            StreamUsage: "StreamUsage",
        }
    )
    for name in ("ChatChoice", "ChatChunkChoice"):
        made[name]["properties"]["logprobs"] = nullable(ref("ChatLogprobs"))
    made["ChatReply"]["properties"]["prompt_logprobs"] = nullable(_prompt_logprobs())
    made["ChatChunk"]["properties"]["prompt_logprobs"] = _prompt_logprobs()
    entries: Schema = {"type": "array", "items": ref("ChatEntry")}
    candidate: dict[str, Schema] = {
        "token": _STRING,
        "logprob": _NUMBER,
        "bytes": {"type": "array", "items": _BYTE},
        "token_id": nullable(TOKEN_ID),
    }
    channels = dict.fromkeys(("content", "reasoning_content", "tool_calls", "markup"), entries)
    return {
        **made,
        **_prompt_logprob(),
        "ChatLogprobs": {**_object(**channels), "required": ["content"]},
        "ChatEntry": _object(
            **candidate, top_logprobs={"type": "array", "items": ref("ChatCandidate")}
        ),
        "ChatCandidate": _object(**candidate),
    }


def completion_replies() -> dict[str, Schema]:
    """OpenAI's ``text_completion`` and its chunks."""
    made = written_structs(
        {
            completions.Reply: "CompletionReply",
            completions.Choice: "CompletionChoice",
            completions.Chunk: "CompletionChunk",
            completions.ChunkChoice: "CompletionChunkChoice",
            Usage: "Usage",
            StreamUsage: "StreamUsage",
        }
    )
    for name in ("CompletionChoice", "CompletionChunkChoice"):
        made[name]["properties"]["logprobs"] = nullable(ref("CompletionLogprobs"))
    made["CompletionChoice"]["properties"]["prompt_logprobs"] = nullable(_prompt_logprobs())
    made["CompletionChunkChoice"]["properties"]["prompt_logprobs"] = _prompt_logprobs()
    candidates: Schema = {"type": "object", "additionalProperties": _NUMBER}
    return {
        **made,
        **_prompt_logprob(),
        "CompletionLogprobs": _object(
            text_offset={"type": "array", "items": {"type": "integer", "minimum": 0}},
            token_logprobs={"type": "array", "items": nullable(_NUMBER)},
            tokens={"type": "array", "items": _STRING},
            top_logprobs={"type": "array", "items": nullable(candidates)},
        ),
    }


def derender_answers() -> dict[str, Schema]:
    return {
        **chat_replies(),
        **completion_replies(),
        "NextChatChunk": _object(chunk=ref("ChatChunk"), stream_state=_STRING),
        "NextCompletionChunk": _object(chunk=ref("CompletionChunk"), stream_state=_STRING),
    }


def _prompt_logprob() -> dict[str, Schema]:
    """One candidate of a prompt's position."""
    fields: dict[str, Schema] = {
        "logprob": _NUMBER,
        "rank": {"type": "integer", "minimum": 0},
        "decoded_token": nullable(_STRING),
    }
    return {"PromptLogprob": _object(**fields)}


def _prompt_logprobs() -> Schema:
    """Null, or candidates by their ids, for each prompt token."""
    position: Schema = {"type": "object", "additionalProperties": ref("PromptLogprob")}
    return {"type": "array", "items": nullable(position)}


def _object(**fields: Schema) -> Schema:
    """An object that has all of ``fields``."""
    return {"type": "object", "properties": fields, "required": list(fields)}
