"""The OpenAPI documents against the services: paths, examples, keys, and the page that shows them."""

import json
import re
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from fastapi import FastAPI
from jsonschema import Draft202012Validator

from support.api_documents import document
from support.net import http_client, listening
from support.stack import Stack
from triptych.hops import Hops
from triptych.http import create_app
from triptych.serving import Service, running
from triptych.settings import ServiceSettings
from triptych.version import VERSION

SERVICES = ("render", "generate", "derender", "gateway")
#: Served beside what a document describes.
PAGES = {"/openapi.json", "/docs", "/docs/{name}", "/lens", "/lens/{name}"}


def operations(service: str) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Path, method and operation of each."""
    for path, methods in document(service)["paths"].items():
        for method, operation in methods.items():
            yield path, method, operation


def check_answer(service: str, operation: dict[str, Any], answer: httpx.Response) -> None:
    """``answer`` has a status, a content type and a body that the document names."""
    response = operation["responses"][str(answer.status_code)]
    if "$ref" in response:
        name = response["$ref"].rpartition("/")[2]
        response = document(service)["components"]["responses"][name]
    kind = answer.headers.get("content-type", "").partition(";")[0]
    assert kind in response.get("content", {"": None})
    if kind == "application/json":
        is_valid(service, response["content"][kind]["schema"], answer.json())
    if kind == "text/event-stream":
        *events, done = [line for line in answer.text.splitlines() if line.startswith("data: ")]
        assert done == "data: [DONE]"
        for event in events:
            schema = response["content"][kind]["x-event"]
            is_valid(service, schema, json.loads(event.removeprefix("data: ")))


def is_valid(service: str, schema: dict[str, Any], body: Any) -> None:
    components = document(service)["components"]
    Draft202012Validator({**schema, "components": components}).validate(body)


@pytest.mark.model
@pytest.mark.parametrize("service", SERVICES)
def test_examples_work_and_answers_are_as_described(stack: Stack, service: str) -> None:
    with httpx.Client(base_url=getattr(stack, service), timeout=60) as client:
        for path, method, operation in operations(service):
            if method == "get":
                answer = client.get(path.replace("{name}", "smollm2"))
                assert answer.status_code == 200
                check_answer(service, operation, answer)
                continue
            examples = operation["requestBody"]["content"]["application/json"]["examples"]
            for name, example in examples.items():
                answer = client.request(method, path, json=example["value"])
                assert answer.status_code == 200, (path, name, answer.text)
                check_answer(service, operation, answer)
            refused = client.request(method, path, content=b"[")
            assert refused.status_code == 400
            check_answer(service, operation, refused)


@pytest.mark.model
@pytest.mark.parametrize("service", SERVICES)
def test_document_has_every_path_and_no_other(stack: Stack, service: str) -> None:
    """Each path that is not described is a 404, each method that is not described a 405."""
    with httpx.Client(base_url=getattr(stack, service), timeout=60) as client:
        served = client.get("/openapi.json").json()
        assert served == document(service)
        for path, methods in served["paths"].items():
            answer = client.delete(path.replace("{name}", "smollm2"))
            assert answer.status_code == 405
            assert answer.headers["allow"].lower().split(", ") == list(methods)
