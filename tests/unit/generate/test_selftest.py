"""The checks at load find what they are there for."""

import logging
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from support.generate_runs import front_doors, load_service
from triptych.convert import info_from_proto
from triptych.errors import SetupError
from triptych.v1 import generate_pb2
from triptych_generate.kv_cache import LayerShape
from triptych_generate.linears import (
    NativeLinear,
    PackedLinear,
    can_pack,
    pack_linears,
    row_multiple,
)
from triptych_generate.loader import LoadedModel, load_model
from triptych_generate.native import load_kernels
from triptych_generate.options import EngineOptions
from triptych_generate.runner import probe_layers, use_paged_attention
from triptych_generate.selftest import (
    PlainReference,
    check_against_plain,
    is_invariant,
    plain_reference,
)
from triptych_generate.service import GenerateService
from triptych_generate.setup import set_up
from triptych_generate.worker import Worker

_BLOCK = 64


@dataclass(frozen=True, slots=True)
class _Paged:
    loaded: LoadedModel
    shapes: dict[int, LayerShape]
    reference: PlainReference


@pytest.fixture
def paged(tiny_dir: Callable[[str], Path]) -> _Paged:
    """A model ready for paged attention, its linear layers not yet packed."""
    options = EngineOptions(model_dir=tiny_dir("llama"), served_model_name="tiny")
    loaded = load_model(options)
    reference = plain_reference(loaded)
    use_paged_attention(loaded)
    return _Paged(loaded, probe_layers(loaded).shapes, reference)


class _BatchDependent(nn.Module):
    """A head whose bits depend on how many rows it is given."""

    def __init__(self, head: nn.Module) -> None:
        super().__init__()
        self.head = head

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(x)
        return out * (1 + 1e-6 * x.shape[1])


def test_plain_and_paged_forward_agree(paged: _Paged) -> None:
    check_against_plain(paged.loaded, paged.shapes, paged.reference, block_size=_BLOCK)


@pytest.mark.parametrize("change", [0.01, float("nan")])
def test_difference_from_the_plain_forward_is_refused(paged: _Paged, change: float) -> None:
    wrong = replace(paged.reference, logprobs=paged.reference.logprobs + change)
    with pytest.raises(SetupError, match="paged forward differs"):
        check_against_plain(paged.loaded, paged.shapes, wrong, block_size=_BLOCK)


def test_invariance_check_tells_what_depends_on_the_batch(paged: _Paged) -> None:
    model: Any = paged.loaded.model
    prompt = paged.reference.prompt
    assert is_invariant(paged.loaded, paged.shapes, prompt, block_size=_BLOCK)
    model.lm_head = _BatchDependent(model.lm_head)
    assert not is_invariant(paged.loaded, paged.shapes, prompt, block_size=_BLOCK)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("in_features", "out_features"), [(64, 199), (576, 1536), (1536, 576)])
@pytest.mark.parametrize("is_native", [True, False])
def test_packed_linear_has_the_same_bits_for_every_number_of_rows_it_may_get(
    is_native: bool, in_features: int, out_features: int, dtype: torch.dtype
) -> None:
    if not is_native and not can_pack(dtype, torch.device("cpu")):
        pytest.skip(f"oneDNN packs no {dtype} on this processor, so the engine does not")
    linear = nn.Linear(in_features, out_features, dtype=dtype)
    model = nn.Sequential(linear)
    x = torch.randn(1, 130, in_features, dtype=dtype)
    plain = linear(x)
    pack_linears(model, load_kernels() if is_native else None)
    assert isinstance(model[0], NativeLinear if is_native else PackedLinear)
    whole = model(x)
    tolerance = 1e-4 if dtype == torch.float32 else 1e-2
    torch.testing.assert_close(whole, plain, atol=tolerance, rtol=tolerance)
    step = row_multiple(model)
    assert step == (1 if is_native else 2)
    for num_rows in range(step, 130, step):
        assert torch.equal(model(x[:, :num_rows]), whole[:, :num_rows])


@pytest.mark.parametrize(
    ("family", "is_packed", "is_native", "multiple"),
    [
        ("llama", True, True, 1),
        ("llama", True, False, 2),
        ("llama", False, False, 4),
        ("mixtral", True, True, 16),
    ],
)
def test_row_multiple_follows_the_slowest_class_of_product(
    family: str,
    is_packed: bool,
    is_native: bool,
    multiple: int,
    tiny_dir: Callable[[str], Path],
) -> None:
    loaded = load_model(
        EngineOptions(model_dir=tiny_dir(family), served_model_name="tiny", dtype="bfloat16")
    )
    if is_packed:
        pack_linears(loaded.model, load_kernels() if is_native else None)
    assert row_multiple(loaded.model) == multiple


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"max_step_tokens": 0}, "max_step_tokens is 0"),
        ({"max_step_tokens": 8, "max_num_sequences": 9}, "less than max_num_sequences 9"),
    ],
)
def test_options_that_cannot_work_are_refused(
    changes: dict[str, Any], message: str, tiny_dir: Callable[[str], Path]
) -> None:
    with pytest.raises(SetupError, match=message):
        load_service(tiny_dir("llama"), **changes)


@pytest.mark.parametrize("found", [True, False])
async def test_finding_is_reported_in_server_info_and_metrics(
    found: bool, tiny_dir: Callable[[str], Path]
) -> None:
    options = EngineOptions(model_dir=tiny_dir("llama"), served_model_name="tiny")
    worker = Worker("generate-engine")
    parts = worker.submit(lambda: set_up(options)).result()
    service = GenerateService(replace(parts, invariant=found), options, worker)
    async with front_doors(service) as doors:
        page = (await doors.http.get("/metrics")).text
        info = await doors.grpc.GetInfo(generate_pb2.GetInfoRequest())
    assert f"triptych_generate_invariant {float(found)}\n" in page
    assert info_from_proto(info).invariant is found


def test_finding_is_reported_in_the_log(
    tiny_dir: Callable[[str], Path], caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO):
        load_service(tiny_dir("llama"))
    assert "batch-invariant: yes" in caplog.text
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]
