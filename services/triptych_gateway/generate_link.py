"""The link to a generate worker that its address asks for."""

from typing import Protocol

from triptych.hops import NO_HOPS, Hops
from triptych_gateway.addresses import JSON_SCHEMES
from triptych_gateway.links import Closable, Worker
from triptych_gateway.over_grpc import GrpcGenerate
from triptych_gateway.over_json import JsonGenerate


class GenerateWorker(Worker, Closable, Protocol):
    """One generate worker, behind a connection."""


def generate_link(address: str, *, timeout_s: float, hops: Hops = NO_HOPS) -> GenerateWorker:
    """JSON to a vLLM server for ``http://host:port`` (or https), gRPC for ``host:port``.

    ``timeout_s`` bounds a whole answer. ``hops`` are for gRPC: a vLLM server is sent no secret.
    """
    if address.startswith(JSON_SCHEMES):
        return JsonGenerate(address, timeout_s=timeout_s)
    return GrpcGenerate(address, timeout_s=timeout_s, hops=hops)
