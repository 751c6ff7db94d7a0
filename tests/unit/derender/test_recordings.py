"""Our answers to requests that vLLM was sent, against what it answered.

Every difference is named in ``EXPECTED`` below; docs/logprobs.md says why each is on purpose.
"""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from triptych.errors import TriptychError
from triptych.float32 import float32_texts
from triptych.logprobs import Logprobs, pack_logprobs
from triptych.reply import ReplySpec, chat_reply_spec, completion_reply_spec
from triptych.wire import ChoiceDelta, Generated, GenerateDelta
from triptych_derender.derenderer import Derenderer

#: What differs, by recording: reasons, each with the number of fields that it touches.
EXPECTED: dict[str, dict[str, int]] = {
    "31_as_ids_4derender": {"token strings as ids": 9},
    "31_return_ids_4derender": {"prompt_token_ids": 1},
    "32_as_ids_4derender": {"token strings as ids": 10},
    "32_echo_4derender": {"echo": 5},
    "40_derender_chat_lp3": {"usage": 2},
    "40_derender_chat_lp3_req_nolp": {"logprobs not asked": 1},
    "40_derender_chat_notintop": {"usage": 2},
    "40_derender_chat_plain": {"usage": 2},
    "40_derender_chat_retids": {"token strings as ids": 24, "usage": 2},
    "41_derender_cmpl_lp3_req_echo": {"echo": 5},
    "41_derender_cmpl_plain": {"usage": 2},
    "42_derender_err_id_oob": {"usage": 2},
    "90_chat_kplus1_noreq": {"usage": 2},
    "90_chat_kplus1_req": {"usage": 2},
    "90_chat_kplus1_req_nolp": {"usage": 2, "logprobs not asked": 1},
    "90_chat_kplus1_req_top1": {"usage": 2},
    "91_cmpl_kplus1_noreq": {"usage": 2},
    "91_cmpl_kplus1_req": {"usage": 2},
    "91_cmpl_kplus1_req_lp1": {"usage": 2},
    "91_cmpl_kplus1_req_nolp": {"usage": 2, "logprobs not asked": 1},
}

#: Recordings where vLLM refuses and we answer.
ANSWERED_HERE = {
    "42_derender_err_cmpl_empty_ids",  # an aborted or echo-only answer has no output
    "42_derender_err_empty_ids",
    "43_derender_chat_stream_nostate_str",  # stop strings in a stream
    "92_k20_21entries_chat",  # k best and the sampled token
    "92_k20_21entries_cmpl",
}

Difference = tuple[str, Any, Any]


def differences(ours: Any, theirs: Any, path: str = "") -> Iterator[Difference]:
    """The fields that differ; floats are compared as float32."""
    if isinstance(ours, dict) and isinstance(theirs, dict):
        for name in ours | theirs:
            yield from differences(ours.get(name), theirs.get(name), f"{path}.{name}")
    elif isinstance(ours, list) and isinstance(theirs, list) and len(ours) == len(theirs):
        for position, (one, other) in enumerate(zip(ours, theirs, strict=True)):
            yield from differences(one, other, f"{path}[{position}]")
    elif isinstance(ours, float) and isinstance(theirs, float):
        if float32_texts([ours]) != float32_texts([theirs]):
            yield path, ours, theirs
    elif ours != theirs:
        yield path, ours, theirs


def reason(difference: Difference, request: Any) -> str | None:
    """Why a field differs; None for what every answer differs in."""
    path, ours, theirs = difference
    asked = request.get("completion_request") or request.get("chat_request") or {}
    name = path.rpartition(".")[2]
    if name in ("token_id", "created", "stream_state"):
        return None
    if asked.get("return_tokens_as_token_ids") and ".logprobs" in path:
        return "token strings as ids"
    if asked.get("return_token_ids") and theirs is None and name == "prompt_token_ids":
        return name
    if asked.get("echo") and (name == "text" or ".logprobs" in path):
        return "echo"
    if path.startswith(".usage.") and "prompt_tokens" not in request:
        return "usage"
    if name == "logprobs" and ours is None and asked and not asked.get("logprobs"):
        return "logprobs not asked"
    return f"unexplained {path}: {ours!r}, recorded {theirs!r}"


def call(derenderer: Derenderer, path: str, request: Any) -> Any:
    chat, completion = derenderer.derender_chat, derenderer.derender_completion
    serve = chat if path == "/v1/chat/completions/derender" else completion
    return json.loads(serve(json.dumps(request).encode()))


def key_orders(value: Any, path: str = "") -> Iterator[tuple[str, list[str]]]:
    if isinstance(value, dict):
        if not path.endswith("top_logprobs[]"):
            yield path, list(value)
        for name, inner in value.items():
            yield from key_orders(inner, f"{path}.{name}")
    elif isinstance(value, list):
        for inner in value:
            yield from key_orders(inner, f"{path}[]")


