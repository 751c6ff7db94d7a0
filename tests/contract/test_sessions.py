"""The session's messages on the wire: numbers that are never reused, and bytes that were sent."""

import pytest
from google.protobuf.descriptor import Descriptor

from triptych.convert_packed import pack_deltas, unpack_deltas
from triptych.logprobs import pack_logprobs
from triptych.v1 import derender_pb2, generate_pb2, render_pb2
from triptych.wire import ChoiceDelta, GenerateDelta

NUMBERS = {
    generate_pb2.PackedDeltas.DESCRIPTOR: (
        "keys num_choices choice_indexes num_tokens finish_reasons are_scored token_ids logprobs "
        "stops prompts"
    ),
    generate_pb2.StopReason.DESCRIPTOR: "token_id text",
    generate_pb2.PromptFacts.DESCRIPTOR: "logprobs cached_tokens",
    generate_pb2.SubmitCommand.DESCRIPTOR: "key request timeout_s trace",
    generate_pb2.GenerateCommand.DESCRIPTOR: "submit abort hold release",
    generate_pb2.GenerateCommands.DESCRIPTOR: "commands",
    generate_pb2.GenerateStep.DESCRIPTOR: "deltas errors",
    generate_pb2.RequestError.DESCRIPTOR: "key grpc_code body retry_after_s",
    render_pb2.SubmitRender.DESCRIPTOR: "key request is_completion timeout_s trace",
    render_pb2.RenderCommands.DESCRIPTOR: "submits aborts",
    render_pb2.RenderAnswer.DESCRIPTOR: "key response",
    render_pb2.RenderStep.DESCRIPTOR: "answers errors",
    derender_pb2.OpenReply.DESCRIPTOR: "key start timeout_s trace",
    derender_pb2.DerenderCommands.DESCRIPTOR: "opens deltas prompt_indexes closes",
    derender_pb2.DerenderStep.DESCRIPTOR: (
        "keys num_chunks chunks num_done done_prompts are_done errors"
    ),
}

#: Key 3 gets a scored token, and its prompt had 16 cached ones; key 4 ends with the stop token 9.
DELTAS = [
    (
        3,
        GenerateDelta(
            request_id="",
            choices=[
                ChoiceDelta(
                    index=0,
                    token_ids=[5],
                    logprobs=pack_logprobs([[(5, -0.5, 1), (6, -1.5, 2)]]),
                )
            ],
            cached_tokens=16,
        ),
    ),
    (
        4,
        GenerateDelta(
            request_id="",
            choices=[ChoiceDelta(index=1, token_ids=[9], finish_reason="stop", stop_reason=9)],
        ),
    ),
]
RECORDED = bytes.fromhex(
    "0a43"  # deltas
    "0a020304120201011a020001220201012a02000132020100"  # six columns, packed
    "3a020509"  # token_ids
    "42150a0102120205061a08000000bf0000c0bf22020102"  # logprobs: counts, ids, float32, ranks
    "4a06080112020809"  # stops: choice 1, token 9
    "52060800"
    "12021010"  # prompts: delta 0, 16 cached
)


@pytest.mark.parametrize("message", NUMBERS, ids=lambda message: str(message.name))
def test_fields_keep_their_numbers(message: Descriptor) -> None:
    numbers = {field.name: field.number for field in message.fields}
    assert numbers == {name: number for number, name in enumerate(NUMBERS[message].split(), 1)}


def test_step_has_the_bytes_that_were_recorded() -> None:
    step = generate_pb2.GenerateStep(deltas=pack_deltas(DELTAS))
    assert step.SerializeToString(deterministic=True) == RECORDED
    read = generate_pb2.GenerateStep.FromString(RECORDED)
    assert unpack_deltas(read.deltas, lambda _: "") == DELTAS
