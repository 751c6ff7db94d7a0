"""What deploy/ says of flags, variables, ports and paths, held against the code that reads them.

Schemas are checked by `make check-deploy`, with the tools' own validators.
"""

import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from pydantic_settings import BaseSettings

from integration.fleet import COMPOSE, ROOT
from support.compose_file import read_compose
from support.dockerfile import Image, lineage, read_image, read_stages
from triptych.settings import PanelSettings, parse_settings
from triptych_cli.main import COMMANDS
from triptych_cli.prepare import PrepareSettings
from triptych_derender.settings import DerenderSettings
from triptych_gateway.settings import GatewaySettings
from triptych_generate.settings import GenerateSettings
from triptych_render.settings import RenderSettings

SETTINGS: dict[str, type[BaseSettings]] = {
    "gateway": GatewaySettings,
    "render": RenderSettings,
    "generate": GenerateSettings,
    "derender": DerenderSettings,
    "prepare": PrepareSettings,
}
PANELS = ("render", "generate", "derender")
DEPLOY = ROOT / "deploy"
STAGES = read_stages(DEPLOY / "Dockerfile")
SERVICES = read_compose(COMPOSE, {})["services"]
BUILT = [name for name, entry in SERVICES.items() if "build" in entry]
IMAGES = {SERVICES[name]["build"]["target"] for name in BUILT}
BASE = DEPLOY / "k8s" / "base"
OVERLAYS = [*(DEPLOY / "k8s" / "overlays").iterdir()]
#: Seconds between the end of a drain and the end of the process (`serving`, twice its bound).
CLOSE_S = 2


def documents(kind: str) -> dict[str, Any]:
    """The base's Kubernetes objects of ``kind`` by name."""
    listed = yaml.safe_load((BASE / "kustomization.yaml").read_text())["resources"]
    everything = (each for name in listed for each in yaml.safe_load_all((BASE / name).read_text()))
    return {each["metadata"]["name"]: each for each in everything if each["kind"] == kind}


DEPLOYMENTS = documents("Deployment")


def settings_of(
    monkeypatch: pytest.MonkeyPatch, argv: list[str], environment: dict[str, str]
) -> Any:
    """The settings that a process with ``argv`` (after ``triptych``) and ``environment`` gets.

    Every TRIPTYCH variable that a service's class does not know is a failure.
    """
    command, *flags = argv
    kind = SETTINGS[command]
    prefix = str(kind.model_config["env_prefix"])
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
        if name.startswith("TRIPTYCH_") and name != "TRIPTYCH_CACHE":
            field = name.removeprefix(prefix).lower()
            assert name.startswith(prefix), f"{name} is not {command}'s"
            assert field in kind.model_fields, f"{command} has no {name}"
    return parse_settings(kind, flags)


def compose_settings(monkeypatch: pytest.MonkeyPatch, name: str) -> tuple[Any, Image]:
    entry = SERVICES[name]
    image = read_image(STAGES, entry["build"]["target"])
    given = {key: value for key, value in entry.get("environment", {}).items() if value is not None}
    environment = {**image.environment, **{key: str(value) for key, value in given.items()}}
    return settings_of(monkeypatch, entry["command"], environment), image


def pod_settings(monkeypatch: pytest.MonkeyPatch, name: str, container: Any) -> Any:
    """As a pod would have them; references to the configuration are followed."""
    (generator,) = yaml.safe_load((BASE / "kustomization.yaml").read_text())["configMapGenerator"]
    literals = dict(literal.split("=", 1) for literal in generator["literals"])
    values: dict[str, str] = {}
    for variable in container.get("env", []):
        source = variable.get("valueFrom", {})
        if "configMapKeyRef" in source:
            assert source["configMapKeyRef"]["name"] == generator["name"]
            values[variable["name"]] = literals[source["configMapKeyRef"]["key"]]
        else:  # a secret: any key of sufficient length
            values[variable["name"]] = variable.get("value", "k" * 32)
    image = read_image(STAGES, container["image"].removeprefix("triptych-"))
    argv = [re.sub(r"\$\((\w+)\)", lambda found: values[found[1]], each) for each in container["args"]]
    return settings_of(monkeypatch, argv, {**image.environment, **values})


# --- the Dockerfile


def test_images_have_only_the_extras_of_their_service() -> None:
    extras = {"generate-gpu": {"cuda"}, "prepare": {"generate", "prepare"}}
    known = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    for target in IMAGES:
        runs = [
            text
            for stage in lineage(STAGES, f"{target}-environment")
            for text in stage.texts("RUN")
        ]
        found = set(re.findall(r"'\.\[(\w+)\]'", "\n".join(runs)))
        assert found == extras.get(target, {target})
        assert found <= known.keys()
        assert ("torch==" in "\n".join(runs)) == (target in {"generate", "prepare"})


@pytest.mark.parametrize("target", sorted(IMAGES))
def test_image_runs_its_service_as_a_numbered_user(target: str) -> None:
    image = read_image(STAGES, target)
    assert image.entrypoint == ["triptych"]
    assert image.command[0] in COMMANDS
    assert image.user == "10001:10001"
    assert STAGES[target].texts("COPY") == [
        f"--from={target}-environment /opt/triptych /opt/triptych"
    ]


