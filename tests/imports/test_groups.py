"""pytest-xdist keeps the tests of a group on one worker."""

import os

import pytest


@pytest.mark.xdist_group("guard")
def test_tests_of_a_group_share_a_worker(request: pytest.FixtureRequest) -> None:
    """Otherwise every worker starts a stack: this pytest and pytest-xdist do not go together."""
    if "PYTEST_XDIST_WORKER" in os.environ:
        assert request.node.nodeid.endswith("@guard")
