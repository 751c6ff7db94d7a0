"""deploy/k8s held against the settings, ports, probes and images that it names.

Schemas are checked by `make check-deploy`, with the tools' own validators.
"""

import re
from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from integration.deploy_settings import CLOSE_S, DEPLOY, PANELS, STAGES, settings_of
from integration.fleet import COMPOSE
from support.compose_file import read_compose
from support.dockerfile import read_image
from triptych_gateway.settings import GatewaySettings

SERVICES = read_compose((COMPOSE,), {})["services"]
IMAGES = {entry["image"] for entry in SERVICES.values() if "build" in entry}
BASE = DEPLOY / "k8s" / "base"
OVERLAYS = [*(DEPLOY / "k8s" / "overlays").iterdir()]


def documents(kind: str) -> dict[str, Any]:
    """The base's Kubernetes objects of ``kind`` by name."""
    listed = yaml.safe_load((BASE / "kustomization.yaml").read_text())["resources"]
    everything = (each for name in listed for each in yaml.safe_load_all((BASE / name).read_text()))
    return {each["metadata"]["name"]: each for each in everything if each["kind"] == kind}


DEPLOYMENTS = documents("Deployment")


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
    argv = [
        re.sub(r"\$\((\w+)\)", lambda found: values[found[1]], each) for each in container["args"]
    ]
    return settings_of(monkeypatch, argv, {**image.environment, **values})


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
    if name in PANELS:
        gateway = GatewaySettings()
        assert int(seconds) >= gateway.resolve_every_s + gateway.probe_every_s


@pytest.mark.parametrize("name", DEPLOYMENTS)
def test_pod_is_probed_and_confined(name: str) -> None:
    pod = DEPLOYMENTS[name]["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    paths = {
        probe: container[f"{probe}Probe"]["httpGet"]
        for probe in ("startup", "liveness", "readiness")
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


def test_load_alone_decides_how_many_pods_there_are() -> None:
    """Kubernetes sets what a manifest names at every apply, under load too."""
    assert not [name for name, each in DEPLOYMENTS.items() if "replicas" in each["spec"]]
    scalers = documents("HorizontalPodAutoscaler").values()
    assert {each["spec"]["minReplicas"] for each in scalers} == {2}


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
    assert used | {"triptych-generate-gpu"} == IMAGES
    for overlay in OVERLAYS:
        text = (overlay / "kustomization.yaml").read_text()
        images = set(re.findall(r"image: (\S+)", text))
        assert images <= IMAGES


def test_gpu_overlay_starts_generate_with_what_its_settings_know(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    overlay = yaml.safe_load((DEPLOY / "k8s/overlays/gpu/kustomization.yaml").read_text())
    (patch,) = overlay["patches"]
    spec = yaml.safe_load(patch["patch"])["spec"]
    assert spec["strategy"]["rollingUpdate"]["maxSurge"] == 0  # there may be no GPU for one more
    (container,) = spec["template"]["spec"]["containers"]
    container["args"] = [each.replace("$(MODEL)", "smollm2") for each in container["args"]]
    settings = pod_settings(monkeypatch, "generate", container)
    assert settings.device == "cuda"


@pytest.mark.parametrize("name", DEPLOYMENTS)
def test_secure_component_gives_every_hop_its_secret_and_both_certificates(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    patch = yaml.safe_load((DEPLOY / f"k8s/components/secure/{name}.yaml").read_text())
    assert patch["metadata"]["name"] == name
    pod = patch["spec"]["template"]
    (container,) = pod["spec"]["containers"]
    given = {each["name"]: each["value"] for each in container["env"] if "value" in each}
    settings = settings_of(monkeypatch, [name], given)
    read = {"hop_secret_file", "tls_ca", "tls_cert", "tls_key"}
    end = "gateway" if name == "gateway" else "panel"
    files = {"hop-secret", "ca.pem", f"{end}.pem", f"{end}.key"}
    if name == "gateway":  # TRIPTYCH_GATEWAY_API_KEY of the base goes: one of both may be given
        read.add("api_keys_file")
        files.add("api-keys")
        assert {"name": "TRIPTYCH_GATEWAY_API_KEY", "$patch": "delete"} in container["env"]
        assert settings.tls_name == "panel.triptych"
    else:
        assert pod["metadata"]["annotations"] == {"prometheus.io/scheme": "https"}
        probes = {key: each for key, each in container.items() if key.endswith("Probe")}
        base = DEPLOYMENTS[name]["spec"]["template"]["spec"]["containers"][0]
        assert probes.keys() == {key for key in base if key.endswith("Probe")}
        assert all(each == {"httpGet": {"scheme": "HTTPS"}} for each in probes.values())
    assert {str(getattr(settings, field)) for field in read} == {f"/secrets/{f}" for f in files}
    (volume,) = pod["spec"]["volumes"]
    assert volume["secret"]["secretName"] == f"triptych-{end}"


def _containers(pod: Any) -> Iterator[Any]:
    yield from pod.get("initContainers", [])
    yield from pod["containers"]
