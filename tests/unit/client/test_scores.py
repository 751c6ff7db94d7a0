"""Scores by the exchanges that they plan, without a server."""

import pytest

from triptych.client.scores import score_labels
from triptych.errors import InvalidRequestError


def test_labels_behind_nothing_are_refused() -> None:
    plan = score_labels([], [[1, 2], [3]])
    with pytest.raises(InvalidRequestError, match="prompt has no tokens") as caught:
        next(plan)
    assert caught.value.param == "prompt"
