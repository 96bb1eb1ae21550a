"""One task of three plans, from token log-probabilities to the trained loss, with every number worked out on paper.

log-probabilities of the gold actions' tokens given each plan, the end token last:

    plan 0   0, -ln 2, -ln 2, -ln 4 | -3      NLL = (0 + 1 + 1 + 2) ln 2 / 4 = ln 2      PPL = 2
    plan 1   -ln 8, -ln 8, -ln 2, -ln 2 | 0   NLL = (3 + 3 + 1 + 1) ln 2 / 4 = 2 ln 2    PPL = 4
    plan 2   0, 0, -ln 2, -ln 2 | -9          NLL = (0 + 0 + 1 + 1) ln 2 / 4 = ln 2 / 2  PPL = sqrt 2 = 1.41421
"""

import math

import numpy as np
import polars as pl
import pytest

from moat.critic import Verdict, judge
from moat.executor import Outcome, execute, outcome
from moat.mixing import draw_initial, first_of_equal
from moat.pairs import GAP, Candidate, pick
from moat.scoring import mean_nll, perplexity
from moat.summary import premise
from moat.toolbox import Goal, Toolbox
from moat.tools.maths import CALCULATOR_TOOLS

L2 = math.log(2)
LOGPROBS = (
    [0.0, -L2, -L2, -2 * L2, -3.0],
    [-3 * L2, -3 * L2, -L2, -L2, 0.0],
    [0.0, 0.0, -L2, -L2, -9.0],
)
NLL = (L2, 2 * L2, L2 / 2)
PPL = (2.0, 4.0, math.sqrt(2))
PLANS = ("Subgoal 1: Find the last amount", "Subgoal 1: Subtract 5 from 4", "Subgoal 1: Add 5 to 4")
GOLD, ANSWER = "R1 = Calculator(4 + 5)", "9"
ACTED = ("R1 = Calculator(4 * 5)", "R1 = Calculator(4 -", "R1 = Calculator(5 + 4)")  # 20, no action, 9


def scored():
    nlls = [mean_nll(np.array(row), include_end=False) for row in LOGPROBS]
    came = [outcome(execute(actions, CALCULATOR_TOOLS), ANSWER) for actions in ACTED]
    return [Candidate(k, PLANS[k], nlls[k], perplexity(nlls[k]), came[k] is Outcome.REACHED) for k in range(3)]


@pytest.mark.trap(1)
def test_nll_and_ppl():
    """NLL = -(1/|a|) sum log P(a_i | a_<i, x, I, s), |a| = 4 without the end token; PPL = exp NLL."""
    assert [c.nll for c in scored()] == pytest.approx(NLL, rel=1e-14)
    assert [c.ppl for c in scored()] == pytest.approx(PPL, rel=1e-14)


def test_nll_with_the_end_token():
    """With it, |a| = 5: (4 ln 2 + 3)/5, 8 ln 2 / 5, (2 ln 2 + 9)/5. Plan 2 would no longer be the best."""
    found = [mean_nll(np.array(row), include_end=True) for row in LOGPROBS]
    assert found == pytest.approx([(4 * L2 + 3) / 5, 8 * L2 / 5, (2 * L2 + 9) / 5], rel=1e-14)


def test_the_pair():
    """chosen = lowest PPL = plan 2, rejected = highest = plan 1; the gap 4 - 1.414 = 2.586."""
    pair = pick(scored(), "ppl", 0.1, "extremes", 0)
    assert (pair.chosen.k, pair.rejected.k, pair.dropped) == (2, 1, None)
    assert pair.rejected.ppl - pair.chosen.ppl == pytest.approx(2.5857864376269049)


@pytest.mark.trap(2)
@pytest.mark.parametrize(
    ("score", "min_gap", "dropped"), [("ppl", 2.5, None), ("ppl", 2.6, GAP), ("nll", 1.03, None), ("nll", 1.05, GAP)]
)
def test_the_filter(score, min_gap, dropped):
    """The gap is 2.586 in PPL and 1.5 ln 2 = 1.0397 in NLL."""
    assert pick(scored(), score, min_gap, "extremes", 0).dropped == dropped


def test_the_pair_by_outcome():
    """Plan 2 alone reached 9; of the other two, plan 1 has the higher PPL."""
    pair = pick(scored(), "executed", 0.1, "extremes", 0)
    assert (pair.chosen.k, pair.rejected.k) == (2, 1)


def test_the_verdicts():
    """20 is corrected, a torn action is corrected, 9 is accepted."""
    critiques = [
        judge(
            "executor",
            "gold",
            came=outcome(execute(actions, CALCULATOR_TOOLS), ANSWER),
            finished=True,
            goal=Goal("arithmetic", ANSWER),
            gold_actions=GOLD,
            toolbox=Toolbox(),
        )
        for actions in ACTED
    ]
    assert [c.verdict for c in critiques] == [Verdict.CORRECT, Verdict.CORRECT, Verdict.ACCEPT]
    assert [c.corrected_actions for c in critiques] == [GOLD, GOLD, None]


