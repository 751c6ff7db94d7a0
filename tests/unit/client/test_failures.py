"""Refusals over HTTP come out as the errors that the server raised."""

import msgspec
import pytest

from triptych.client.failures import error_of_answer
from triptych.edge import error_response
from triptych.errors import LEAVES, InternalError, InvalidRequestError, TriptychError


@pytest.mark.parametrize("leaf", LEAVES)
def test_leaf_survives_http(leaf: type[TriptychError]) -> None:
    sent = error_response(leaf("why", param="p", retry_after_s=7))
    back = error_of_answer(sent.status_code, bytes(sent.body), sent.headers["retry-after"])
    assert type(back) is leaf
    assert (back.message, back.param, back.retry_after_s) == ("why", "p", 7)


@pytest.mark.parametrize(
    ("status", "kind"),
    [(418, InvalidRequestError), (502, InternalError), (302, InvalidRequestError)],
)
@pytest.mark.parametrize("body", [b"<html>", b"", b"[1]", msgspec.json.encode({"error": "x"})])
def test_answer_of_a_proxy_is_an_error_that_names_the_status(
    status: int, kind: type[TriptychError], body: bytes
) -> None:
    error = error_of_answer(status, body, "Wed, 21 Oct 2026 07:28:00 GMT")
    assert type(error) is kind
    assert (error.message, error.retry_after_s) == (
        f"the server answered with status {status}",
        None,
    )
