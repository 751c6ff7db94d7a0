"""The compiled kernels: right against float64, and the same bits however rows are grouped."""

from dataclasses import dataclass

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from triptych_generate.attention import Scoring
from triptych_generate.kv_cache import KvCache, LayerShape
from triptych_generate.native import Kernels, load_kernels
from triptych_generate.native_attention import NativeStep
from triptych_generate.ranking import survey

_DTYPES = [torch.float32, torch.bfloat16]
_TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 2e-2}


@pytest.fixture(scope="module")
def kernels() -> Kernels:
    found = load_kernels()
    assert found is not None, "the tests' machine must have a C++ compiler"
    return found


@pytest.mark.parametrize("dtype", _DTYPES)
@pytest.mark.parametrize(("depth", "features"), [(1, 1), (15, 33), (64, 100), (577, 64)])
def test_linear_adds_bias_and_residual(
    kernels: Kernels, depth: int, features: int, dtype: torch.dtype
) -> None:
    x, weight = torch.randn(53, depth).to(dtype), torch.randn(features, depth).to(dtype)
    bias, residual = torch.randn(features).to(dtype), torch.randn(53, features).to(dtype)
    packed = kernels.pack_weight(weight)
    whole = kernels.linear(x, packed, bias, residual, features, False)
    expected = x.double() @ weight.double().T + bias.double() + residual.double()
    torch.testing.assert_close(
        whole.double(), expected, atol=_TOLERANCE[dtype] * 10, rtol=_TOLERANCE[dtype]
    )
    for num_rows in range(1, 53):
        part = kernels.linear(x[:num_rows], packed, bias, residual, features, False)
        assert torch.equal(part, whole[:num_rows])


@pytest.mark.parametrize("rows", [1, 16, 97, 230])
def test_linear_gives_the_same_bits_by_any_number_of_threads(kernels: Kernels, rows: int) -> None:
    x, packed = torch.randn(rows, 70), kernels.pack_weight(torch.randn(200, 70))
    alone = kernels.linear(x, packed, None, None, 200, False)
    num_threads = torch.get_num_threads()
    try:
        for threads in (2, 3, 8):
            torch.set_num_threads(threads)
            for _ in range(20):
                assert torch.equal(kernels.linear(x, packed, None, None, 200, False), alone)
    finally:
        torch.set_num_threads(num_threads)


@pytest.mark.parametrize("dtype", _DTYPES)
def test_gated_linear_is_silu_of_gates_times_values(kernels: Kernels, dtype: torch.dtype) -> None:
    x = (torch.randn(20, 40) * 0.3).to(dtype)
    gate, up = torch.randn(48, 40).to(dtype), torch.randn(48, 40).to(dtype)
    alternating = torch.stack([gate.view(3, 16, 40), up.view(3, 16, 40)], 1).reshape(96, 40)
    out = kernels.linear(x, kernels.pack_weight(alternating), None, None, 96, True)
    gates, values = x.double() @ gate.double().T, x.double() @ up.double().T
    torch.testing.assert_close(
        out.double(),
        torch.nn.functional.silu(gates) * values,
        atol=_TOLERANCE[dtype] * 10,
        rtol=_TOLERANCE[dtype],
    )


@dataclass(frozen=True, slots=True)
class _Case:
    """Three sequences' heads, and how each is cut into steps."""

    dtype: torch.dtype
    kv_heads: int
    share: int
    key_dim: int
    value_dim: int
    block_size: int
    lengths: tuple[int, ...]
    scoring: Scoring


@st.composite
def _cases(draw: st.DrawFn) -> _Case:
    kv_heads, share = draw(st.integers(1, 3)), draw(st.integers(1, 8))
    has_sinks = draw(st.booleans())
    return _Case(
        dtype=draw(st.sampled_from(_DTYPES)),
        kv_heads=kv_heads,
        share=share,
        key_dim=draw(st.sampled_from([8, 16, 24, 64, 80])),
        value_dim=draw(st.sampled_from([16, 48, 64, 80, 128])),
        block_size=draw(st.sampled_from([16, 32, 64, 80])),
        lengths=tuple(draw(st.lists(st.integers(1, 150), min_size=1, max_size=3))),
        scoring=Scoring(
            scaling=0.2,
            window=draw(st.sampled_from([None, 1, 7, 64, 100])),
            softcap=draw(st.sampled_from([None, 3.0])),
            sinks=torch.linspace(-1, 1, kv_heads * share) if has_sinks else None,
        ),
    )


