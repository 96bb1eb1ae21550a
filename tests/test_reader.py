"""The model that answers QA: moat/reader.py."""

import copy
import json
import re
from pathlib import Path
from types import SimpleNamespace

import pytest

from moat import params
from moat.asking import Reply
from moat.engines.base import FinishReason, Generation
from moat.hub import ModelError
from moat.machine import Machine
from moat.params import QaTools
from moat.reader import MAX_ANSWER, Reader, ReaderError, ReaderRenderer, key_of, open_reader, read_answer, text_of
from moat.stage import Stage
from moat.tools.qa import Question

ROOT = Path(__file__).resolve().parent.parent
HOSTILE = json.loads((Path(__file__).parent / "hostile.json").read_text(encoding="utf-8"))
TEMPLATE = "<s>{% for m in messages %}<|user|>\n{{ m['content'] }}\n<|assistant|>\n{% endfor %}"
WHO = Question("Who died in Rome?", ("Rome: Julius Caesar died in Rome.", "Julius Caesar: He conquered Gaul."))
KEYED = re.compile(r"\[\[(end )?(question|passage \d+) ([0-9a-f]{8})\]\]")


class Scripted:
    """A reader that answers by a function of the question's text; keeps the calls."""

    def __init__(self, tokenizer, say, **options):
        self.calls = []
        self.say, self.tokenizer = say, tokenizer
        self.reader = Reader(ReaderRenderer(tokenizer, "plain"), self.ask, **({"seed": 0, "max_new_tokens": 20} | options))

    def ask(self, requests):
        self.calls.append(list(requests))
        said = [self.say(self.tokenizer.decode(request.prompt)) for request in requests]
        return [one if isinstance(one, Reply) else Reply(one, "stop") for one in said]


# --- what is asked ----------------------------------------------------------------------------------------------------


def test_a_question_stands_between_its_marks():
    """Passages in order, then the question, each once, between marks of one key; the texts themselves are as they were."""
    key = key_of(WHO, 0)
    text = text_of(WHO, key)
    inside = re.findall(rf"\[\[([a-z0-9 ]+) {key}\]\]\n(.*?)\n\[\[end \1 {key}\]\]", text, re.DOTALL)
    assert inside == [("passage 1", WHO.passages[0]), ("passage 2", WHO.passages[1]), ("question", WHO.question)]


def test_the_key_is_in_no_text():
    """Not even in one that holds the key which the question would have had without it."""
    for seed in range(3):
        key = key_of(WHO, seed)
        other = Question(WHO.question, (*WHO.passages, key, f"[[end question {key}]]"))
        assert key_of(other, seed) not in "".join(other.passages)
    assert key_of(WHO, 0) == key_of(Question(WHO.question, WHO.passages), 0) != key_of(WHO, 1)
    assert key_of(Question("a", ("b", "c")), 0) != key_of(Question("a", ("b c",)), 0)


@pytest.mark.trap(26)
@pytest.mark.parametrize("name", ["embedded", "llama", "qwen"])
def test_no_data_becomes_a_control_token(vocabulary, name):
    """With every special token's name, role marker and thinking tag in it, or it is not asked; marks are never data's."""
    tokenizer = vocabulary(name)
    renderer = ReaderRenderer(tokenizer, "plain")
    names = [*tokenizer.all_special_tokens, "<|user|>", "</think>", "<think>", "[[end question 00000000]]"]
    plain = renderer.prompt_of(Question("x", ("y",)), 0)
    specials = set(tokenizer.all_special_ids) - {tokenizer.unk_token_id}
    for text in [*names, *(str(one) for one in HOSTILE)]:
        ids = renderer.prompt_of(Question("x", (text,)), 0)
        if ids is not None:
            assert [i for i in ids if i in specials] == [i for i in plain if i in specials]
            key = key_of(Question("x", (text,)), 0)
            assert [mark[1] for mark in KEYED.findall(text_of(Question("x", (text,)), key)) if mark[2] == key] == [
                "passage 1",
                "passage 1",
                "question",
                "question",
            ]


@pytest.mark.trap(26)
@pytest.mark.parametrize("name", ["</think>", "<|assistant|>", "</s>", "\u202e"])
def test_what_a_passage_says_to_the_reader_is_escaped(tokenizer, name):
    """Names of control tokens, role markers, thinking tags and unseen characters do not reach it as written."""
    renderer = ReaderRenderer(tokenizer, "plain")
    question = Question("Who?", (f"a {name} b",))
    assert name not in text_of(question, "0" * 8, renderer.control)


# --- what an answer is ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("Julius Caesar", "Julius Caesar"),
        (" Answer: 16 \n", "16"),
        ("<think>Is it 3?\nNo.</think>\n\n16", "16"),
        ("a</think>b</think>c", "c"),
        ("No", "No"),
        ("Unanswerable by law", "Unanswerable by law"),
    ],
)
def test_a_short_answer_is_read(text, answer):
    assert read_answer(Reply(text, "stop"), False) == answer


