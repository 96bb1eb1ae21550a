"""What a judge is asked: moat/judge_prompt.py."""

import copy
import json
from dataclasses import replace
from pathlib import Path

import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from moat.judge_prompt import DOMAINS, KEY_LENGTH, Case, JudgeError, JudgeRenderer, key_of, question, visible
from moat.tools.docs import documentation

CASE = Case(
    domain="arithmetic",
    text="Ada has 4 apples. Ada buys 5. How many?",
    tools=documentation("arithmetic"),
    subgoals="Subgoal 1: Add 5 to 4",
    actions="R1 = Calculator(4 + 6)",
    gold_actions="R1 = Calculator(4 + 5)",
    gold_answer="9",
)
CHATML = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
HOSTILE = json.loads((Path(__file__).parent / "hostile.json").read_text(encoding="utf-8"))
TOKENS = ["<|im_start|>", "<think>", "</think>", "<\uff5cAssistant\uff5c>"]  # beside the end token


def byte_tokenizer(template=CHATML, normalizer=None):
    """A byte-level BPE with the tokens of a reasoning model: some are special, others merely added, as R1's are."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    made = Tokenizer(models.BPE({piece: index for index, piece in enumerate(alphabet)}, []))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    made.decoder = decoders.ByteLevel()
    if normalizer is not None:
        made.normalizer = normalizer
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=made, eos_token="<|im_end|>", pad_token="<|im_end|>")
    tokenizer.add_tokens([AddedToken(name, special=False, normalized=normalizer is not None) for name in TOKENS])
    tokenizer.chat_template = template
    return tokenizer


@pytest.fixture(scope="module")
def chat():
    return byte_tokenizer()


def added(tokenizer, ids):
    """The control tokens among some ids, by name, in order."""
    return [name for name in tokenizer.convert_ids_to_tokens(ids) if name in {*TOKENS, "<|im_end|>"}]


# --- the question -----------------------------------------------------------------------------------------------------


@pytest.mark.trap(27)
@pytest.mark.parametrize("field", ["text", "tools", "subgoals", "actions", "gold_actions", "gold_answer"])
def test_the_judge_sees_everything(field):
    """x, I, s, a, and the gold actions with their answer, each between marks of its own."""
    key = key_of(CASE, 0)
    text = question(CASE, key)
    assert f" {key}]]\n{getattr(CASE, field)}\n[[end " in text


@pytest.mark.trap(27)
def test_every_domain_has_instructions_of_its_own():
    """Maths, QA and web are asked differently; a domain without instructions is an error and not maths."""
    told = {domain: question(replace(CASE, domain=domain), "0" * 8) for domain in ("maths", "qa", "web", "webshop")}
    assert len(set(told.values())) == 4
    for domain, text in told.items():
        assert [DOMAINS[other] in text for other in told] == [other == domain for other in told]
    with pytest.raises(JudgeError, match="domain 'law'; there are maths, qa, web, webshop"):
        question(replace(CASE, domain="law"), "0" * 8)


def test_without_a_gold_answer_none_is_shown():
    assert "reference answer" not in question(replace(CASE, gold_answer=" "), "0" * 8)


@pytest.mark.trap(26)
def test_the_key_depends_on_the_seed_and_on_every_text():
    """Equal questions have equal keys, so that they are equal prompts; any other difference is another key."""
    others = [replace(CASE, **{field: "other"}) for field in CASE.__slots__]
    moved = replace(CASE, text=CASE.text + "x", tools=CASE.tools[1:]), replace(CASE, text=CASE.text + CASE.tools[0])
    keys = [key_of(CASE, 0), key_of(CASE, 1), *(key_of(case, 0) for case in (*others, *moved))]
    assert len(set(keys)) == len(keys) == 11
    assert keys[0] == key_of(copy.deepcopy(CASE), 0)
    assert all(len(key) == KEY_LENGTH and set(key) <= set("0123456789abcdef") for key in keys)


@pytest.mark.trap(26)
def test_a_text_that_holds_every_short_key_gets_another(monkeypatch):
    """Where a text happens to hold its own key, the next hash is taken: with keys of one digit all but one are in use."""
    monkeypatch.setattr("moat.judge_prompt.KEY_LENGTH", 1)
    case = Case("arithmetic", "0123456789abcde", "", "", "", "", "")
    assert {key_of(replace(case, gold_answer=" " * n), 0) for n in range(20)} == {"f"}


def test_what_is_not_seen_is_written_out():
    """Controls, direction marks and zero width, but not line breaks; names of control tokens get a backslash."""
    assert visible("a\x00b\r\nc\td\re\u202ef\u200bg\ud800", ()) == "a\\u0000b\nc\td\\u000de\\u202ef\\u200bg\\ud800"
    assert visible("<s><s>a</s>", ("</s>", "<s>")) == "<\\s><\\s>a<\\/s>"


# --- tokens -----------------------------------------------------------------------------------------------------------


@pytest.mark.trap(27)
def test_the_judges_own_template_is_applied(chat):
    """The question is the user's turn, and the assistant's is open."""
    asked = JudgeRenderer(chat, "chat").question(CASE, 0)
    expected = f"<|im_start|>user\n{question(CASE, asked.key)}<|im_end|>\n<|im_start|>assistant\n"
    assert chat.decode(asked.prompt) == expected
    assert added(chat, asked.prompt) == ["<|im_start|>", "<|im_end|>", "<|im_start|>"]


@pytest.mark.trap(27)
def test_a_judge_without_a_template_is_refused(tokenizer):
    """With the two remedies; plain text turns are used only when asked for."""
    with pytest.raises(JudgeError, match=r"(?s)no chat template.*critic\.judge.*critic\.prompt: plain"):
        JudgeRenderer(tokenizer, "chat")
    asked = JudgeRenderer(tokenizer, "plain").question(CASE, 0)
    assert tokenizer.decode(asked.prompt) == f"<s><|user|>\n{question(CASE, asked.key)}\n<|assistant|>\n"


@pytest.mark.trap(26)
@pytest.mark.parametrize("name", [entry["name"] for entry in HOSTILE])
def test_hostile_data_holds_no_control_token(chat, tokenizer, name):
    """Whatever stands in the data, the control tokens of the prompt are the template's; plain turns have two markers."""
    entry = next(entry for entry in HOSTILE if entry["name"] == name)
    case = replace(CASE, **{entry["field"]: entry["text"] * entry["repeat"]})
    asked = JudgeRenderer(chat, "chat").question(case, 0)
    assert added(chat, asked.prompt) == ["<|im_start|>", "<|im_end|>", "<|im_start|>"]
    plain = JudgeRenderer(tokenizer, "plain").question(case, 0)
    names = tokenizer.convert_ids_to_tokens(plain.prompt)
    assert [t for t in names if t in ("<s>", "</s>", "<pad>", "<|user|>\n", "\n<|assistant|>\n")] == [
        "<s>",
        "<|user|>\n",
        "\n<|assistant|>\n",
    ]