def test_derender_equals_every_recorded_answer_but_for_known_differences(
    smol: Derenderer, recorded_derender: Any
) -> None:
    found: dict[str, dict[str, int]] = {}
    state = None
    num_answers = 0
    for recording in recorded_derender:
        name, request = recording["name"], recording["request"]
        if recording["status"] != 200:
            continue
        if request.get("stream_state") is not None:
            request = request | {"stream_state": state}
        ours = call(smol, recording["path"], request)
        state = ours.get("stream_state")
        num_answers += 1
        for difference in differences(ours, recording["response"]):
            why = reason(difference, request)
            if why is not None:
                counts = found.setdefault(name, {})
                counts[why] = counts.get(why, 0) + 1
    assert found == EXPECTED
    assert num_answers == 41


def test_fields_stand_in_the_recorded_order(smol: Derenderer, recorded_derender: Any) -> None:
    for recording in recorded_derender:
        if recording["status"] != 200 or recording["request"].get("stream_state"):
            continue
        ours = dict(key_orders(call(smol, recording["path"], recording["request"])))
        for path, names in key_orders(recording["response"]):
            if path in ours and "stream_state" not in path:
                assert [name for name in ours[path] if name in names] == names, path


def status_of(derenderer: Derenderer, path: str, request: Any) -> int:
    try:
        call(derenderer, path, request)
    except TriptychError as error:
        return error.http_status
    return 200


def test_refusals_have_the_recorded_status(smol: Derenderer, recorded_derender: Any) -> None:
    refused = [recording for recording in recorded_derender if recording["status"] != 200]
    for recording in refused:
        expected = 200 if recording["name"] in ANSWERED_HERE else recording["status"]
        status = status_of(smol, recording["path"], recording["request"])
        assert status == expected, recording["name"]
    assert len(refused) == 13


def columns(positions: list[Any], *, num_positions: int) -> Logprobs:
    """Columns of recorded ``prompt_logprobs``."""
    assert len(positions) == num_positions
    return pack_logprobs(
        [(int(token_id), entry["logprob"], entry["rank"]) for token_id, entry in each.items()]
        if each
        else []
        for each in positions
    )


def generated_of(recording: Any, num_tokens: int, k: int, **fields: Any) -> Generated:
    """A recorded generate answer, cut to ``num_tokens`` and ``k`` candidates."""
    (choice,) = recording["response"]["choices"]
    token_ids = choice["token_ids"][:num_tokens]
    content = choice["logprobs"]["content"][:num_tokens]
    logprobs = pack_logprobs(
        [(c["token_id"], c["logprob"], c["rank"]) for c in entry["top_logprobs"][: max(k, 1)]]
        for entry in content
    )
    return Generated(
        request_id="r",
        model="smol",
        created=1,
        prompt_tokens=5,
        prompt_token_ids=recording["request"]["token_ids"],
        choices=[
            ChoiceDelta(index=0, token_ids=token_ids, logprobs=logprobs, finish_reason="length")
        ],
        **fields,
    )


IGNORED = {"id", "created", "system_fingerprint", "weight_versions"}


def without_ignored(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: without_ignored(v) for k, v in value.items() if k not in IGNORED}
    return [without_ignored(v) for v in value] if isinstance(value, list) else value


def compare(ours: Any, theirs: Any, ignored: tuple[str, ...] = ("token_id",)) -> list[Difference]:
    found = differences(without_ignored(ours), without_ignored(theirs))
    return [each for each in found if each[0].rpartition(".")[2] not in ignored]


@pytest.mark.parametrize(
    ("name", "num_tokens", "k", "known"),
    [
        ("51_cmpl_lp2", 4, 2, ()),
        ("51_cmpl_echo_lp1", 2, 1, ("prompt_logprobs",)),
        ("51_cmpl_echo_lp2_max0", 0, 2, ("prompt_logprobs", "total_tokens", "completion_tokens")),
        ("51_cmpl_return_token_ids", 4, 0, ()),
    ],
)
def test_whole_completion_equals_the_recorded_coupled_one(
    smol: Derenderer, recorded_server: Any, name: str, num_tokens: int, k: int, known: Any
) -> None:
    """vLLM adds prompt_logprobs unasked under echo, and bills a token for max_tokens 0."""
    recording = recorded_server[name]
    generated = generated_of(
        recorded_server["20_generate_lp3"],
        num_tokens,
        k,
        prompt_logprobs=_prompt(recorded_server, k),
    )
    spec = completion_reply_spec(recording["request"], model="smol")
    ours = json.loads(smol.whole(spec, [generated], request_id="r", created=1))
    assert compare(ours, recording["response"], ("token_id", *known)) == []