@given(case=_cases(), seed=st.integers(0, 1000), data=st.data())
def test_attention_is_right_and_has_the_same_bits_in_any_batch(
    kernels: Kernels, case: _Case, seed: int, data: st.DataObject
) -> None:
    generator = torch.Generator().manual_seed(seed)
    sequences = [_heads(case, length, generator) for length in case.lengths]
    cuts = [
        sorted(data.draw(st.sets(st.integers(1, length), max_size=4)) | {length})
        for length in case.lengths
    ]
    alone = [_attend(kernels, case, [heads], [[len(heads[0][0])]])[0] for heads in sequences]
    together = _attend(kernels, case, sequences, cuts)
    for one, other, heads in zip(alone, together, sequences, strict=True):
        assert torch.equal(one, other)
        expected = _plain(case, heads)
        torch.testing.assert_close(
            one.double(), expected, atol=_TOLERANCE[case.dtype], rtol=_TOLERANCE[case.dtype]
        )


def _heads(case: _Case, length: int, generator: torch.Generator) -> tuple[Tensor, Tensor, Tensor]:
    """Query, key and value of one sequence, ``[heads, length, dim]``."""

    def draw(heads: int, dim: int) -> Tensor:
        return torch.randn(heads, length, dim, generator=generator).to(case.dtype)

    return (
        draw(case.kv_heads * case.share, case.key_dim),
        draw(case.kv_heads, case.key_dim),
        draw(case.kv_heads, case.value_dim),
    )


