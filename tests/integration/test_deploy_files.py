"""What deploy/ says of flags, variables, ports and paths, held against the code that reads them.

Schemas are checked by `make check-deploy`, with the tools' own validators.
"""

import re
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

from integration.deploy_settings import CLOSE_S, DEPLOY, PANELS, SETTINGS, STAGES, settings_of
from integration.fleet import COMPOSE, ROOT, SECURE
from support.compose_file import read_compose
from support.dockerfile import Image, lineage, read_image
from triptych.settings import PanelSettings
from triptych_cli.main import COMMANDS

SERVICES = read_compose((COMPOSE,), {})["services"]
BUILT = [name for name, entry in SERVICES.items() if "build" in entry]
IMAGES = {SERVICES[name]["build"]["target"] for name in BUILT}


def compose_settings(
    monkeypatch: pytest.MonkeyPatch, name: str, services: dict[str, Any] = SERVICES
) -> tuple[Any, Image]:
    entry = services[name]
    image = read_image(STAGES, entry["build"]["target"])
    given = {key: value for key, value in entry.get("environment", {}).items() if value is not None}
    environment = {**image.environment, **{key: str(value) for key, value in given.items()}}
    return settings_of(monkeypatch, entry["command"], environment), image


# --- secrets


def test_secrets_are_written_into_an_empty_folder_alone(tmp_path: Path) -> None:
    """Also where the authority's key was taken away, as it should be, to a safer place."""
    (tmp_path / "api-keys").write_text("sk-one first\n")
    tmp_path.chmod(0o755)
    command = ["sh", str(DEPLOY / "make-secrets.sh"), str(tmp_path)]
    done = subprocess.run(command, capture_output=True, check=False, text=True, timeout=60)
    assert (done.returncode, done.stderr.count("\n")) == (1, 1)
    assert "is not empty" in done.stderr
    assert (tmp_path / "api-keys").read_text() == "sk-one first\n"
    assert len(list(tmp_path.iterdir())) == 1
    assert tmp_path.stat().st_mode & 0o777 == 0o755


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


@pytest.mark.parametrize("name", ["ci", "release"])
def test_workflows_take_an_index_with_cpu_builds(name: str) -> None:
    """GitHub's machines have no GPU: from the default index, ``install_torch.py`` takes nothing."""
    assert "vars.TORCH_INDEX" in (ROOT / ".github" / "workflows" / f"{name}.yml").read_text()


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
        entry = read_compose((COMPOSE,), {"GENERATE_CPUS": cores})["services"]["generate"]
        assert str(entry["environment"]["TRIPTYCH_GENERATE_THREADS"]) == cores
        assert str(entry["deploy"]["resources"]["limits"]["cpus"]) == cores


def test_compose_secrets_come_from_the_callers_environment() -> None:
    assert SERVICES["gateway"]["environment"]["TRIPTYCH_GATEWAY_API_KEY"] is None
    assert SERVICES["derender"]["environment"]["TRIPTYCH_DERENDER_STATE_KEY"] is None


@pytest.mark.parametrize("name", [name for name in BUILT if name != "prepare"])
def test_secure_compose_gives_every_hop_its_secret_and_both_certificates(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded = read_compose((COMPOSE, SECURE), {"SECRETS_DIR": "/made"})
    settings, _ = compose_settings(monkeypatch, name, loaded["services"])
    mounted = {f"/run/secrets/{each}" for each in loaded["services"][name]["secrets"]}
    read = {"hop_secret_file", "tls_ca", "tls_cert", "tls_key"}
    if name == "gateway":
        read.add("api_keys_file")
        assert settings.tls_name == "panel.triptych"
    else:
        (program, *_, script) = loaded["services"][name]["healthcheck"]["test"][1:]
        assert program == "python"
        assert f"https://127.0.0.1:{settings.http_port}/ready" in script
    assert {str(getattr(settings, field)) for field in read} == mounted
    for each in loaded["services"][name]["secrets"]:
        assert loaded["secrets"][each] == {"file": f"/made/{each}"}


# --- Prometheus and Grafana


@pytest.mark.parametrize("file", ["prometheus.yml", "prometheus.secure.yml"])
def test_prometheus_asks_every_service_at_its_json_port(file: str) -> None:
    jobs = yaml.safe_load((DEPLOY / file).read_text())["scrape_configs"]
    secure = {job["job_name"] for job in jobs if job.get("scheme") == "https"}
    assert secure == (set(PANELS) if "secure" in file else set())
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
