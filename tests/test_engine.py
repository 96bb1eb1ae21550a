"""The hf engine: moat/engines/hf.py."""

import gc
import math
import weakref

import numpy as np
import pytest
import torch
from transformers import GPT2Config, GPT2LMHeadModel

from moat.engines.hf import Decoding, FinishReason, HFEngine, choose

PAD, EOS = 0, 2
GREEDY = Decoding(0.0, 1.0, 12)
# Lengths 3 to 40, so that rows of one batch are padded by up to 37 tokens.
LENGTHS = (3, 40, 7, 18, 1, 25, 11, 32)


@pytest.fixture(scope="module")
def prompts(tokenizer):
    draw = np.random.default_rng(5)
    return [[1, *draw.integers(4, len(tokenizer), length).tolist()] for length in LENGTHS]


@pytest.fixture(scope="module")
def completions(tokenizer):
    draw = np.random.default_rng(6)
    return [[*draw.integers(4, len(tokenizer), length).tolist(), EOS] for length in (6, 1, 12, 3, 9, 2, 5, 7)]


def reference_greedy(model, prompts, end, limit):
    """transformers' own greedy generation of a left-padded batch; what follows the end token is cut."""
    width = max(map(len, prompts))
    ids = torch.tensor([[PAD] * (width - len(p)) + p for p in prompts])
    mask = torch.tensor([[0] * (width - len(p)) + [1] * len(p) for p in prompts])
    out = model.generate(ids, attention_mask=mask, do_sample=False, max_new_tokens=limit, eos_token_id=end, pad_token_id=PAD)
    made = [row[width:].tolist() for row in out]
    return [row[: row.index(end)] if end in row else row for row in made]


# --- greedy -----------------------------------------------------------------------------------------------------------


@pytest.mark.trap(5)
def test_greedy_is_generate_token_for_token(model, prompts):
    """argmax decoding of 8 ragged rows equals model.generate; rows end at different times and stay ended.

    The end token is one that the random model does write: the one that is new in the most rows, so that some rows end
    early, in time for the engine to leave them behind, and others run on.
    """
    free = reference_greedy(model, prompts, -1, GREEDY.max_new_tokens)
    ends = {}
    for end in {token for row in free for token in row}:
        ends[end] = sorted({row.index(end) for row in free if end in row})
    end = max(sorted(ends), key=lambda e: (len(ends[e]), sum(e in row for row in free) < len(free)))
    expected = reference_greedy(model, prompts, end, GREEDY.max_new_tokens)
    made = HFEngine(model, PAD, end).generate(prompts, [0] * len(prompts), GREEDY)
    assert [g.ids for g in made] == expected
    assert len({len(row) for row in expected}) > 1  # the rows do end at different times
    reasons = [FinishReason.STOP if end in row else FinishReason.LENGTH for row in free]
    assert [g.finish_reason for g in made] == reasons


