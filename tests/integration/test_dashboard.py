"""The Grafana dashboard against what running services really export, each way."""

import itertools
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import triptych
from support.scripted import text_panels
from support.whole_fleet import make_generate_model, whole_fleet

pytestmark = pytest.mark.model

DASHBOARD = Path(triptych.__file__).parents[2] / "deploy/grafana/dashboards/triptych.json"
#: What a family's samples add to its name, by its type in Prometheus' text format.
SUFFIXES = {"counter": [""], "gauge": [""], "histogram": ["_bucket", "_count", "_sum"]}
#: The grid of Grafana, in columns.
NUM_COLUMNS = 24


def board() -> dict[str, Any]:
    read: dict[str, Any] = json.loads(DASHBOARD.read_text())
    return read


def panels() -> Iterator[dict[str, Any]]:
    for panel in board()["panels"]:
        yield panel
        yield from panel.get("panels", [])


def expressions() -> list[str]:
    return [target["expr"] for panel in panels() for target in panel.get("targets", [])]


def names_in(expression: str) -> set[str]:
    """The metrics of an expression."""
    return set(re.findall(r"\b(?:triptych|process)_\w+", expression))


def samples_of(page: str) -> dict[str, set[str]]:
    """The names of samples that each family of a metrics page can have."""
    families = re.findall(r"^# TYPE (\S+) (\S+)$", page, re.MULTILINE)
    return {
        name: {name + suffix for suffix in SUFFIXES[kind]}
        for name, kind in families
        if not name.endswith("_created")
    }


async def test_dashboard_shows_what_services_export_and_nothing_else(
    smollm2_dir: Path, tmp_path: Path
) -> None:
    texts = text_panels(smollm2_dir, "none")
    async with whole_fleet(texts, make_generate_model(tmp_path)) as fleet:
        pages = [await fleet.metrics(name) for name in fleet.services]
    exported = {family: names for page in pages for family, names in samples_of(page).items()}
    shown = set().union(*map(names_in, expressions()))
    assert shown - set().union(*exported.values()) == set()
    ours = {family: names for family, names in exported.items() if family.startswith("triptych")}
    assert [family for family, names in ours.items() if not names & shown] == []


def test_dashboard_is_as_grafana_reads_it() -> None:
    read = board()
    assert read["schemaVersion"] >= 36  # data sources by type and uid
    assert {"uid", "title", "panels", "templating", "time"} <= set(read)
    ids = [panel["id"] for panel in panels()]
    assert len(set(ids)) == len(ids)
    (variable,) = read["templating"]["list"]
    assert (variable["type"], variable["query"]) == ("datasource", "prometheus")
    for panel in panels():
        if panel["type"] == "row":
            continue
        assert panel["type"] == "timeseries"
        assert panel["targets"]
        references = [target["refId"] for target in panel["targets"]]
        assert len(set(references)) == len(references)
        sources = [panel["datasource"], *(target["datasource"] for target in panel["targets"])]
        assert all(source == {"type": "prometheus", "uid": "${datasource}"} for source in sources)


def test_panels_lie_on_the_grid_and_on_no_other() -> None:
    places = [panel["gridPos"] for panel in board()["panels"]]
    for place in places:
        assert 0 <= place["x"] <= place["x"] + place["w"] <= NUM_COLUMNS
    for a, b in itertools.combinations(places, 2):
        is_beside = a["x"] + a["w"] <= b["x"] or b["x"] + b["w"] <= a["x"]
        is_above = a["y"] + a["h"] <= b["y"] or b["y"] + b["h"] <= a["y"]
        assert is_beside or is_above


@pytest.mark.parametrize("expression", expressions())
def test_expression_is_closed_and_rates_are_of_counters(expression: str) -> None:
    assert expression.count("(") == expression.count(")")
    assert expression.count("{") == expression.count("}")
    for counted in re.findall(r"rate\((\w+)", expression):
        assert counted.endswith(("_total", "_bucket", "_count"))