@pytest.mark.trap(26)
def test_a_control_token_by_normalisation_is_not_asked():
    """A tokenizer that lowers case before it looks for its added tokens makes `<THINK>` one: no escape sees it coming."""
    renderer = JudgeRenderer(byte_tokenizer(normalizer=normalizers.Lowercase()), "chat")
    assert renderer.question(CASE, 0) is not None
    assert renderer.question(replace(CASE, actions="<THINK>"), 0) is None


@pytest.mark.trap(25)
def test_a_template_that_opens_the_thinking_is_noticed(chat):
    """The text of the answer then starts inside a thought. A thought that the template closes at once is none."""
    opened, closed = byte_tokenizer(CHATML + "<think>\n"), byte_tokenizer(CHATML + "<think>\n\n</think>\n")
    assert [JudgeRenderer(one, "chat").thinks for one in (chat, opened, closed)] == [False, True, False]


@pytest.mark.trap(25)
def test_the_end_of_thinking_is_seen_even_as_a_special_token():
    """Special tokens of an answer are shown, so that a thought and the answer stay apart."""
    tokenizer = byte_tokenizer()
    tokenizer.add_special_tokens({"additional_special_tokens": ["</think>"]})
    ids = tokenizer("hm</think>yes").input_ids
    assert JudgeRenderer(tokenizer, "chat").decode(ids) == "hm</think>yes"