@pytest.mark.trap(5)
@pytest.mark.parametrize("n_ended", range(1, 8))
def test_rows_that_have_ended_change_nothing_in_those_that_go_on(n_ended):
    """A model that copies a script: row i writes i + 5 until it ends; any number of rows ends first, in any step.

    The engine drops ended rows from batch and cache once they are half of it: each row must still meet its own cache.
    """
    vocabulary = 40

    class Scripted(torch.nn.Module):
        """Writes its row's first token again, as often as the second says, then the end token; reads both in the cache."""

        def __init__(self):
            super().__init__()
            self.weight = torch.nn.Parameter(torch.zeros(1))
            self.config = None

        def forward(self, input_ids, attention_mask, position_ids, past_key_values, use_cache, logits_to_keep):
            past = past_key_values.rows
            rows = past if past is not None else [[] for _ in input_ids]
            past_key_values.rows = rows = [[*r, *new] for r, new in zip(rows, input_ids.tolist(), strict=True)]
            logits = torch.zeros(len(rows), 1, vocabulary)
            for index, row in enumerate(rows):
                kept = [t for t, m in zip(row, attention_mask[index].tolist(), strict=True) if m]
                assert position_ids[index, -1] == len(kept) - 1
                written = len(kept) - 2
                logits[index, 0, kept[0] if written < kept[1] else EOS] = 1.0
            return type("Output", (), {"logits": logits})()

    class Cache:
        """Remembers each row's tokens."""

        rows = None

        def __init__(self, config):
            pass

        def batch_select_indices(self, indices):
            self.rows = [self.rows[i] for i in indices.tolist()]

    counts = [1 + (3 * i) % 7 if i < n_ended else 20 for i in range(8)]
    prompts = [[i + 5, count] for i, count in enumerate(counts)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("moat.engines.hf.DynamicCache", Cache)
        made = HFEngine(Scripted(), PAD, EOS).generate(prompts, [0] * 8, GREEDY)
    assert [g.ids for g in made] == [[i + 5] * min(count, 12) for i, count in enumerate(counts)]


@pytest.mark.trap(20)
@pytest.mark.parametrize("limit", [1, 4, 12, 40])
def test_max_new_tokens_is_honoured_and_told(model, prompts, limit):
    """With no end token to be written, every row has exactly the limit's tokens and says that it was cut."""
    made = HFEngine(model, PAD, -1).generate(prompts, range(len(prompts)), Decoding(1.0, 1.0, limit))
    assert [(len(g.ids), g.finish_reason) for g in made] == [(limit, FinishReason.LENGTH)] * len(prompts)


@pytest.mark.trap(20)
def test_the_end_token_counts_as_a_new_token(model, prompts):
    """A row whose third token is the end ends by itself under a limit of 3 and is cut under a limit of 2."""
    (free,) = reference_greedy(model, prompts[:1], -1, 3)
    engine = HFEngine(model, PAD, free[2])
    expected = free[: free.index(free[2])]
    (stopped,) = engine.generate(prompts[:1], [0], Decoding(0.0, 1.0, len(expected) + 1))
    assert (stopped.ids, stopped.finish_reason) == (expected, FinishReason.STOP)
    if expected:
        (cut,) = engine.generate(prompts[:1], [0], Decoding(0.0, 1.0, len(expected)))
        assert (cut.ids, cut.finish_reason) == (expected, FinishReason.LENGTH)


@pytest.mark.trap(22)
def test_nothing_but_the_end_token_ends_a_text(tokenizer):
    """A model that writes every token there is, in order, line breaks, role markers, BOS and padding among them, then ends.

    All of it comes back: there are no stop strings, and nothing is cut from the output.
    """
    written = [token for token in range(len(tokenizer)) if token != EOS]
    script = [*written, EOS, *written]

    class Scripted(torch.nn.Module):
        """Writes the script, whatever it is asked."""

        def __init__(self):
            super().__init__()
            self.weight = torch.nn.Parameter(torch.zeros(1))
            self.config, self.step = None, 0

        def forward(self, input_ids, **kwargs):
            logits = torch.zeros(len(input_ids), 1, len(tokenizer))
            logits[:, 0, script[self.step]] = 1.0
            self.step += 1
            return type("Output", (), {"logits": logits})()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("moat.engines.hf.DynamicCache", lambda config: None)
        (made,) = HFEngine(Scripted(), PAD, EOS).generate([[1, 5]], [0], Decoding(0.0, 1.0, len(script)))
    assert (made.ids, made.finish_reason) == (written, FinishReason.STOP)


# --- memory -----------------------------------------------------------------------------------------------------------


@pytest.mark.trap(23)
def test_an_engine_that_is_dropped_frees_its_model(make_model, prompts, completions):
    """After real work nothing holds the weights any more, and no garbage collector is needed for it."""
    gc.disable()
    try:
        engine = HFEngine(make_model(), PAD, EOS)
        weights = weakref.ref(next(engine.model.parameters()))
        engine.generate(prompts, range(len(prompts)), Decoding(1.0, 1.0, 5))
        engine.score(prompts, completions)
        assert weights() is not None
        del engine
        assert weights() is None
    finally:
        gc.enable()


# --- sampling ---------------------------------------------------------------------------------------------------------


def test_a_rows_text_does_not_depend_on_its_batch(model, prompts):
    """The same prompt and seed give the same tokens alone, among others, and in another order."""
    engine, decoding = HFEngine(model, PAD, EOS), Decoding(1.0, 1.0, 10)
    seeds = [2**63 - 1, *range(1, len(prompts))]
    together = engine.generate(prompts, seeds, decoding)
    backwards = engine.generate(prompts[::-1], seeds[::-1], decoding)[::-1]
    alone = [engine.generate([prompt], [seed], decoding)[0] for prompt, seed in zip(prompts, seeds, strict=True)]
    said = [[(made.ids, made.finish_reason) for made in batch] for batch in (together, backwards, alone)]
    assert said[0] == said[1] == said[2]


@pytest.mark.trap(5)
@pytest.mark.parametrize("decoding", [GREEDY, Decoding(1.0, 1.0, 12)])
def test_equal_prompts_are_read_once_and_nothing_else_changes(model, prompts, decoding):
    """14 requests of 5 ragged prompts, mixed: each has the text and the log-probability that it has alone.

    The first pass reads 5 rows; the second has a row for each request.
    """
    asked, end = [prompts[number] for number in (1, 0, 1, 3, 2, 1, 3, 3, 4, 0, 1, 4, 1, 2)], 220
    engine, rows = HFEngine(model, PAD, end), []
    hook = model.register_forward_pre_hook(lambda _, given, named: rows.append(len(named["input_ids"])), with_kwargs=True)
    try:
        together = engine.generate(asked, range(len(asked)), decoding)
    finally:
        hook.remove()
    assert rows[:2] == [5, 14]
    for seed, (prompt, made) in enumerate(zip(asked, together, strict=True)):
        (alone,) = engine.generate([prompt], [seed], decoding)
        assert (made.ids, made.finish_reason) == (alone.ids, alone.finish_reason)
        assert made.logprob == pytest.approx(alone.logprob, abs=1e-4)


def test_a_generations_log_probability_is_that_of_its_tokens(model, prompts, completion_logprobs):
    """log p of what was sampled, at temperature 1 though it was drawn at 2 from a nucleus, as a plain loop reads it."""
    end = 220
    made = HFEngine(model, PAD, end).generate(prompts, list(range(8)), Decoding(2.0, 0.9, 60))
    assert {g.finish_reason for g in made} == set(FinishReason)  # some end by themselves, some by the limit
    for prompt, found in zip(prompts, made, strict=True):
        tokens = [*found.ids, end] if found.finish_reason is FinishReason.STOP else found.ids
        assert found.logprob == pytest.approx(completion_logprobs(model, prompt, tokens).sum(), abs=1e-3)


@pytest.mark.trap(21)
def test_different_seeds_give_different_texts(model, prompts):
    """16 requests of one prompt, one seed each: a random model repeats none of them; equal seeds repeat all."""
    engine, decoding = HFEngine(model, PAD, EOS), Decoding(1.0, 1.0, 10)
    made = engine.generate([prompts[2]] * 16, range(16), decoding)
    assert len({tuple(g.ids) for g in made}) == 16
    assert len({tuple(g.ids) for g in engine.generate([prompts[2]] * 4, [7] * 4, decoding)}) == 1


def test_sampled_tokens_follow_the_models_probabilities(model, prompts, completion_logprobs):
    """First tokens of 2,000 seeds against P(token) of an independent float64 model: within 4 standard deviations."""
    (prompt, *_), n, vocabulary = prompts, 2000, model.config.vocab_size
    expected = np.exp([completion_logprobs(model, prompt, [token])[0] for token in range(0, vocabulary, 8)])
    made = HFEngine(model, PAD, -1).generate([prompt] * n, range(n), Decoding(1.0, 1.0, 1))
    drawn = np.bincount([g.ids[0] for g in made], minlength=vocabulary)[::8]
    assert np.all(np.abs(drawn - n * expected) <= 4 * np.sqrt(n * expected * (1 - expected)) + 1)


# --- choose -----------------------------------------------------------------------------------------------------------

PROBABILITIES = (0.1, 0.4, 0.2, 0.3)


def chosen(uniform, temperature=1.0, top_p=1.0, probabilities=PROBABILITIES):
    logits = torch.tensor([[math.log(p) for p in probabilities]] * len(uniform))
    return choose(logits, torch.tensor(uniform, dtype=torch.float64), Decoding(temperature, top_p, 1)).tolist()


def test_a_token_is_the_inverse_of_the_cumulative_distribution():
    """P = (.1, .4, .2, .3), cumulative (.1, .5, .7, 1): u falls into [0, .1), [.1, .5), [.5, .7) or [.7, 1)."""
    assert chosen([0.0, 0.099, 0.101, 0.499, 0.501, 0.699, 0.701, 0.9999999]) == [0, 0, 1, 1, 2, 2, 3, 3]


def test_temperature_divides_the_logits():
    """T = 1/2 squares: P is proportional to (.01, .16, .04, .09), cumulative (1, 17, 21, 30)/30."""
    uniform = [0.9 / 30, 1.1 / 30, 16.9 / 30, 17.1 / 30, 20.9 / 30, 21.1 / 30]
    assert chosen(uniform, temperature=0.5) == [0, 1, 1, 2, 2, 3]


@pytest.mark.parametrize(
    ("top_p", "kept"), [(0.05, {1}), (0.39, {1}), (0.41, {1, 3}), (0.69, {1, 3}), (0.71, {1, 2, 3}), (0.95, {0, 1, 2, 3})]
)
def test_the_nucleus_is_the_smallest_set_that_reaches_top_p(top_p, kept):
    """In order of probability 1, 3, 2, 0 reach .4, .7, .9, 1. The kept tokens share u in proportion."""
    assert set(chosen(np.linspace(0, 1, 1000, endpoint=False).tolist(), top_p=top_p)) == kept


def test_the_nucleus_is_renormalised():
    """top_p .6 keeps 1 and 3 with .4 and .3 of .7: token 1 has the share 4/7 of u."""
    assert chosen([4 / 7 - 1e-4, 4 / 7 + 1e-4], top_p=0.6) == [1, 3]


def test_a_token_of_probability_zero_is_never_drawn():
    """u = 0 and the largest u below 1 fall on tokens that can be, also where the first and the last cannot."""
    probabilities = (1e-300, 0.5, 0.5, 1e-300)
    assert chosen([0.0, 1 - 2**-53], probabilities=probabilities) == [1, 2]


def test_greedy_takes_the_first_of_the_most_probable():
    """Temperature 0 is argmax, and u plays no part."""
    assert chosen([0.0, 0.99], temperature=0.0) == [1, 1]


# --- scores -----------------------------------------------------------------------------------------------------------


@pytest.mark.trap(5)
def test_scores_equal_a_model_written_out_by_hand(model, prompts, completions, completion_logprobs):
    """log P(c_i | prompt, c_<i) of 8 ragged rows in one left-padded batch, against a numpy Llama in float64.

    The numpy model sees one sequence at a time, without padding, mask, cache or position ids.
    """
    made = HFEngine(model, PAD, EOS).score(prompts, completions)
    for found, prompt, completion in zip(made, prompts, completions, strict=True):
        np.testing.assert_allclose(found, completion_logprobs(model, prompt, completion), atol=1e-4)


@pytest.mark.trap(5, 6)
def test_batch_one_and_batch_eight_agree(model, prompts, completions):
    """Padding changes no log-probability by more than 1e-4."""
    engine = HFEngine(model, PAD, EOS)
    together = engine.score(prompts, completions)
    for index, (prompt, completion) in enumerate(zip(prompts, completions, strict=True)):
        (alone,) = engine.score([prompt], [completion])
        assert together[index].shape == (len(completion),)
        np.testing.assert_allclose(together[index], alone, atol=1e-4)


@pytest.mark.trap(5)
@pytest.mark.parametrize("learned_positions", [False, True])
def test_equal_prompts_are_read_once_in_scoring_too(model, prompts, completions, completion_logprobs, learned_positions):
    """14 ragged completions of 5 ragged prompts, mixed: each has the log-probabilities that it has alone, to 1e-4.

    The first pass reads 5 prompts, the second 14 completions. A model with learned positions has none to spare.
    """
    numbers = (1, 0, 1, 3, 2, 1, 3, 3, 4, 0, 1, 4, 1, 2)
    asked = [prompts[number] for number in numbers]
    # the longest prompt has the shortest completion, so that filling that one up would go beyond the positions there are
    said = [completions[1] if number == 1 else completions[at % len(completions)] for at, number in enumerate(numbers)]
    if learned_positions:
        longest = max(len(prompt) + len(one) for prompt, one in zip(asked, said, strict=True))
        model = learned(longest)
    engine, shapes = HFEngine(model, PAD, EOS), []
    hook = model.register_forward_pre_hook(lambda _, given, named: shapes.append(named["input_ids"].shape), with_kwargs=True)
    try:
        together = engine.score(asked, said)
    finally:
        hook.remove()
    assert shapes == [(5, max(map(len, asked))), (14, max(map(len, said)) - 1)]
    for found, prompt, completion in zip(together, asked, said, strict=True):
        np.testing.assert_allclose(found, engine.score([prompt], [completion])[0], atol=1e-4)
        if not learned_positions:
            np.testing.assert_allclose(found, completion_logprobs(model, prompt, completion), atol=1e-4)


@pytest.mark.trap(5)
def test_labels_of_one_token_are_read_with_their_prompt(model, prompts):
    """Three completions of a token each: one pass over the prompts is all."""
    engine, passes = HFEngine(model, PAD, EOS), []
    hook = model.register_forward_pre_hook(lambda *_: passes.append(1))
    try:
        made = engine.score([prompts[0]] * 3 + [prompts[1]] * 3, [[5], [6], [7]] * 2)
    finally:
        hook.remove()
    assert len(passes) == 1
    for found, (prompt, token) in zip(made, [(p, t) for p in prompts[:2] for t in (5, 6, 7)], strict=True):
        np.testing.assert_allclose(found, engine.score([prompt], [[token]])[0], atol=1e-4)


def learned(positions):
    """GPT-2 at random weights, whose learned positions matter."""
    torch.manual_seed(0)
    size = {"vocab_size": 400, "n_positions": positions, "n_embd": 16, "n_layer": 2, "n_head": 2}
    model = GPT2LMHeadModel(GPT2Config(**size, bos_token_id=1, eos_token_id=2)).eval()
    with torch.no_grad():
        model.transformer.wpe.weight.mul_(50)
    return model


@pytest.mark.trap(5)
def test_positions_are_counted_without_the_padding(prompts, completions):
    """A model with learned positions (GPT-2's): a row's first token is at position 0, however far it is padded.

    Llama's rotary positions would not tell: a shift of all of them changes nothing. Scores of batch and single rows agree
    to 1e-4, and greedy decoding equals model.generate.
    """
    model = learned(64)
    engine = HFEngine(model, PAD, -1)
    together = engine.score(prompts, completions)
    for found, prompt, completion in zip(together, prompts, completions, strict=True):
        np.testing.assert_allclose(found, engine.score([prompt], [completion])[0], atol=1e-4)
    made = engine.generate(prompts, [0] * len(prompts), GREEDY)
    assert [g.ids for g in made] == reference_greedy(model, prompts, -1, GREEDY.max_new_tokens)


def test_a_next_tokens_probabilities_sum_to_one(model, tokenizer, prompts):
    """sum over the vocabulary of exp(score(prompt, [token])) = 1: the distribution is over tokens, all of them."""
    scores = HFEngine(model, PAD, EOS).score([prompts[0]] * len(tokenizer), [[t] for t in range(len(tokenizer))])
    assert sum(math.exp(float(s[0])) for s in scores) == pytest.approx(1, abs=1e-4)


@pytest.mark.trap(6)
def test_logits_are_upcast_before_the_softmax(make_model, prompts, completions):
    """A bfloat16 model's log-probabilities are float32: their differences are no multiples of bfloat16's step."""
    half = make_model().bfloat16()
    made = np.concatenate(HFEngine(half, PAD, EOS).score(prompts[:2], completions[:2]))
    assert made.dtype == np.float32
    assert np.any(made != torch.from_numpy(made).bfloat16().float().numpy())


@pytest.mark.trap(3)
@pytest.mark.parametrize(("prompt", "completion"), [([], [5]), ([5], [])])
def test_an_empty_prompt_or_completion_is_refused(model, prompt, completion):
    """Nothing to condition on, or nothing to score: an error instead of a number."""
    with pytest.raises(ValueError, match="at least one"):
        HFEngine(model, PAD, EOS).score([[1, 5], prompt], [[5, 2], completion])
