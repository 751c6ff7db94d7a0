"""The compose file's topology as processes: clients go on when replicas are killed."""

import os
import re
import shutil
import signal
import ssl
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import httpx
import openai
import pytest
import yaml

from integration.deploy_settings import DEPLOY
from integration.fleet import COMPOSE, Fleet
from support.containers import run_inside
from support.private_network import can_have_networks
from support.tiny_models import make_tiny_model
from triptych.hops import Tls
from triptych.settings import cache_directory
from triptych.v1 import generate_pb2, generate_pb2_grpc

pytestmark = [
    pytest.mark.model,
    pytest.mark.timeout(1200),  # a whole fleet starts on two cores
    pytest.mark.xdist_group("fleet"),
]

TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja")


@pytest.fixture(scope="module")
def models_dir(smollm2_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a tiny model that has the built-in model's tokenizer."""
    folder = tmp_path_factory.mktemp("models")
    make_tiny_model("llama", folder / "tiny", vocab_size=49152, eos_token_id=2)
    for name in TOKENIZER_FILES:
        shutil.copy(smollm2_dir / name, folder / "tiny" / name)
    for path in (folder, *folder.rglob("*")):  # the containers' user is another one
        path.chmod(0o755 if path.is_dir() else 0o644)
    (folder / "closed").mkdir(mode=0o700)
    return folder


def fleet_of(
    models_dir: Path,
    folder: Path,
    cache: Path,
    *,
    variables: dict[str, str] | None = None,
    **options: Any,
) -> Fleet:
    known = {"MODEL": "/models/tiny", "MODELS_DIR": str(models_dir), "GENERATE_CPUS": "1"}
    known |= variables or {}
    return Fleet(folder, variables=known, volumes={"cache": cache}, **options)


@pytest.fixture(scope="module")
def image_environments(request: pytest.FixtureRequest) -> dict[str, Path]:
    """By service, where `make check-deploy` built them; else none."""
    folder: Path | None = request.config.getoption("--image-environments")
    if folder is None:
        return {}
    return {each.name: each.resolve() / "environment" for each in folder.iterdir()}


@pytest.fixture(scope="module")
def fleet(
    models_dir: Path,
    image_environments: dict[str, Path],
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Fleet]:
    """Of this Python, with the kernels that it has; or of the images, with nothing compiled yet."""
    if not can_have_networks():
        pytest.skip("network namespaces need root and iproute2")
    cache = cache_directory()
    if image_environments:
        cache = tmp_path_factory.mktemp("cache")
        os.chown(cache, 10001, 10001)  # as the image has it, which a new volume takes over
    with fleet_of(
        models_dir,
        tmp_path_factory.mktemp("fleet"),
        cache,
        scale={"render": 2, "generate": 2, "derender": 2},
        is_private=True,
        environments=image_environments,
    ) as started:
        yield started


def ask(fleet: Fleet, api_key: str = "none", **extra: Any) -> Any:
    """One greedy chat answer with logprobs, by the openai client; its own retries are on."""
    url = f"{fleet.url('gateway')}/v1"
    with openai.OpenAI(base_url=url, api_key=api_key, max_retries=8) as client:
        answer = client.chat.completions.create(
            model="tiny",
            messages=[{"role": "user", "content": "Say hi."}],
            temperature=0,
            max_tokens=8,
            logprobs=True,
            top_logprobs=2,
            extra_body=extra,
        )
    (choice,) = answer.choices
    return choice.model_dump()


def test_fleet_answers_alike_while_replicas_come_and_go(fleet: Fleet) -> None:
    undisturbed = ask(fleet)
    assert len(undisturbed["logprobs"]["content"]) == 8
    for service in ("render", "derender"):
        for _ in range(2):  # at the second time only a replica found by name is left to answer
            fleet.send(service, 0, signal.SIGKILL)
            assert ask(fleet) == undisturbed
            fleet.stop(service, 0)
            fleet.scale(service, 2)
    fleet.send("generate", 0, signal.SIGKILL)
    assert ask(fleet) == undisturbed
    fleet.stop("generate", 0)


def test_fleet_compiles_grammars_without_writing_a_file(fleet: Fleet) -> None:
    """xgrammar and its process of its own work on a read-only root, as another user."""
    choice = ask(fleet, structured_outputs={"choice": ["yes"]})
    assert choice["message"]["content"] == "yes"


def test_fleet_names_lead_to_every_running_replica(fleet: Fleet) -> None:
    (gateway,) = fleet.replicas("gateway")
    script = "import socket, sys; found = socket.getaddrinfo('render', 9001, type=1);"
    script += "sys.exit(sorted(each[4][0] for each in found) != sorted(sys.argv[1:]))"
    addresses = [replica.container.address for replica in fleet.replicas("render")]
    assert len(addresses) == 2
    asked = [fleet.python("gateway"), "-c", script, *addresses]
    assert run_inside(gateway.container, asked, timeout_s=20)


def test_model_that_another_user_owns_is_one_line(fleet: Fleet) -> None:
    script = (
        "import subprocess, sys;"
        "command = [sys.executable, '-m', 'triptych_cli', 'render', '--model', '/models/closed'];"
        "done = subprocess.run(command, capture_output=True, text=True);"
        "wanted = '/models/closed/tokenizer.json may not be used by user 10001';"
        "sys.exit(done.stderr != f'triptych render: {wanted}\\n')"
    )
    asked = [fleet.python("render"), "-c", script]
    assert run_inside(fleet.replicas("render")[0].container, asked, timeout_s=60)


@pytest.mark.parametrize("service", ["gateway", "render", "generate", "derender"])
def test_fleet_container_is_confined_as_compose_says(fleet: Fleet, service: str) -> None:
    container = fleet.replicas(service)[0].container

    def can_write(path: str) -> bool:
        script = f"open({path!r}, 'w').close()"
        return run_inside(container, [fleet.python(service), "-c", script], timeout_s=20)

    places = ["/x", "/etc/x", "/usr/x", "/cache/x", "/models/x", f"{sys.prefix}/x"]
    assert not any(can_write(path) for path in places)
    assert can_write("/tmp/x")
    status = Path(f"/proc/{container.process.pid}/status").read_text()
    facts = dict(re.findall(r"^(\w+):\s*(\S+)", status, re.MULTILINE))
    assert (facts["Uid"], facts["Gid"], facts["NoNewPrivs"]) == ("10001", "10001", "1")
    assert {facts["CapEff"], facts["CapPrm"], facts["CapBnd"]} == {"0" * 16}


@pytest.mark.parametrize("service", ["gateway", "render", "generate", "derender"])
def test_fleet_replica_has_health_and_metrics(fleet: Fleet, service: str) -> None:
    url = fleet.url(service)
    assert httpx.get(f"{url}/health").status_code == 200
    names = set(re.findall(r"^(\w+)", httpx.get(f"{url}/metrics").text, re.MULTILINE))
    assert f"triptych_{service}_requests_in_flight" in names
    if service == "generate":
        (scaler,) = [
            each
            for each in yaml.safe_load_all((COMPOSE.parent / "k8s/base/scaling.yaml").read_text())
            if each["kind"] == "HorizontalPodAutoscaler" and each["metadata"]["name"] == service
        ]
        (metric,) = scaler["spec"]["metrics"]
        assert metric["pods"]["metric"]["name"] in names


def test_fleet_replica_drains_in_less_than_its_grace(fleet: Fleet) -> None:
    (gateway,) = fleet.replicas("gateway")
    assert fleet.stop("gateway", 0) < gateway.service.stop_grace_s
    assert gateway.container.process.returncode == 0
    fleet.scale("gateway", 1)
    assert ask(fleet)["finish_reason"] == "length"


@pytest.mark.parametrize("service", ["gateway", "render", "generate", "derender"])
def test_image_has_torch_where_it_computes_alone(
    fleet: Fleet, image_environments: dict[str, Path], service: str
) -> None:
    if not image_environments:
        pytest.skip("needs --image-environments: `make check-deploy`")
    container = fleet.replicas(service)[0].container
    asked = [fleet.python(service), "-c", "import torch"]
    assert run_inside(container, asked, timeout_s=60) == (service == "generate")


@dataclass(frozen=True, slots=True)
class Secrets:
    """What deploy/make-secrets.sh wrote into ``folder``."""

    folder: Path

    @property
    def key(self) -> str:
        return (self.folder / "api-keys").read_text().split()[0]

    @property
    def bearer(self) -> str:
        return f"Bearer {(self.folder / 'hop-secret').read_text().strip()}"

    def get(self, url: str, path: str, **headers: str) -> httpx.Response:
        """From a panel's JSON door, as Prometheus is told to ask: by its name, whatever its host.

        ``path`` with a body is a POST.
        """
        trusted = ssl.create_default_context(cafile=str(self.folder / "ca.pem"))
        with httpx.Client(verify=trusted, base_url=url.replace("http:", "https:")) as client:
            request = client.build_request("POST", path, json={"prompt": "hi"}, headers=headers)
            if path == "/metrics":
                request = client.build_request("GET", path)
            request.extensions["sni_hostname"] = "panel.triptych"
            return client.send(request)

    def grpc_code(self, target: str, *, cert: bool, secret: bool) -> grpc.StatusCode | None:
        """How generate's gRPC door refuses; None: it answers."""
        tls = Tls(None, None, self.folder / "ca.pem")
        if cert:
            tls = Tls(self.folder / "gateway.pem", self.folder / "gateway.key", tls.ca)
        options = [("grpc.ssl_target_name_override", "panel.triptych")]
        metadata = (("authorization", self.bearer),) if secret else ()
        with grpc.secure_channel(target, tls.channel_credentials(), options) as channel:
            stub = generate_pb2_grpc.GenerateServiceStub(channel)
            try:
                stub.GetInfo(generate_pb2.GetInfoRequest(), timeout=20, metadata=metadata)
            except grpc.RpcError as error:
                code: grpc.StatusCode = error.code()
                return code
        return None


@pytest.fixture(scope="module")
def secrets(tmp_path_factory: pytest.TempPathFactory) -> Secrets:
    if shutil.which("openssl") is None:
        pytest.skip("make-secrets.sh needs openssl")
    folder = tmp_path_factory.mktemp("secrets")
    subprocess.run(["sh", DEPLOY / "make-secrets.sh", folder], check=True, timeout=60)
    return Secrets(folder)


def test_fleet_without_namespaces_answers_alike_to_those_who_may_ask(
    models_dir: Path, secrets: Secrets, tmp_path: Path
) -> None:
    """With compose.secure.yaml: every door refuses who lacks a key, a secret or a certificate."""
    with fleet_of(
        models_dir,
        tmp_path,
        cache_directory(),
        variables={"SECRETS_DIR": str(secrets.folder)},
        is_private=False,
        is_secure=True,
        scale={"render": 2},
    ) as started:
        undisturbed = ask(started, secrets.key)
        assert len(undisturbed["logprobs"]["content"]) == 8
        for wrong in ("none", secrets.bearer):
            with pytest.raises(openai.AuthenticationError):
                ask(started, wrong)
        render = started.url("render")
        assert secrets.get(render, "/tokenize").status_code == 401
        assert secrets.get(render, "/tokenize", authorization=secrets.bearer).status_code == 200
        for panel in ("render", "generate", "derender"):
            assert secrets.get(started.url(panel), "/metrics").status_code == 200
        worker = f"{started.replicas('generate')[0].container.address}:9002"
        assert secrets.grpc_code(worker, cert=True, secret=True) is None
        refused = secrets.grpc_code(worker, cert=True, secret=False)
        assert refused is grpc.StatusCode.UNAUTHENTICATED
        refused = secrets.grpc_code(worker, cert=False, secret=True)
        assert refused is grpc.StatusCode.UNAVAILABLE
        started.send("render", 0, signal.SIGKILL)
        assert ask(started, secrets.key) == undisturbed
        choice = ask(started, secrets.key, structured_outputs={"choice": ["yes"]})
        assert choice["message"]["content"] == "yes"
