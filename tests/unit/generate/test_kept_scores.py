"""Kept prompt scores against scoring the same logits with fewer candidates."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from triptych_generate.kept_scores import KeptScores
from triptych_generate.logprobs import Wanted, score
from triptych_generate.native import load_kernels


@given(data=st.data())
def test_kept_scores_give_what_scoring_with_fewer_gives(data: st.DataObject) -> None:
    vocab = data.draw(st.integers(1, 12))
    values = st.sampled_from([-torch.inf, -20000.0, -2.0, 0.0, 0.5, 3.0])
    rows = st.lists(st.lists(values, min_size=vocab, max_size=vocab), min_size=1, max_size=5)
    logits = torch.tensor(data.draw(rows))
    logits[:, 0] = 1.0  # a row of nothing but minus infinity has no logprobs
    ids = [data.draw(st.integers(0, vocab - 1)) for _ in logits]
    most = data.draw(st.integers(0, vocab))
    kept = KeptScores(score(logits, ids, [Wanted(most)] * len(ids), load_kernels()), most)
    for asked in range(most + 1):
        assert kept.best(asked) == score(logits, ids, [Wanted(asked)] * len(ids), load_kernels())
