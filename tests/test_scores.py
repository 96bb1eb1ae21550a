"""HFEngine.score against a plain loop over one sequence in float64, over tokenizers, formats, batch sizes and K."""

import numpy as np
import pytest

from moat.base_models import scratch_model
from moat.engines.hf import HFEngine
from moat.scoring import mean_nll
from moat.tokens import Renderer

TOLERANCE = 1e-4  # nats per token, in float32
TOOLS = "Calculator(expression)"
N, K = 16, 15
TASK, GOLD = "Ada has 4 apples. Ada finds 5.", "R1 = Calculator(4 + 5); R2 = R1"
KINDS = [("embedded", "lumos"), ("llama", "lumos"), ("qwen", "lumos"), ("llama", "chat"), ("qwen", "chat")]


def padding(tokenizer):
    return tokenizer.eos_token_id if tokenizer.pad_token_id is None else tokenizer.pad_token_id


@pytest.fixture(scope="module", params=KINDS, ids="-".join)
def scored(request, vocabulary, completion_logprobs):
    """(engine, 16 ragged rows, K candidates of one task, what each row's and candidate's log-probabilities are)."""
    name, format = request.param
    tokenizer = vocabulary(name)
    renderer = Renderer(tokenizer, format)
    rows = [
        renderer.grounder_example("Ada " * (i % 5), TOOLS, "plan, " * (5 * i % 7), "R1 = 1; " * (1 + 3 * i % 4))
        for i in range(N)
    ]
    candidates = [renderer.grounder_example(TASK, TOOLS, "Subgoal 1: " + "Add " * k, GOLD) for k in range(K)]
    assert len({len(row.prompt) for row in rows}) > 8
    assert len({len(row.completion) for row in rows}) == 4
    model = scratch_model(len(tokenizer), 16, 2, 2, 512, 1).eval()
    expected = [[completion_logprobs(model, r.prompt, r.completion) for r in side] for side in (rows, candidates)]
    return HFEngine(model, padding(tokenizer), tokenizer.eos_token_id), rows, candidates, expected


def score(engine, rows):
    return engine.score([row.prompt for row in rows], [row.completion for row in rows])


@pytest.mark.trap(5, 6)
@pytest.mark.parametrize("size", range(1, N + 1))
def test_every_batch_size_gives_the_plain_loops_scores(scored, size):
    """16 ragged rows in batches of `size`, the last one smaller: every token's log P within 1e-4 nats, none left out."""
    engine, rows, _, (expected, _) = scored
    made = [found for start in range(0, N, size) for found in score(engine, rows[start : start + size])]
    assert len(made) == N
    for found, alone in zip(made, expected, strict=True):
        assert found.dtype == np.float32
        np.testing.assert_allclose(found, alone, rtol=0, atol=TOLERANCE)


@pytest.mark.trap(5, 6, 8)
@pytest.mark.parametrize("k", range(1, K + 1))
def test_any_number_of_candidates_is_scored_alike(scored, k):
    """The gold actions given each of K plans, in one batch: NLL per action token within 1e-4 of the plain loop's mean.

    -(1/|a|) sum of log P(a_i | a_<i, x, I, s), |a| with and without the end token.
    """
    engine, _, candidates, (_, expected) = scored
    made = score(engine, candidates[:k])
    assert len(made) == k
    for found, alone in zip(made, expected, strict=False):
        assert mean_nll(found, True) == pytest.approx(-alone.sum() / len(alone), abs=TOLERANCE)
        assert mean_nll(found, False) == pytest.approx(-alone[:-1].sum() / (len(alone) - 1), abs=TOLERANCE)
