"""What libraries read from the environment when they are imported for the first time.

An operator's own variables stay as they are.
"""

import os

#: Names of gRPC's own experiments, as ``GRPC_EXPERIMENTS`` takes them.
_NO_EVENT_ENGINE = (
    "-event_engine_client,-event_engine_listener,-event_engine_for_all_other_endpoints"
)


def poll_in_one_thread() -> None:
    """Let grpc.aio's own thread poll; to be called before ``grpc`` is imported.

    gRPC's event engine wakes four threads for a message that comes: 8 to 12 µs of CPU for each
    token of 16 paced streams.
    """
    os.environ.setdefault("GRPC_EXPERIMENTS", _NO_EVENT_ENGINE)


def quieten_transformers() -> None:
    """Let transformers not say that PyTorch is missing, which render and derender do not need."""
    os.environ.setdefault("TRANSFORMERS_NO_ADVISORY_WARNINGS", "1")
