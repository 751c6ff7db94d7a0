"""The OpenAPI documents against the services: paths, examples, keys; and their page."""

import json
import re
import tomllib
from collections.abc import AsyncGenerator, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi import FastAPI
from fastapi.routing import APIRoute
from jsonschema import Draft202012Validator

from support.api_documents import document
from support.fakes import FakeDerender, FakeGenerate, FakeRender
from support.generate_runs import running_service
from support.net import http_client
from support.stack import Stack
from support.tiny_models import make_tiny_model
from triptych.hops import Hops
from triptych.http import create_app
from triptych.serving import Service, running
from triptych.settings import ServiceSettings
from triptych.wire import GenerateDelta, GenerateRequest
from triptych_derender.http import create_derender_app
from triptych_gateway.flows import Panels
from triptych_gateway.http import create_gateway_app
from triptych_generate.http import create_generate_app
from triptych_render.http import create_render_app
from triptych_render.renderer import Renderer
from unit.derender.toys import byte_level_table, toy_derenderer
from unit.render.conftest import write_model

ROOT = Path(__file__).parents[2]
SERVICES = ("render", "generate", "derender", "gateway")


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
        schema, _ = response["content"][kind]["schema"]["properties"]["data"]["anyOf"]
        for event in events:
            is_valid(service, schema["contentSchema"], json.loads(event.removeprefix("data: ")))


def is_valid(service: str, schema: dict[str, Any], body: Any) -> None:
    components = document(service)["components"]
    Draft202012Validator({**schema, "components": components}).validate(body)


@pytest.mark.model
@pytest.mark.xdist_group("stack")
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
@pytest.mark.xdist_group("stack")
@pytest.mark.parametrize("service", SERVICES)
def test_methods_that_are_not_described_are_405(stack: Stack, service: str) -> None:
    with httpx.Client(base_url=getattr(stack, service), timeout=60) as client:
        served = client.get("/openapi.json").json()
        assert served == document(service)
        for path, methods in served["paths"].items():
            answer = client.delete(path.replace("{name}", "smollm2"))
            assert answer.status_code == 405
            allowed = set(answer.headers["allow"].lower().split(", "))
            assert allowed == {*methods, *(["head"] if "get" in methods else [])}


def described(service: str) -> set[tuple[str, str]]:
    return {(path, method) for path, method, _ in operations(service)}


def served(app: FastAPI) -> set[tuple[str, str]]:
    routes = [route for route in app.routes if isinstance(route, APIRoute)]
    return {
        (route.path.replace(":path}", "}"), method.lower())
        for route in routes
        if route.include_in_schema
        for method in (route.methods or set()) - {"HEAD"}  # goes with GET, and is not described
    }


async def test_documents_have_every_path_and_no_other(tmp_path: Path) -> None:
    render_dir, generate_dir = tmp_path / "render", tmp_path / "generate"
    render_dir.mkdir()
    renderer = Renderer.from_directory(write_model(render_dir), model="toy")
    derenderer = toy_derenderer(byte_level_table())
    panels = Panels(FakeRender(), FakeGenerate(say_nothing), FakeDerender())
    async with running_service(make_tiny_model("llama", generate_dir)) as service:
        apps = {
            "render": create_render_app(renderer, max_body_bytes=1),
            "generate": create_generate_app(service, max_body_bytes=1),
            "derender": create_derender_app(derenderer, max_body_bytes=1),
            "gateway": create_gateway_app(panels, max_body_bytes=1),
        }
    for name, app in apps.items():
        assert served(app) == described(name)


async def say_nothing(request: GenerateRequest) -> AsyncGenerator[GenerateDelta, None]:
    return
    yield


@pytest.mark.parametrize("hops", [Hops(), Hops(secret=b"a-secret-of-16-chars")])
async def test_document_asks_for_a_key_where_the_server_does(hops: Hops) -> None:
    settings = ServiceSettings(http_port=0, drain_timeout_s=0)
    service = Service(name="r", app=create_app("render", model=("m", 1)), settings=settings)
    service.hops = hops
    async with (
        running(service),
        httpx.AsyncClient(base_url=service.addresses[0]) as client,
    ):
        made = (await client.get("/openapi.json")).json()
        is_refused = (await client.get("/v1/models")).status_code == 401
    assert is_refused == (hops.secret is not None)
    assert made.get("security") == ([{"bearer": []}] if is_refused else None)
    for methods in made["paths"].values():
        for operation in methods.values():
            is_open = operation.get("security") == []
            assert is_open or "401" in operation["responses"]


def test_version_is_one_everywhere() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert {document(service)["info"]["version"] for service in SERVICES} == {project["version"]}


@pytest.mark.parametrize("service", SERVICES)
async def test_page_of_the_api_loads_its_own_files_alone(service: str) -> None:
    app = create_app(service, model=("m", 1))
    async with http_client(app) as client:
        page = await client.get("/docs")
        names = re.findall(r'(?:src|href)="([^"]*)"', page.text)
        files = {name: await client.get(name) for name in names if name != "data:,"}
        again = await client.get(
            "docs/start.js", headers={"if-none-match": files["docs/start.js"].headers["etag"]}
        )
        nowhere = await client.get("/docs/redoc.standalone.js")
    assert "://" not in page.text
    assert set(files) == {"docs/swagger-ui.css", "docs/swagger-ui-bundle.js", "docs/start.js"}
    assert all(answer.status_code == 200 for answer in files.values())
    assert (again.status_code, nowhere.status_code) == (304, 404)
    # whatever the files name, the browser loads nothing from elsewhere
    policy = page.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "http" not in policy
    # styles and fonts are in the files
    urls = re.findall(r"url\(([^)]*)\)", files["docs/swagger-ui.css"].text)
    assert all(url.strip("\"'").startswith("data:") for url in urls)
