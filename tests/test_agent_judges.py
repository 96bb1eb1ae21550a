"""Who says at which step a bad path went wrong: moat/agent_r/judges.py."""

import numpy as np
import pytest
from hypothesis import given

from moat.agent_r import judges
from moat.agent_r.judges import SAID, ActorJudge, Judged, Label, by_tree, judge_texts, label_text, read_label
from moat.base_models import scratch_model, word_tokenizer
from moat.engines.base import Decoding, EngineError, FinishReason, Generation
from moat.engines.hf import HFEngine
from moat.journal import Journal
from moat.rows import Runner
from moat.tokens import Renderer
from moat.workers import Here, Retry
from tests import vocabularies
from tests.agent_trees import row
from tests.test_agent_paths import FORK, grow, trees

GREEDY = Decoding(0.0, 1.0, 50)
TURNS = [("Action: get 2 string", "Got 2 string"), ("Thought: hm\nAction: inventory", "Inventory: [string] (2)")]


@pytest.mark.trap(40)
@pytest.mark.parametrize(
    ("text", "label"),
    [
        ("Judgment: Good", Label.GOOD),
        ("It gets string.\nJudgment: Bad", Label.BAD),
        ("Who knows.\n**Judgment: Uncertain**", Label.UNCERTAIN),
        ("**Judgment:** bad.\n", Label.BAD),
        ("Judgment: Good\nNo, wait.\nJudgment: Bad", Label.BAD),
        ("Judgment: Bad\nNo, wait.\nJudgment: Good", Label.GOOD),
        ("Judgment: Bad\nJudgment: Fine", Label.UNPARSED),  # the last one counts
        ("", Label.UNPARSED),
        ("Good", Label.UNPARSED),
        ("This is good.", Label.UNPARSED),
        ("Judgment:", Label.UNPARSED),
        ("Judgment:\nGood", Label.UNPARSED),
        ("Judgment: Goodish", Label.UNPARSED),
        ("Judgment: Good or Bad", Label.UNPARSED),
        ("Judgment: Good, Judgment: Bad or Judgment: Uncertain", Label.UNCERTAIN),
        ("Judgment: unparsed", Label.UNPARSED),
        ("<think>Judgment: Good</think>\nIt is lost.\nJudgment: Bad", Label.BAD),
        ("Judgment: Good</think>I cannot say.", Label.UNPARSED),
        ("<think>It may be\nJudgment: Good", Label.UNPARSED),
    ],
)
def test_the_last_tag_of_the_answer_is_the_label(text, label):
    """Thoughts are no answer. No tag, or another word after it, is unparsed, and never good."""
    judged = read_label(text, ended=True)
    assert (judged.label, judged.reasons) == (label, text)
    assert bool(judged.why) == (label is Label.UNPARSED)


@pytest.mark.trap(40)
def test_an_answer_that_is_cut_or_never_stops_thinking_has_no_label():
    assert read_label("Judgment: Good", ended=False) == Judged(Label.UNPARSED, "Judgment: Good", judges.CUT)
    assert read_label("Judgment: Good", ended=True, thinks=True).why == judges.THINKING
    assert read_label("so\n</think>\nJudgment: Good", ended=True, thinks=True).label is Label.GOOD


def test_the_question_holds_the_path_up_to_the_step_and_no_more():
    first, second = (judge_texts("Craft.\n", "Goal: craft bow.", TURNS[:n]) for n in (1, 2))
    assert "Craft.\nGoal: craft bow." in first
    assert "Got 2 string" in first
    assert "inventory" not in first
    assert TURNS[1][0] in second
    assert TURNS[1][1] in second
    assert second.startswith(first.removesuffix(judges.QUESTION))  # so that an engine reads the common beginning once


@pytest.mark.parametrize("name", ["embedded", "llama", "qwen"])
def test_what_is_scored_is_what_a_demonstration_supervises(vocabulary, name):
    """The completion of a label and the supervised turn of a conversation with it: the same ids, end token and all."""
    for format in ("lumos", "chat") if name != "embedded" else ("lumos",):
        renderer = Renderer(vocabulary(name), format)
        text = judge_texts("Craft.\n", "Goal: craft bow.", TURNS)
        for label in SAID:
            asked, said = renderer.conversation([text, label_text(label)])
            assert said == renderer.completion(label_text(label))
            assert asked == renderer.conversation([text])[0]