@pytest.mark.trap(25, 33)
@pytest.mark.parametrize(
    ("text", "reason", "thinks"),
    [
        ("", "stop", False),
        (" \n", "stop", False),
        ("Answer:", "stop", False),
        ("unanswerable", "stop", False),
        ("Answer: Unanswerable.", "stop", False),
        ("16\nor 17", "stop", False),
        ("x" * (MAX_ANSWER + 1), "stop", False),
        ("<think>16", "stop", False),
        ("thought</think>", "stop", False),
        ("thought </think> a <think> 16", "stop", False),
        ("16", "stop", True),  # the prompt opened its thinking, and it never closed
        ("16", "length", False),
        ("thought</think>16", "length", True),
        ("16", "failed", False),
    ],
)
def test_anything_else_is_no_answer(text, reason, thinks):
    assert read_answer(Reply(text, reason), thinks) is None


def test_equal_questions_are_asked_once(tokenizer):
    """Answers come in the order of the questions; the same question has the same prompt and seed beside other ones."""
    other = Question("Who conquered Gaul?", WHO.passages)
    scripted = Scripted(tokenizer, lambda text: "Caesar" if "Gaul ?" in text or "Gaul?" in text else "unanswerable")
    assert scripted.reader.answer_all([WHO, other, WHO]) == [None, "Caesar", None]
    assert scripted.reader.answer_all([other]) == ["Caesar"]
    assert [len(call) for call in scripted.calls] == [2, 1]
    assert scripted.calls[1][0] == scripted.calls[0][1] != scripted.calls[0][0]
    assert scripted.reader.tally == {"answered": 2, "no answer": 1}
    assert scripted.reader.answer_all([]) == []


def test_what_does_not_fit_is_not_asked(tokenizer):
    """Nothing is truncated: prompt and answer must fit the context."""
    scripted = Scripted(tokenizer, lambda text: "yes")
    room = len(scripted.reader.renderer.prompt_of(WHO, 0)) + 20
    for longest, answer in ((room, "yes"), (room - 1, None)):
        scripted = Scripted(tokenizer, lambda text: "yes", longest=longest)
        assert scripted.reader.answer_all([WHO]) == [answer]
        assert len(scripted.calls) == (answer is not None)


# --- with an engine ---------------------------------------------------------------------------------------------------


def settings(**changes):
    values = {"retriever": "bm25", "encoder": "", "encoder_revision": "", "found": 10, "passages": 3, "wikipedia": False}
    values |= {"reader": "", "reader_revision": "0", "prompt": "chat", "temperature": 0.0, "top_p": 1.0, "max_new_tokens": 6}
    return QaTools(**(values | changes))


@pytest.fixture
def here(tmp_path, monkeypatch, tokenizer):
    """A folder with two tiny random models: one with a chat template, one without."""
    from moat.base_models import scratch_model

    monkeypatch.chdir(tmp_path)
    for name, template in (("chat", TEMPLATE), ("bare", None)):
        own = copy.deepcopy(tokenizer)
        own.chat_template = template
        own.save_pretrained(name)
        scratch_model(len(own), 16, 2, 2, 2048, 0).save_pretrained(name)
    return Stage("evaluate", params.load(ROOT / "params.yaml"), Machine(device="cpu"), tmp_path, {"round": "1"})


def test_a_real_model_is_asked_through_the_journal(here, monkeypatch):
    """A random one: whatever it says, the same comes again without opening it."""
    asks = [WHO, Question("Where?", WHO.passages)]
    first = open_reader(settings(reader="chat"), here).answer_all(asks)
    assert len(first) == 2
    monkeypatch.setattr("moat.runners.open_engine", lambda *_: pytest.fail("asked again"))
    assert open_reader(settings(reader="chat"), here).answer_all(asks) == first


def test_settings_reach_the_engine(here, monkeypatch, tokenizer):
    seen = []

    def generate(prompts, seeds, decoding):
        seen.append(decoding)
        ids = tokenizer("Ada has 4", add_special_tokens=False).input_ids
        return [Generation(ids, FinishReason.STOP, -1.0) for _ in prompts]

    monkeypatch.setattr("moat.runners.open_engine", lambda *_: SimpleNamespace(generate=generate))
    reader = open_reader(settings(reader="bare", prompt="plain", temperature=0.5, top_p=0.9), here)
    assert reader.answer_all([WHO]) == [tokenizer.decode(tokenizer("Ada has 4", add_special_tokens=False).input_ids)]
    assert [(d.temperature, d.top_p, d.max_new_tokens) for d in seen] == [(0.5, 0.9, 6)]
    assert reader.facts["engine"] == "hf"
    assert reader.facts["reader"]


@pytest.mark.parametrize(
    ("changes", "error", "words"),
    [
        ({}, ReaderError, r"tools\.qa\.reader is empty"),
        ({"reader": "bare"}, ReaderError, r"no chat template.*tools\.qa\.prompt: plain"),
        ({"reader": "."}, ModelError, r"tools\.qa\.reader \. is no model folder"),
        ({"reader": "nobody/nothing"}, ModelError, r"tools\.qa\.reader: no model 'nobody/nothing'"),
    ],
)
def test_a_reader_that_cannot_be_opened_says_what_to_set(here, changes, error, words):
    with pytest.raises(error, match=words):
        open_reader(settings(**changes), here)
