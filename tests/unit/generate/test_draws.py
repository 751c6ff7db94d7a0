"""The counter-based generator against published vectors and against uniformity."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from triptych_generate.draws import _splitmix64, draw_key, token_uniforms, uniform

_SEEDS = st.integers(-(2**63), 2**63 - 1)


def test_splitmix64_gives_the_published_sequence() -> None:
    # The first outputs for seed 1234567, as in Rosetta Code's task "Pseudo-random
    # numbers/Splitmix64"; the state advances by the golden gamma.
    gamma, mask = 0x9E3779B97F4A7C15, 2**64 - 1
    outputs = [_splitmix64((1234567 + step * gamma) & mask) for step in range(5)]
    assert outputs == [
        6457827717110365317,
        3203168211198807973,
        9817491932198370423,
        4593380528125082431,
        16408922859458223821,
    ]


@given(seed=_SEEDS, choice=st.integers(0, 63), position=st.integers(0, 2**20))
def test_uniform_is_strictly_between_0_and_1(seed: int, choice: int, position: int) -> None:
    key = draw_key(seed, choice, position)
    assert 0 < uniform(key) < 1
    numbers = token_uniforms(key, torch.arange(100))
    assert numbers.min() > 0
    assert numbers.max() < 1
    # What float32 holds is the number itself, so Gumbel noise is finite in float32 as well.
    assert torch.equal(numbers.float().double(), numbers)


def test_extreme_bits_give_finite_gumbel_noise() -> None:
    for key in (0, 2**64 - 1):
        assert torch.tensor(uniform(key)).log().neg().log().isfinite()


def test_keys_differ_by_seed_choice_and_position() -> None:
    keys = {draw_key(s, c, p) for s in range(20) for c in range(20) for p in range(20)}
    assert len(keys) == 8000


@given(seed=_SEEDS, ids=st.lists(st.integers(0, 2**31 - 1), min_size=1, unique=True))
def test_token_number_does_not_depend_on_the_other_tokens(seed: int, ids: list[int]) -> None:
    key = draw_key(seed, 0, 0)
    together = token_uniforms(key, torch.tensor(ids))
    alone = torch.cat([token_uniforms(key, torch.tensor([i])) for i in ids])
    assert torch.equal(together, alone)


def test_numbers_are_uniform_over_positions_and_tokens() -> None:
    over_positions = torch.tensor([uniform(draw_key(7, 0, p)) for p in range(20_000)])
    over_tokens = token_uniforms(draw_key(7, 0, 0), torch.arange(20_000))
    for numbers in (over_positions, over_tokens):
        counts = torch.histc(numbers.float(), bins=20, min=0, max=1)
        chi_square = ((counts - 1000) ** 2 / 1000).sum().item()
        assert chi_square < 43.8  # 0.1 % of 19 degrees of freedom