def test_builder_is_sent_all_that_is_copied_and_nothing_else() -> None:
    lines = (DEPLOY / "Dockerfile.dockerignore").read_text().split()
    sent = {line.removeprefix("!") for line in lines if line.startswith("!")}
    copied = {
        source
        for stage in STAGES.values()
        for text in stage.texts("COPY")
        if not text.startswith("--from=")
        for source in text.split()[:-1]
    }
    assert copied == sent
    assert all((ROOT / source).exists() for source in copied)


# --- compose.yaml


@pytest.mark.parametrize("name", BUILT)
def test_compose_service_starts_with_what_its_settings_know(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings, image = compose_settings(monkeypatch, name)
    if name == "prepare":
        return
    assert settings.host == "0.0.0.0"
    ports = [settings.http_port]
    if isinstance(settings, PanelSettings):
        ports.append(settings.grpc_port)
    assert image.ports == ports
    assert image.healthcheck is not None
    assert f"http://127.0.0.1:{settings.http_port}/ready" in image.healthcheck[-1]
    grace_s = float(SERVICES[name]["stop_grace_period"].removesuffix("s"))
    assert settings.drain_timeout_s + CLOSE_S <= grace_s


@pytest.mark.parametrize("generate", ["generate", "generate-gpu"])
def test_compose_gateway_calls_the_ports_that_panels_listen_on(
    generate: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    gateway, _ = compose_settings(monkeypatch, "gateway")
    assert gateway.generate == "generate:9002"
    for address in (gateway.render, f"{generate}:9002", gateway.derender):
        name, _, port = address.partition(":")
        panel, _ = compose_settings(monkeypatch, name)
        assert panel.grpc_port == int(port)


@pytest.mark.parametrize("name", SERVICES)
def test_compose_containers_are_confined_and_limited(name: str) -> None:
    entry = SERVICES[name]
    limits = entry.get("deploy", {}).get("resources", {}).get("limits", {})
    assert name == "prepare" or limits.keys() == {"cpus", "memory"}
    if name == "vllm":  # an image of others, which runs as root
        return
    assert not entry["user"].startswith("0")
    assert re.fullmatch(r"\d+:\d+", entry["user"])
    assert entry["read_only"] is True
    assert entry["cap_drop"] == ["ALL"]
    assert entry["security_opt"] == ["no-new-privileges:true"]


def test_compose_publishes_the_gateway_and_grafana_on_loopback_alone() -> None:
    published = {name: entry["ports"] for name, entry in SERVICES.items() if "ports" in entry}
    assert published == {
        "gateway": ["127.0.0.1:8000:8000"],
        "grafana": ["127.0.0.1:3000:3000"],
    }


def test_compose_gives_generate_as_many_threads_as_cores() -> None:
    for cores in ("2", "6"):
        entry = read_compose(COMPOSE, {"GENERATE_CPUS": cores})["services"]["generate"]
        assert str(entry["environment"]["TRIPTYCH_GENERATE_THREADS"]) == cores
        assert str(entry["deploy"]["resources"]["limits"]["cpus"]) == cores


def test_compose_secrets_come_from_the_callers_environment() -> None:
    assert SERVICES["gateway"]["environment"]["TRIPTYCH_GATEWAY_API_KEY"] is None
    assert SERVICES["derender"]["environment"]["TRIPTYCH_DERENDER_STATE_KEY"] is None


# --- Prometheus and Grafana


def test_prometheus_asks_every_service_at_its_json_port() -> None:
    jobs = yaml.safe_load((DEPLOY / "prometheus.yml").read_text())["scrape_configs"]
    found = {
        name: lookup["port"]
        for job in jobs
        for lookup in job["dns_sd_configs"]
        for name in lookup["names"]
    }
    assert found.pop("vllm") == 8000
    expected = {
        name: SETTINGS[SERVICES[name]["command"][0]].model_fields["http_port"].default
        for name in BUILT
        if name != "prepare"
    }
    assert found == expected


def test_grafana_finds_its_source_and_dashboards_where_compose_mounts_them() -> None:
    provisioning = DEPLOY / "grafana" / "provisioning"
    (source,) = yaml.safe_load((provisioning / "datasources" / "prometheus.yaml").read_text())[
        "datasources"
    ]
    assert source["url"] == "http://prometheus:9090"
    (provider,) = yaml.safe_load((provisioning / "dashboards" / "triptych.yaml").read_text())[
        "providers"
    ]
    targets = [volume.split(":")[1] for volume in SERVICES["grafana"]["volumes"]]
    assert provider["options"]["path"] in targets
    assert "/etc/grafana/provisioning" in targets


# --- Kubernetes


@pytest.mark.parametrize("name", DEPLOYMENTS)
def test_pod_starts_with_what_its_settings_know(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    pod = DEPLOYMENTS[name]["spec"]["template"]["spec"]
    for container in (*pod.get("initContainers", []), *pod["containers"]):
        settings = pod_settings(monkeypatch, name, container)
    ports = {each["name"]: each["containerPort"] for each in pod["containers"][0]["ports"]}
    assert ports.pop("http") == settings.http_port
    assert ports == ({"grpc": settings.grpc_port} if name in PANELS else {})
    annotations = DEPLOYMENTS[name]["spec"]["template"]["metadata"]["annotations"]
    assert annotations["prometheus.io/port"] == str(settings.http_port)


@pytest.mark.parametrize("name", DEPLOYMENTS)
def test_pod_has_time_to_leave_and_drain(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    pod = DEPLOYMENTS[name]["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    settings = pod_settings(monkeypatch, name, container)
    command, seconds = container["lifecycle"]["preStop"]["exec"]["command"]
    assert command == "sleep"
    needed_s = int(seconds) + settings.drain_timeout_s + CLOSE_S
    assert needed_s <= pod["terminationGracePeriodSeconds"]


@pytest.mark.parametrize("name", DEPLOYMENTS)
def test_pod_is_probed_and_confined(name: str) -> None:
    pod = DEPLOYMENTS[name]["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    paths = {
        probe: container[f"{probe}Probe"]["httpGet"] for probe in ("startup", "liveness", "readiness")
    }
    assert {probe: each["path"] for probe, each in paths.items()} == {
        "startup": "/health",
        "liveness": "/health",
        "readiness": "/ready",
    }
    assert {each["port"] for each in paths.values()} == {"http"}
    assert pod["automountServiceAccountToken"] is False
    assert pod["securityContext"]["runAsUser"] == 10001
    for each in (*pod.get("initContainers", []), container):
        assert each["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }


@pytest.mark.parametrize("name", PANELS)
def test_panel_services_name_every_pod_at_the_port_that_the_gateway_calls(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    (container,) = DEPLOYMENTS["gateway"]["spec"]["template"]["spec"]["containers"]
    gateway = pod_settings(monkeypatch, "gateway", container)
    service = documents("Service")[name]["spec"]
    assert service["clusterIP"] == "None"  # headless: the name gives every address
    ports = {each["targetPort"]: each["port"] for each in service["ports"]}
    assert getattr(gateway, name) == f"{name}:{ports['grpc']}"


def test_kubernetes_objects_select_pods_that_exist() -> None:
    for kind in ("Service", "PodDisruptionBudget"):
        for name, document in documents(kind).items():
            selector = document["spec"]["selector"]
            labels = selector.get("matchLabels", selector)
            assert labels == DEPLOYMENTS[name]["spec"]["template"]["metadata"]["labels"]
    scalers = documents("HorizontalPodAutoscaler")
    assert {each["spec"]["scaleTargetRef"]["name"] for each in scalers.values()} == set(DEPLOYMENTS)
    assert set(documents("PodDisruptionBudget")) == set(DEPLOYMENTS)


def test_only_the_gateway_and_prometheus_reach_the_panels() -> None:
    policies = documents("NetworkPolicy")
    assert policies.pop("nobody")["spec"] == {"podSelector": {}, "policyTypes": ["Ingress"]}
    assert policies.pop("clients-to-gateway")["spec"]["podSelector"]["matchLabels"] == {
        "app.kubernetes.io/name": "gateway"
    }
    doors = {}
    for name, policy in policies.items():
        (expression,) = policy["spec"]["podSelector"]["matchExpressions"]
        assert sorted(expression["values"]) == sorted(PANELS)
        (rule,) = policy["spec"]["ingress"]
        doors[name] = (rule["from"], [port["port"] for port in rule["ports"]])
    assert doors == {
        "gateway-to-panels": (
            [{"podSelector": {"matchLabels": {"app.kubernetes.io/name": "gateway"}}}],
            ["grpc"],
        ),
        "prometheus-to-panels": (
            [{"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "monitoring"}}}],
            ["http"],
        ),
    }


def test_images_have_the_same_names_in_compose_and_kubernetes() -> None:
    used = {
        container["image"]
        for deployment in DEPLOYMENTS.values()
        for container in _containers(deployment["spec"]["template"]["spec"])
    }
    assert used | {"triptych-generate-gpu"} == {SERVICES[name]["image"] for name in BUILT}
    for overlay in OVERLAYS:
        text = (overlay / "kustomization.yaml").read_text()
        images = set(re.findall(r"image: (\S+)", text))
        assert images <= {SERVICES[name]["image"] for name in BUILT}


def test_gpu_overlay_starts_generate_with_what_its_settings_know(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    overlay = yaml.safe_load((DEPLOY / "k8s/overlays/gpu/kustomization.yaml").read_text())
    (patch,) = overlay["patches"]
    (container,) = yaml.safe_load(patch["patch"])["spec"]["template"]["spec"]["containers"]
    container["args"] = [each.replace("$(MODEL)", "smollm2") for each in container["args"]]
    settings = pod_settings(monkeypatch, "generate", container)
    assert settings.device == "cuda"


def _containers(pod: Any) -> Iterator[Any]:
    yield from pod.get("initContainers", [])
    yield from pod["containers"]