def test_stop_string_answer_equals_the_recorded_coupled_one(
    smol: Derenderer, recorded_server: Any
) -> None:
    """Generate went on behind the stop string; nothing of that is shown or billed."""
    recording = recorded_server["51_cmpl_stop_lp"]
    generated = generated_of(recorded_server["20_generate_lp3"], 8, 1)
    spec = completion_reply_spec(recording["request"], model="smol")
    ours = json.loads(smol.whole(spec, [generated], request_id="r", created=1))
    assert compare(ours, recording["response"]) == []


def test_chat_prompt_logprobs_equal_the_recorded_ones(
    smol: Derenderer, recorded_server: Any, recorded_derender: Any
) -> None:
    recording = recorded_server["50_chat_prompt_lp"]
    prompt = next(
        each["request"]["prompt_token_ids"]
        for each in recorded_derender
        if each["name"] == "31_eos_4derender"  # the same messages
    )
    generated = Generated(
        request_id="r",
        model="smol",
        created=1,
        prompt_tokens=len(prompt),
        prompt_token_ids=prompt,
        prompt_logprobs=columns(
            recording["response"]["prompt_logprobs"], num_positions=len(prompt)
        ),
        choices=[ChoiceDelta(index=0, token_ids=[19556], finish_reason="length")],
    )
    spec = chat_reply_spec(recording["request"], model="smol")
    ours = json.loads(smol.whole(spec, [generated], request_id="r", created=1))
    assert compare(ours, recording["response"]) == []


@pytest.mark.parametrize(
    ("name", "num_tokens"), [("51_cmpl_stream_lp1", 4), ("51_cmpl_echo_lp1_stream", 2)]
)
def test_completion_stream_equals_the_recorded_one(
    smol: Derenderer, recorded_server: Any, name: str, num_tokens: int
) -> None:
    """vLLM shows the prompt's ids unasked in the first chunk of an echo."""
    recording = recorded_server[name]
    generated = generated_of(
        recorded_server["20_generate_lp3"],
        num_tokens,
        1,
        prompt_logprobs=_prompt(recorded_server, 1),
    )
    spec = completion_reply_spec(recording["request"], model="smol")
    chunks = _stream(smol, spec, generated)
    assert compare(chunks, recording["response"], ("token_id", "prompt_token_ids")) == []
    assert [list(each) for each in chunks] == [list(each) for each in recording["response"]]


def test_chat_stream_equals_the_recorded_one(smol: Derenderer, recorded_server: Any) -> None:
    recording = recorded_server["50_chat_lp_stream"]
    theirs = recording["response"]
    entries = [entry for chunk in theirs[1:-1] for entry in _content(chunk)]
    ids = {"Hello": 19556, "I": 57, " there": 665, "!": 17, ",": 28}
    positions = [
        [(ids[c["token"]], c["logprob"], 1) for c in entry["top_logprobs"]] for entry in entries
    ]
    generated = Generated(
        request_id="r",
        model="smol",
        created=1,
        prompt_tokens=33,
        prompt_token_ids=[1] * 33,
        choices=[
            ChoiceDelta(
                index=0,
                token_ids=[position[0][0] for position in positions],
                logprobs=pack_logprobs(positions),
                finish_reason="length",
            )
        ],
    )
    ours = _stream(smol, chat_reply_spec(recording["request"], model="smol"), generated)
    assert compare(ours, theirs) == []
    assert [_orders(each) for each in ours] == [_orders(each) for each in theirs]


def _orders(chunk: Any) -> list[tuple[str, list[str]]]:
    ours_only = {"token_id"}
    return [
        (path, [name for name in names if name not in ours_only])
        for path, names in key_orders(chunk)
    ]


def _content(chunk: Any) -> Any:
    return chunk["choices"][0]["logprobs"]["content"]


def _prompt(recorded_server: Any, k: int) -> Logprobs:
    """The recorded scores of the prompt that all these requests share."""
    name = "51_cmpl_echo_lp1" if k == 1 else "51_cmpl_echo_lp2_max0"
    (choice,) = recorded_server[name]["response"]["choices"]
    return columns(choice["prompt_logprobs"], num_positions=5)


def _stream(derenderer: Derenderer, spec: ReplySpec, generated: Generated) -> list[Any]:
    """The chunks, one delta a token."""
    assert generated.prompt_token_ids is not None
    reply = derenderer.open(spec, request_id="r", created=1, prompts=[generated.prompt_token_ids])
    (choice,) = generated.choices
    assert choice.logprobs is not None
    positions = list(choice.logprobs.positions())
    chunks = []
    for number, token_id in enumerate(choice.token_ids):
        part = ChoiceDelta(
            index=0,
            token_ids=[token_id],
            logprobs=pack_logprobs([positions[number]]),
            finish_reason="length" if number == len(positions) - 1 else None,
        )
        scores = None if number else generated.prompt_logprobs
        message = GenerateDelta(request_id="r", choices=[part], prompt_logprobs=scores)
        chunks += reply.feed(0, message).chunks
    return [json.loads(chunk) for chunk in chunks]