def _attend(
    kernels: Kernels,
    case: _Case,
    sequences: list[tuple[Tensor, Tensor, Tensor]],
    cuts: list[list[int]],
) -> list[Tensor]:
    """Each sequence's attention, computed in steps that end at its ``cuts``, all together."""
    size = case.block_size
    blocks = [-(-heads[0].shape[1] // size) for heads in sequences]
    tables = [list(range(sum(blocks[:i]), sum(blocks[: i + 1])))[::-1] for i in range(len(blocks))]
    cache = KvCache(
        {0: LayerShape(case.kv_heads, case.key_dim, case.value_dim)},
        num_blocks=sum(blocks),
        block_size=size,
        dtype=case.dtype,
        device=torch.device("cpu"),
    )
    for pool in (cache.keys[0], cache.values[0]):
        pool.fill_(float("nan"))  # what earlier owners left must not matter
    results: list[list[Tensor]] = [[] for _ in sequences]
    for index in range(max(map(len, cuts))):
        parts = [
            (which, range(cut[index - 1] if index else 0, cut[index]))
            for which, cut in enumerate(cuts)
            if index < len(cut)
        ]
        slots: list[int] = []
        tiles: list[tuple[int, int, int, int]] = []
        for row, (which, positions) in enumerate(parts):
            for start in range(0, len(positions), 5):
                num_rows = min(5, len(positions) - start)
                tiles.append((len(slots) + start, num_rows, row, positions.start + start))
            slots += [tables[which][p // size] * size + p % size for p in positions]
        step = NativeStep(
            kernels, cache, slots=slots, tables=[tables[which] for which, _ in parts], tiles=tiles
        )
        query, key, value = (
            torch.cat(
                [sequences[which][kind][:, r.start : r.stop] for which, r in parts]
                + [torch.randn(sequences[0][kind].shape[0], 2, sequences[0][kind].shape[2])],
                dim=1,
            ).to(case.dtype)
            for kind in range(3)
        )
        out = step.attend(0, query, key, value, case.scoring)
        assert torch.equal(out[len(slots) :], torch.zeros_like(out[len(slots) :]))
        for (which, _), rows in zip(
            parts, torch.split(out[: len(slots)], [len(r) for _, r in parts]), strict=True
        ):
            results[which].append(rows)
    return [torch.cat(parts) for parts in results]


def _plain(case: _Case, heads: tuple[Tensor, Tensor, Tensor]) -> Tensor:
    """``[length, heads, value_dim]`` in float64, straight from the definition."""
    query = heads[0].double()
    key, value = (part.double().repeat_interleave(case.share, 0) for part in heads[1:])
    scores = query @ key.transpose(1, 2) * case.scoring.scaling
    if case.scoring.softcap is not None:
        scores = torch.tanh(scores / case.scoring.softcap) * case.scoring.softcap
    distance = torch.arange(query.shape[1])[:, None] - torch.arange(query.shape[1])
    hidden = distance < 0
    if case.scoring.window is not None:
        hidden |= distance >= case.scoring.window
    scores = scores.masked_fill(hidden, float("-inf"))
    if case.scoring.sinks is not None:
        sinks = case.scoring.sinks.double()[:, None, None].expand(-1, query.shape[1], 1)
        scores = torch.cat([scores, sinks], dim=-1)
    weights = scores.softmax(-1)[:, :, : query.shape[1]]
    return (weights @ value).transpose(0, 1)


@pytest.mark.parametrize("dtype", _DTYPES)
@pytest.mark.parametrize("dim", [8, 33, 64])
def test_rms_norm_takes_strided_rows(kernels: Kernels, dim: int, dtype: torch.dtype) -> None:
    x, weight = torch.randn(5, 7, dim).to(dtype)[:, 2:6], torch.randn(dim).to(dtype)
    out = kernels.rms_norm(x, weight, 1e-5)
    expected = torch.nn.functional.rms_norm(x.double(), (dim,), weight.double(), 1e-5)
    torch.testing.assert_close(out.double(), expected, atol=_TOLERANCE[dtype], rtol=1e-2)


@pytest.mark.parametrize("dtype", _DTYPES)
@pytest.mark.parametrize("dim", [8, 64, 80])
def test_rotate_turns_halves_against_each_other(
    kernels: Kernels, dim: int, dtype: torch.dtype
) -> None:
    whole = torch.randn(5, 7, dim).to(dtype)
    x = whole[:, 1:5]
    angles = torch.randn(5, dim // 2).repeat(1, 2)
    cos, sin = angles.cos().to(dtype), angles.sin().to(dtype)
    low, high = x.double().chunk(2, dim=-1)
    turned = torch.cat([-high, low], dim=-1)
    expected = x.double() * cos[:, None].double() + turned * sin[:, None].double()
    untouched = whole[:, :1].clone()
    kernels.rotate(x, cos, sin)
    torch.testing.assert_close(x.double(), expected, atol=_TOLERANCE[dtype], rtol=1e-2)
    assert torch.equal(whole[:, :1], untouched)


@pytest.mark.parametrize("dtype", _DTYPES)
@pytest.mark.parametrize("vocab", [1, 16, 49, 1000])
def test_top_is_the_greatest_entry_with_the_lowest_id(
    kernels: Kernels, vocab: int, dtype: torch.dtype
) -> None:
    logits = torch.randint(-3, 4, (40, vocab)).to(dtype)
    values, ids = kernels.top(logits)
    assert torch.equal(values, logits.amax(-1).float())
    assert ids.tolist() == [row.tolist().index(max(row.tolist())) for row in logits]
    for place in {0, vocab // 2, vocab - 1}:
        broken = logits.clone()
        broken[5, place] = float("nan")
        values, _ = kernels.top(broken)
        assert values.isnan().nonzero().tolist() == [[5]]
    values, _ = kernels.top(torch.full((2, vocab), -torch.inf, dtype=dtype))
    assert values.tolist() == [-torch.inf, -torch.inf]


@given(
    vocab=st.integers(1, 2100),
    count=st.integers(0, 40),
    has_ties=st.booleans(),
    seed=st.integers(0, 1000),
)
def test_survey_is_exact(
    kernels: Kernels, vocab: int, count: int, has_ties: bool, seed: int
) -> None:
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(3, vocab, generator=generator) * 3
    if has_ties:
        logits = logits.round()
        logits[:, ::3] = float("-inf")
        logits[:, 0] = 0
    count = min(count, vocab)
    own = torch.randint(vocab, (3,), generator=generator)
    order = logits.sort(dim=-1, descending=True, stable=True).indices
    values = torch.log_softmax(logits.double(), -1)
    for given_kernels in (kernels, None):
        found = survey(logits, own, count, given_kernels)
        assert torch.equal(found.ids, torch.cat([own[:, None], order[:, :count]], 1))
        chosen = logits.gather(1, found.ids)
        greater = (logits[:, None] > chosen[:, :, None]).sum(-1)
        assert torch.equal(found.ranks, greater + 1)
        assert torch.equal(found.places, (order == own[:, None]).nonzero()[:, 1])
        expected = values.gather(1, found.ids)
        torch.testing.assert_close(found.values.double(), expected, atol=1e-5, rtol=1e-6)
        alone = survey(logits[1:2], own[1:2], 0, given_kernels)
        assert torch.equal(alone.values[0, 0], found.values[1, 0])