def test_the_mix():
    """Three candidates, two of them equal after correction: 2 rows stay, and 1:1 draws 2 of the 3 demonstrations."""
    judged = [("plan", GOLD), ("plan", GOLD), (PLANS[2], ACTED[2])]
    fresh = first_of_equal(judged, judged)
    assert fresh == [judged[0], judged[2]]
    initial = draw_initial(["d1", "d2", "d3"], len(fresh), seed=0)
    assert len(initial) == 2
    assert len({*initial} & {"d1", "d2", "d3"}) == 2


def test_the_premise():
    """One plan reached, and its PPL is the lowest: it beats both others, AUC 2/2 = 1.

    Ranks of -PPL (plan 0, 1, 2) are 2, 1, 3, success 0, 0, 1: their means 2 and 1/3 give the covariance
    (0 + 1/3 + 2/3)/3 = 1/3 and the variances 2/3 and 2/9, so the correlation is (1/3)/sqrt(4/27) = sqrt(3)/2.
    """
    tasks = pl.DataFrame([{"task_id": "t", "source": "stories"}])
    keys = [{"task_id": "t", "k": k} for k in range(3)]
    scores = pl.DataFrame([key | {"ppl": PPL[key["k"]]} for key in keys])
    outcomes = ("not_reached", "syntax", "reached")
    actions = pl.DataFrame([key | {"outcome": outcomes[key["k"]]} for key in keys])
    found = premise(tasks, scores, actions)["stories"]
    assert (found["auc"], found["n_tasks_with_both"]) == (1.0, 1)
    assert found["reached_share"] == pytest.approx(1 / 3)
    assert found["within_task_correlation"] == pytest.approx(math.sqrt(3) / 2)


def test_the_dpo_loss(tmp_path):
    """A model whose next token depends on nothing: log P(token) = logit - ln sum, so the sums are known on paper.

    Vocabulary of 8, logits 0 but for token 4: ln 3 in the policy, 0 in the reference. Policy: P(4) = 3/10, P(other) =
    1/10; reference: 1/8 each. chosen = (4, end), rejected = (5, 6, end):

        log pi/ref chosen   = ln(.3/.125) + ln(.1/.125) = ln 2.4 + ln .8 = ln 1.92
        log pi/ref rejected = 3 ln .8 = ln .512
        margin              = beta ln(1.92/.512) = beta ln 3.75
        loss                = ln(1 + 3.75^-beta) = ln(1 + 1/3.75) = ln(4.75/3.75) at beta 1 = 0.23639
    """
    torch = pytest.importorskip("torch")
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    from moat import training
    from moat.machine import Machine
    from moat.params import Align
    from moat.tokens import Example

    def constant(logit):
        config = LlamaConfig(
            vocab_size=8,
            hidden_size=8,
            intermediate_size=8,
            num_hidden_layers=1,
            num_attention_heads=1,
            pad_token_id=0,
            bos_token_id=1,
            eos_token_id=2,
        )
        made = LlamaForCausalLM(config)
        with torch.no_grad():
            for parameter in made.parameters():
                parameter.zero_()
            made.model.embed_tokens.weight[:, 0] = 1.0  # RMSNorm makes sqrt(8) of it, at every position
            made.model.norm.weight.fill_(1.0)
            made.lm_head.weight[4, 0] = logit / math.sqrt(8)
        return made

    from tokenizers import Tokenizer, models

    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer(models.WordLevel({"<pad>": 0, "<s>": 1, "</s>": 2, "?": 3}, unk_token="?")),
        pad_token="<pad>",
        bos_token="<s>",
        eos_token="</s>",
    )
    settings = Align(
        enabled=True,
        loss="dpo",
        beta=1.0,
        nll_weight=0,
        epochs=1,
        learning_rate=1e-3,
        batch_size=1,
        schedule="constant",
        warmup_ratio=0,
        weight_decay=0,
        max_grad_norm=1,
        group_by_length=False,
    )
    arguments = training.arguments(settings, 1, 0, Machine(device="cpu", scratch=str(tmp_path))) | {
        "output_dir": str(tmp_path)
    }
    chosen, rejected = Example([1, 7, 7], [4, 2]), Example([1, 7, 7], [5, 6, 2])
    policy, reference = constant(math.log(3)), ([2 * math.log(0.125)], [3 * math.log(0.125)])
    for nll_weight, extra in ((0.0, 0.0), (2.0, -2.0 * (math.log(0.3) + math.log(0.1)) / 2)):
        log = training.dpo(
            constant(math.log(3)), reference, tokenizer, [chosen], [rejected], arguments, 1.0, nll_weight, lambda n: None
        )
        assert log[0]["loss"] == pytest.approx(math.log(4.75 / 3.75) + extra, rel=1e-5)
    probabilities = policy(torch.tensor([[1, 7, 4]])).logits.softmax(-1)
    assert probabilities[0, :, 4].tolist() == pytest.approx([0.3] * 3, rel=1e-5)  # the model is what the docstring says
