"""Products and reductions, through Triton's interpreter, against float64 and among other rows."""

from collections.abc import Iterator

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from triptych_generate.invariant_ops import override
from triptych_generate.triton_ops import product, row_log_softmax, row_mean

DTYPES = [torch.float32, torch.bfloat16, torch.float16]
TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 1e-2, torch.float16: 2e-3}
dtypes = st.sampled_from(DTYPES)


@pytest.fixture
def overridden() -> Iterator[None]:
    """The operators of the CPU are replaced."""
    library = override("CPU")
    yield
    library._destroy()  # type: ignore[no-untyped-call]


@given(
    dtype=dtypes,
    num_rows=st.integers(1, 70),
    inner=st.integers(1, 150),
    columns=st.integers(1, 130),
    has_bias=st.booleans(),
    is_transposed=st.booleans(),
)
@settings(max_examples=25)
def test_product_equals_float64_and_each_row_alone(
    dtype: torch.dtype,
    num_rows: int,
    inner: int,
    columns: int,
    has_bias: bool,
    is_transposed: bool,
) -> None:
    torch.manual_seed(inner)
    left = torch.randn(num_rows, inner).to(dtype)
    right = torch.randn(inner, columns).to(dtype)
    bias = torch.randn(columns).to(dtype) if has_bias else None
    right = right.t().contiguous().t() if is_transposed else right
    out = product(left, right, bias)
    wanted = left.double() @ right.double() + (0 if bias is None else bias.double())
    tolerance = TOLERANCE[dtype] * inner**0.5
    torch.testing.assert_close(out.double(), wanted, atol=tolerance, rtol=tolerance)
    for row in {0, num_rows // 2, num_rows - 1}:
        assert torch.equal(product(left[row : row + 1], right, bias)[0], out[row])
    assert torch.equal(product(left[num_rows // 3 :], right, bias), out[num_rows // 3 :])


@given(dtype=dtypes, num_rows=st.integers(1, 5), width=st.integers(1, 2500))
@settings(max_examples=25)
def test_row_reductions_equal_float64_and_each_row_alone(
    dtype: torch.dtype, num_rows: int, width: int
) -> None:
    torch.manual_seed(width)
    values = torch.randn(num_rows, width).to(dtype)
    means, logprobs = row_mean(values), row_log_softmax(values, torch.float32)
    torch.testing.assert_close(
        means.double(), values.double().mean(-1), atol=TOLERANCE[dtype], rtol=TOLERANCE[dtype]
    )
    torch.testing.assert_close(
        logprobs.double(), values.double().log_softmax(-1), atol=1e-5, rtol=1e-5
    )
    assert torch.equal(row_mean(values[-1:])[0], means[-1])
    assert torch.equal(row_log_softmax(values[-1:], torch.float32)[0], logprobs[-1])


@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")
@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_log_softmax_of_bad_logits_is_nan(bad: float) -> None:
    values = torch.zeros(1, 1500)
    values[0, 1200] = bad
    assert row_log_softmax(values, torch.float32).isnan().any()


@pytest.mark.usefixtures("overridden")
@pytest.mark.parametrize("dtype", DTYPES)
def test_overridden_operators_reach_linears_means_and_log_softmax(dtype: torch.dtype) -> None:
    """Checked by what only our kernels promise: the bits of a row among any others."""
    torch.manual_seed(0)
    x = torch.randn(1, 40, 48).to(dtype)
    for has_bias in (True, False):
        linear = nn.Linear(48, 70, bias=has_bias, dtype=dtype)
        with torch.inference_mode():
            out = linear(x)
            flat = x[0].contiguous()
            assert torch.equal(out[0], product(flat, linear.weight.t(), linear.bias))
    with torch.inference_mode():
        assert torch.equal(x.mean(-1, keepdim=True)[0, :, 0], row_mean(x[0]))
        assert torch.equal(x.log_softmax(-1)[0], row_log_softmax(x[0], dtype))


@pytest.mark.usefixtures("overridden")
def test_other_calls_of_overridden_operators_are_torchs_own() -> None:
    x = torch.randn(5, 6, dtype=torch.float64)
    bias = torch.randn(5, 5, dtype=torch.float64)
    torch.testing.assert_close(x @ x.t(), (x[:, None] * x[None]).sum(-1))
    torch.testing.assert_close(
        torch.addmm(bias, x, x.t(), beta=2, alpha=3), 2 * bias + 3 * (x[:, None] * x[None]).sum(-1)
    )
    torch.testing.assert_close(x.float().mean(0), x.float().sum(0) / 5)
    torch.testing.assert_close(x.mean((0, 1)), x.sum() / 30)
    torch.testing.assert_close(x.log_softmax(0).exp().sum(0), torch.ones(6, dtype=torch.float64))
