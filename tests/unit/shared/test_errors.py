"""The error tree maps to HTTP and gRPC, and back, without loss."""

import pickle

import grpc
import grpc.aio
import msgspec
import pytest

from triptych.errors import LEAVES, ErrorBody, TriptychError
from triptych.rpc_errors import from_rpc_error


def rpc_error(error: TriptychError) -> grpc.aio.AioRpcError:
    trailers = grpc.aio.Metadata(("triptych-error-bin", msgspec.json.encode(error.body())))
    if error.retry_after_s is not None:
        trailers.add("retry-after", f"{error.retry_after_s:g}")
    return grpc.aio.AioRpcError(
        grpc.StatusCode[error.grpc_code], grpc.aio.Metadata(), trailers, details=error.message
    )


@pytest.mark.parametrize("leaf", LEAVES)
def test_leaf_survives_grpc(leaf: type[TriptychError]) -> None:
    error = leaf("limit is 3, got 4", param="n", retry_after_s=2.5)
    back = from_rpc_error(rpc_error(error), "peer")
    assert (type(back), back.message, back.param, back.retry_after_s) == (
        leaf,
        error.message,
        "n",
        2.5,
    )


def test_no_two_leaves_share_status_and_code() -> None:
    keys = [(leaf.http_status, leaf.code) for leaf in LEAVES]
    assert len(set(keys)) == len(keys)


@pytest.mark.parametrize(
    ("code", "status"),
    [
        (grpc.StatusCode.UNAVAILABLE, 503),
        (grpc.StatusCode.DEADLINE_EXCEEDED, 504),
        (grpc.StatusCode.RESOURCE_EXHAUSTED, 429),
        (grpc.StatusCode.UNKNOWN, 500),
    ],
)
def test_status_without_our_trailer_is_mapped_by_code(code: grpc.StatusCode, status: int) -> None:
    error = grpc.aio.AioRpcError(code, grpc.aio.Metadata(), grpc.aio.Metadata(), details="x")
    assert from_rpc_error(error, "peer").http_status == status


def test_body_has_openai_fields() -> None:
    body = msgspec.json.decode(
        msgspec.json.encode(LEAVES[0]("m", param="p").body()), type=ErrorBody
    )
    assert msgspec.to_builtins(body) == {
        "error": {"message": "m", "type": "invalid_request_error", "param": "p", "code": None}
    }


@pytest.mark.parametrize("leaf", LEAVES)
def test_leaf_survives_pickling(leaf: type[TriptychError]) -> None:
    back = pickle.loads(pickle.dumps(leaf("m", param="p", retry_after_s=1)))
    assert (type(back), back.message, back.param, back.retry_after_s) == (leaf, "m", "p", 1)
