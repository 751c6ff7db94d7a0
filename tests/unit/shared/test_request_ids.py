"""Request ids: which are taken from a caller, and that those taken pass every hop."""

import pytest

from triptych.request_ids import MAX_GIVEN, accept_request_id, prefixed_id

LONGEST = "r" * MAX_GIVEN


@pytest.mark.parametrize("given", [None, "", "a b", "a\nb", "ü", LONGEST + "r"])
def test_id_that_is_not_plain_and_short_is_made_anew(given: str | None) -> None:
    made = accept_request_id(given, max_len=MAX_GIVEN)
    assert made not in {"", given}
    assert accept_request_id(made, max_len=MAX_GIVEN) == made


def test_longest_id_of_a_client_passes_every_hop() -> None:
    assert accept_request_id(LONGEST, max_len=MAX_GIVEN) == LONGEST
    carried = f"{prefixed_id('chatcmpl-', LONGEST)}-1023"  # the last of many prompts
    assert accept_request_id(carried) == carried