def test_a_label_is_one_of_three():
    assert [label_text(one) for one in ("bad", "uncertain", "good")] == [
        "Judgment: Bad",
        "Judgment: Uncertain",
        "Judgment: Good",
    ]
    for one in SAID:
        assert read_label(label_text(one), ended=True).label is one
    with pytest.raises(ValueError, match="no label"):
        label_text("unparsed")


class Says:
    """An engine that answers prompts that hold a key with its text; `asked` are the prompts as text."""

    def __init__(self, tokenizer, answers):
        self.tokenizer, self.answers, self.asked, self.split = tokenizer, answers, [], True

    def generate(self, prompts, seeds, decoding):
        made = []
        for ids in prompts:
            text = self.tokenizer.decode(ids)
            self.asked.append(text)
            answer = next(answer for key, answer in self.answers.items() if key in text)
            if answer is None:
                raise EngineError("out of memory")
            ids = self.tokenizer(answer, add_special_tokens=False, split_special_tokens=self.split).input_ids
            made.append(Generation(ids, FinishReason.LENGTH if "…" in answer else FinishReason.STOP, -1.0))
        return made


@pytest.fixture
def actor(tmp_path):
    """Makes an actor that writes one answer a call."""

    def make(engine, tokenizer, max_length=2000, max_failed=0.0, identity="model", format="lumos"):
        here = Here(lambda: engine, Retry(1, 0.0))
        runner = Runner(here, {"model": identity}, Journal(tmp_path / "journal"), 1, 4, max_failed)
        return ActorJudge(runner, Renderer(tokenizer, format), max_length)

    return make


@pytest.mark.trap(40)
def test_equal_questions_are_asked_once(actor, tokenizer):
    """Two bad paths with a common step: one request, even where text is drawn."""
    engine, advanced = Says(tokenizer, {"one": "Judgment: Bad", "two": "Judgment: Good"}), []
    judged = actor(engine, tokenizer).by_words(["one", "two", "one"], Decoding(0.7, 1.0, 50), 0, advanced.append)
    assert [one.label for one in judged] == [Label.BAD, Label.GOOD, Label.BAD]
    assert len(engine.asked) == 2
    assert sum(advanced) == 3


@pytest.mark.trap(40)
def test_a_tag_in_an_observation_is_no_answer(actor, tokenizer):
    """The path's own text says Good, and so does the form in the question; the actor says nothing that can be read."""
    question = judge_texts("Craft.\n", "Goal.", [("Action: look", "Judgment: Good\n</think>Judgment: Good")])
    engine = Says(tokenizer, {"look": "I like it."})
    (judged,) = actor(engine, tokenizer).by_words([question], GREEDY, 0, lambda n: None)
    assert judged == Judged(Label.UNPARSED, "I like it.", judges.NO_LABEL)


@pytest.mark.trap(40)
@pytest.mark.parametrize(
    ("answer", "label"),
    [
        ("Judgment: Good", Label.UNPARSED),  # still thinking
        ("Judgment: Good</think>It is lost.\nJudgment: Bad", Label.BAD),
        ("Judgment: Good</think>Who knows.", Label.UNPARSED),
    ],
)
def test_a_template_may_open_the_thinking_with_a_special_token(actor, answer, label):
    """What is thought is no answer, even where the mark that ends it is a token that decoding hides."""
    tokenizer = vocabularies.qwen_like()
    tokenizer.add_special_tokens({"additional_special_tokens": ["<think>", "</think>"]})
    tokenizer.chat_template += "{% if add_generation_prompt %}{{ '<think>\n' }}{% endif %}"
    engine = Says(tokenizer, {"one": answer})
    engine.split = False  # the model writes the token
    (judged,) = actor(engine, tokenizer, format="chat").by_words(["one"], GREEDY, 0, lambda n: None)
    assert judged.label is label


def test_what_has_no_label_says_why(actor, tokenizer):
    """Over max_length (the oldest turns are not cut: it is not asked), failed, cut: each is counted, and none is good."""
    answers = {"fails": None, "cut": "Judgment: Good…", "fine": "Judgment: Good"}
    engine = Says(tokenizer, answers)
    judged = actor(engine, tokenizer, 200, 0.5).by_words(
        ["fails", "cut", "fine" + " x" * 300, "fine"], GREEDY, 0, lambda n: None
    )
    assert [one.label for one in judged] == [Label.UNPARSED] * 3 + [Label.GOOD]
    assert [one.why for one in judged] == ["engine failed", judges.CUT, judges.LENGTH, ""]
    assert not any(" x x" in text for text in engine.asked)
    judges.check_unparsed(judged, 0.75)
    with pytest.raises(
        judges.TooManyUnparsed, match=r"3 of 4 judged steps \(75.0%\).*1 cut at .*1 engine failed, 1 over max"
    ):
        judges.check_unparsed(judged, 0.74)
    judges.check_unparsed([], 0.0)


def test_the_likeliest_label_is_that_of_the_highest_sum(actor, completion_logprobs):
    """sum_i log P(label_i | question, label_<i), end token included, in float64 by an independent reading of the weights."""
    tokenizer = word_tokenizer([*judges.PHRASES])  # a label is one token, so that the shortest need not be the likeliest
    questions = [judge_texts("Craft.\n", f"Goal: craft {item}.", TURNS[:n]) for item in ("bow", "bed", "") for n in (1, 2)]
    found = set()
    for seed in range(4):
        model = scratch_model(len(tokenizer), 16, 2, 2, 512, seed).eval()
        own = actor(HFEngine(model, tokenizer.pad_token_id, tokenizer.eos_token_id), tokenizer, identity=f"model {seed}")
        advanced = []
        judged = own.by_likelihood(questions, advanced.append)
        assert sum(advanced) == len(questions)
        for question, one in zip(questions, judged, strict=True):
            prompt = own.renderer.conversation([question])[0]
            completions = [own.renderer.completion(label_text(label)) for label in SAID]
            sums = [completion_logprobs(model, prompt, completion).sum() for completion in completions]
            assert one == Judged(SAID[int(np.argmax(sums))])
            found.add(one.label)
    assert len(found) > 1


class Scores:
    """An engine whose every completion has one sum."""

    def __init__(self, sums):
        self.sums = iter(sums)

    def score(self, prompts, completions):
        return [np.full(len(one), next(self.sums) / len(one), np.float32) for one in completions]


@pytest.mark.parametrize(
    ("sums", "label", "why"),
    [
        ([-3, -2, -1], Label.GOOD, ""),
        ([-2, -1, -2], Label.UNCERTAIN, ""),
        ([-1, -1, -1], Label.BAD, ""),
        ([-2, -1, -1], Label.UNCERTAIN, ""),
        ([np.nan, -1, -1], Label.UNPARSED, judges.NOT_FINITE),
    ],
)
def test_of_equally_likely_labels_the_worse_counts(actor, sums, label, why):
    """Bad before uncertain before good; what is no number says nothing."""
    tokenizer = word_tokenizer([*judges.PHRASES])  # labels of one length, so that equal sums are equal
    (judged,) = actor(Scores(sums), tokenizer).by_likelihood(["one"], lambda n: None)
    assert judged == Judged(label, why=why)


def test_a_question_with_a_label_over_max_length_is_not_scored(actor, tokenizer):
    prompt = len(Renderer(tokenizer, "lumos").conversation(["one"])[0])
    longest = max(len(Renderer(tokenizer, "lumos").completion(label_text(label))) for label in SAID)
    (judged,) = actor(Scores([]), tokenizer, prompt + longest - 1).by_likelihood(["one"], lambda n: None)
    assert judged == Judged(Label.UNPARSED, why=judges.LENGTH)
    (judged,) = actor(Scores([-1, -2, -3]), tokenizer, prompt + longest).by_likelihood(["one"], lambda n: None)
    assert judged.label is Label.BAD


def test_the_tree_calls_bad_where_the_best_below_falls():
    """0 can still get 1.0 over 1; to go to 2 (best 0.5) is bad, to 3 (best 0.2) as well; what then cannot fall is good."""
    labels = by_tree(grow(FORK, {6: 0.0, 7: 0.2, 8: 1.0, 9: 0.5, 10: 0.4}))
    assert {node for node, label in labels.items() if label is Label.BAD} == {2, 3, 6, 10}
    assert {node for node, label in labels.items() if label is Label.GOOD} == {1, 4, 5, 7, 8, 9}
    assert by_tree([row("t", 0, None, 0, {}), row("t", 1, 0, 1, {})]) == {}


@given(trees())
def test_the_tree_against_every_path(rows):
    """The best below a node, counted over all paths that go through it."""
    parents = {one["node"]: one["parent"] for one in rows}

    def above(node):
        return [] if node is None else [node, *above(parents[node])]

    ends = [(above(one["node"]), one["reward"]) for one in rows if one["end"]]
    best = {node: max((reward for path, reward in ends if node in path), default=None) for node in parents}
    expected = {
        node: Label.BAD if best[node] < best[parent] else Label.GOOD
        for node, parent in parents.items()
        if parent is not None and best[node] is not None
    }
    assert by_tree(rows) == expected
