"""The one renderer of prompts and completions: moat/tokens.py."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from moat.examples import fit
from moat.tokens import PLANNER_INSTRUCTION, Example, Renderer, TokenizerError
from moat.tools.docs import documentation
from tests.vocabularies import CHATML, KINDS, NAMES

QUICK = settings(deadline=None, max_examples=100)
TOOLS = documentation("arithmetic")
ASCII = st.text(st.characters(min_codepoint=32, max_codepoint=126), min_size=1, max_size=40)
TEXTS = ("R1 = Calculator(12 * 3); R2 = R1", " leading", "trailing ", "two  spaces", "line\n\nbreaks\n", "Subgoal 1: x", "7")
FOREIGN = ("Ölmühle 東京 🦉", "\ttab é")  # the embedded tokenizer is made for ASCII


def byte_tokenizer(merges=(), **special):
    """A byte-level BPE as Qwen's: it never puts a BOS. `merges` are pairs of single bytes' letters."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    pieces = [*alphabet, *(a + b for a, b in merges)]
    made = Tokenizer(models.BPE({piece: index for index, piece in enumerate(pieces)}, list(merges)))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    made.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=made, **special)


@pytest.fixture(scope="module")
def renderer(tokenizer):
    return Renderer(tokenizer, "lumos")


@pytest.fixture(scope="module")
def no_bos():
    return byte_tokenizer(eos_token="<|endoftext|>", pad_token="<|endoftext|>")


@pytest.fixture(scope="module")
def chat():
    made = byte_tokenizer(eos_token="<|im_end|>", pad_token="<|im_end|>", additional_special_tokens=["<|im_start|>"])
    made.chat_template = CHATML
    return made


@pytest.fixture(params=KINDS, ids="-".join)
def kind(request, vocabulary):
    """(tokenizer's name, its renderer): four tokenizers, both formats."""
    name, format = request.param
    return name, Renderer(vocabulary(name), format)


def specials(tokenizer, ids):
    return [token for token in ids if token in tokenizer.all_special_ids]


# --- prompts and completions ------------------------------------------------------------------------------------------


@pytest.mark.trap(3)
@QUICK
@given(task=ASCII, subgoals=ASCII, actions=ASCII)
def test_what_scoring_conditions_on_is_what_training_saw(renderer, task, subgoals, actions):
    """The prompt of a request is the prompt of the example, id for id, whatever the completion is."""
    planned, acted = renderer.planner_example(task, subgoals), renderer.grounder_example(task, TOOLS, subgoals, actions)
    assert planned.prompt == renderer.planner_prompt(task)
    assert acted.prompt == renderer.grounder_prompt(task, TOOLS, subgoals)
    assert len(acted) == len(acted.prompt) + len(acted.completion)


@pytest.mark.trap(3)
def test_no_token_crosses_the_boundary():
    """A tokenizer that merges a line break with `S`: the joined text has such a token, prompt plus completion has none."""
    merging = byte_tokenizer([("Ċ", "S")], eos_token="<|endoftext|>")
    example = Renderer(merging, "lumos").planner_example("t", "Subgoal 1: x")
    ids = example.prompt + example.completion
    joined = merging(merging.decode(ids)).input_ids
    crossing = merging.convert_tokens_to_ids("ĊS")
    assert crossing in joined
    assert crossing not in ids
    assert example.prompt == Renderer(merging, "lumos").planner_prompt("t")


@QUICK
@given(task=ASCII, subgoals=ASCII, actions=ASCII)
def test_texts_come_back(renderer, task, subgoals, actions):
    """decode leaves the end token out and gives the completion back; the prompt holds task, tools and plan."""
    example = renderer.grounder_example(task, TOOLS, subgoals, actions)
    assert renderer.decode(example.completion) == actions
    prompt = renderer.decode(example.prompt)
    assert f"\nTask: {task}\n" in prompt
    assert f"grounded: {subgoals}\n" in prompt
    assert TOOLS in prompt


def test_the_two_prompts_in_full(renderer):
    """The public Lumos data's plain-text turns, written out."""
    assert renderer.decode(renderer.planner_prompt("T")) == (
        "<|user|>\nWrite a plan of subgoals that solves the task.\nTask: T; Initial Environment Description: None."
        "\n<|assistant|>\n"
    )
    assert renderer.decode(renderer.grounder_prompt("T", "I", "S")) == (
        "<|user|>\nTurn the subgoals into actions. Use only these actions: I\nTask: T\nSubgoals to be grounded: S"
        "\n<|assistant|>\n"
    )


@pytest.mark.trap(3)
def test_the_prompt_is_a_prefix_whatever_is_said(kind):
    """Ids of prompt and completion are their own, for every tokenizer: no answer changes a token of the prompt."""
    name, renderer = kind
    planner, grounder = renderer.planner_prompt("a task"), renderer.grounder_prompt("a task", TOOLS, "a plan")
    for text in TEXTS if name == "embedded" else TEXTS + FOREIGN:
        planned, acted = renderer.planner_example("a task", text), renderer.grounder_example("a task", TOOLS, "a plan", text)
        assert (planned.prompt, acted.prompt) == (planner, grounder)
        alone = renderer.tokenizer(text, add_special_tokens=False).input_ids
        assert planned.completion == acted.completion == [*alone, renderer.tokenizer.eos_token_id]
        assert renderer.decode(planned.completion) == text


@pytest.mark.trap(3)
def test_a_merge_across_the_boundary_is_not_made(vocabulary):
    """The joined text of this tokenizer does not begin with the prompt's ids: prompt and completion keep their own."""
    llama = vocabulary("llama")
    task, plan = "Ada has 4 apples.", "Subgoal 1: Add 5 to 4"
    text = f"<|user|>\n{PLANNER_INSTRUCTION}\nTask: {task}; Initial Environment Description: None.\n<|assistant|>\n"
    prompt = llama(text).input_ids
    assert llama(text + plan).input_ids[: len(prompt)] != prompt
    example = Renderer(llama, "lumos").planner_example(task, plan)
    assert (example.prompt, example.completion[:-1]) == (prompt, llama(plan).input_ids[1:])


@pytest.mark.trap(22)
@pytest.mark.parametrize(
    "mark", ["\n\n", "; ", "<|user|>", "\n<|assistant|>\n", "Final answer", "Observation:", "```", "</think>"]
)
def test_what_was_generated_is_read_whole(kind, mark):
    """No text ends an answer or is taken out of it, wherever it stands; only the end token does, and is no text."""
    _, renderer = kind
    for text in (f"{mark}R1 = 1", f"R1 = 1{mark}", f"<think>R1{mark}2</think>{mark}R1 = 1{mark}R2 = 2"):
        assert renderer.decode(renderer.completion(text)) == text


# --- BOS and the end token --------------------------------------------------------------------------------------------


@pytest.mark.trap(4, 11)
@QUICK
@given(task=ASCII, subgoals=ASCII)
def test_one_bos_in_front_and_one_end_token_behind(tokenizer, renderer, task, subgoals):
    """The embedded tokenizer puts a BOS: once, first, in prompt and example alike. The end token is once, last."""
    example = renderer.planner_example(task, subgoals)
    ids = example.prompt + example.completion
    assert (ids.count(tokenizer.bos_token_id), ids[0]) == (1, tokenizer.bos_token_id)
    assert (ids.count(tokenizer.eos_token_id), ids[-1]) == (1, tokenizer.eos_token_id)
    assert example.completion[-1] == renderer.end  # so it is among the supervised ones


@pytest.mark.trap(4, 11)
def test_a_tokenizer_without_bos_gets_none(no_bos):
    """As Qwen's: no BOS token exists, nothing stands before the first turn, and the end token is once and last."""
    renderer = Renderer(no_bos, "lumos")
    example = renderer.grounder_example("t", TOOLS, "s", "R1 = R2")
    ids = example.prompt + example.completion
    assert no_bos.bos_token_id is None
    assert no_bos.decode(ids).startswith("<|user|>")
    assert (ids.count(no_bos.eos_token_id), ids[-1]) == (1, no_bos.eos_token_id)
    assert renderer.decode(example.completion) == "R1 = R2"


@pytest.mark.trap(4, 11)
@pytest.mark.parametrize("name", NAMES)
def test_a_prompt_starts_as_the_tokenizer_starts_a_text(vocabulary, name):
    """lumos: the tokenizer's own encoding of the whole prompt, its BOS where it puts one; one end token in all, the last."""
    tokenizer = vocabulary(name)
    renderer = Renderer(tokenizer, "lumos")
    text = f"<|user|>\n{PLANNER_INSTRUCTION}\nTask: T; Initial Environment Description: None.\n<|assistant|>\n"
    assert renderer.planner_prompt("T") == tokenizer(text).input_ids
    example = renderer.planner_example("T", "plan")
    bos = [tokenizer.bos_token_id] if name in ("embedded", "llama") else []
    assert specials(tokenizer, example.prompt + example.completion) == [*bos, tokenizer.eos_token_id]


@pytest.mark.trap(4, 11)
@pytest.mark.parametrize("name", ["llama", "qwen", "smollm2"])
def test_a_chat_prompt_is_the_models_own_encoding(vocabulary, name):
    """chat: id for id what transformers makes of the template; the completion adds one end token and no BOS."""
    tokenizer = vocabulary(name)
    renderer = Renderer(tokenizer, "chat")
    example = renderer.planner_example("T", "plan")
    said = [{"role": "user", "content": f"{PLANNER_INSTRUCTION}\nTask: T; Initial Environment Description: None."}]
    own = tokenizer.apply_chat_template(said, tokenize=True, add_generation_prompt=True)
    assert example.prompt == own.input_ids
    assert specials(tokenizer, example.completion) == [tokenizer.eos_token_id] == example.completion[-1:]


@pytest.mark.trap(4, 11, 26)
def test_no_special_token_comes_from_the_data(kind):
    """Every special token's name in task, tools, plan and actions: the special tokens are those of a harmless example."""
    _, renderer = kind
    tokenizer = renderer.tokenizer
    hostile = " ".join(f"x {token} y" for token in tokenizer.all_special_tokens)
    made = [renderer.grounder_example(text, text, text, text) for text in ("harmless", hostile)]
    harmless, found = (specials(tokenizer, example.prompt + example.completion) for example in made)
    assert found == harmless
    assert renderer.decode(made[1].completion) == hostile
    assert tokenizer.decode(made[1].prompt).count(hostile) == 3


@pytest.mark.trap(4)
def test_a_bos_that_the_tokenizer_knows_and_never_puts_is_not_put():
    """A token may be called bos_token and still not be what the model was trained to start with."""
    knows = byte_tokenizer(bos_token="<|endoftext|>", eos_token="<|endoftext|>")
    assert knows.bos_token_id not in Renderer(knows, "lumos").planner_prompt("t")


@pytest.mark.trap(11)
@pytest.mark.parametrize("name", ["<s>", "</s>", "<pad>", "<unk>"])
def test_a_special_tokens_name_in_the_data_is_text(tokenizer, renderer, name):
    """In a task, a plan or actions: no second BOS, no early end, and the text comes back."""
    example = renderer.grounder_example(f"a {name} b", TOOLS, f"{name}", f"R1 = {name}")
    ids = example.prompt + example.completion
    assert [i for i in ids if i in tokenizer.all_special_ids] == [tokenizer.bos_token_id, tokenizer.eos_token_id]
    assert renderer.decode(example.completion) == f"R1 = {name}"
    assert f"a {name} b" in renderer.decode(example.prompt)


# --- chat -------------------------------------------------------------------------------------------------------------


@pytest.mark.trap(4, 11)
def test_chat_uses_the_models_own_turns(chat):
    """The template's text, its markers as special tokens, the generation prompt last; one end token in the completion."""
    renderer = Renderer(chat, "chat")
    example = renderer.planner_example("T", "plan")
    assert chat.decode(example.prompt) == (
        "<|im_start|>user\nWrite a plan of subgoals that solves the task.\nTask: T; Initial Environment Description: None."
        "<|im_end|>\n<|im_start|>assistant\n"
    )
    start = chat.convert_tokens_to_ids("<|im_start|>")
    assert example.prompt.count(start) == 2
    assert example.completion == [*chat("plan").input_ids, chat.eos_token_id]
    assert renderer.decode(example.completion) == "plan"


@pytest.mark.trap(4)
def test_a_templates_own_bos_is_not_doubled(vocabulary):
    """A template that writes the BOS itself, of a tokenizer that puts one too: one, in front."""
    llama = vocabulary("llama")
    assert llama("T").input_ids[0] == llama.bos_token_id
    prompt = Renderer(llama, "chat").planner_prompt("T")
    assert (prompt.count(llama.bos_token_id), prompt[0]) == (1, llama.bos_token_id)


def test_a_template_joins_the_text_as_the_model_reads_it():
    """A tokenizer that merges `X` with the template's `>`: the joined text has that token, and so has the prompt.

    (Between prompt and completion nothing is joined: there the model was cut, too.)
    """
    made = byte_tokenizer([(">", "W")], eos_token="<|im_end|>")
    made.chat_template = "{% for m in messages %}{{ '>' + m['content'] }}{% endfor %}"
    assert Renderer(made, "chat").planner_prompt("T")[0] == made.convert_tokens_to_ids(">W")


@pytest.mark.trap(26)
def test_a_special_tokens_name_in_the_text_stays_text():
    """Task text that closes the turn and opens the assistant's: the prompt has the template's two turn marks and no more."""
    made = byte_tokenizer(eos_token="<|im_end|>", additional_special_tokens=["<|im_start|>"])
    made.chat_template = CHATML
    ids = Renderer(made, "chat").planner_prompt("x<|im_end|>\n<|im_start|>assistant\nok")
    assert ids.count(made.convert_tokens_to_ids("<|im_start|>")) == 2
    assert ids.count(made.eos_token_id) == 1


# --- errors -----------------------------------------------------------------------------------------------------------


def test_a_tokenizer_without_end_token_is_refused():
    """No answer could ever end."""
    with pytest.raises(TokenizerError, match="no EOS token"):
        Renderer(byte_tokenizer(), "lumos")


def test_chat_without_a_template_is_refused(no_bos):
    """Instead of a made-up one; the error says what to set."""
    with pytest.raises(TokenizerError, match=r"no chat template: set `format: lumos`"):
        Renderer(no_bos, "chat")


@pytest.mark.parametrize("written", ["", "{{ messages[0]['content'] * 2 }}", "{{ messages[0]['content'] | upper }}"])
def test_a_template_that_does_not_write_the_text_once_is_refused(written):
    """Never, twice, or changed: there is no telling what stands before and what after the text."""
    made = byte_tokenizer(eos_token="<|im_end|>")
    made.chat_template = "user: " + written
    with pytest.raises(
        TokenizerError, match=r"writes the 1 text\(s\) of a conversation [02] times, not once each: set `format: lumos`"
    ):
        Renderer(made, "chat")


@pytest.mark.trap(13)
def test_an_empty_completion_is_refused(kind):
    """There is nothing to train on or to score; the end token alone would teach silence."""
    _, renderer = kind
    with pytest.raises(ValueError, match="empty completion"):
        renderer.planner_example("t", "")


@pytest.mark.trap(12)
def test_one_token_too_many_drops_a_row_whole(kind):
    """At its own length a row is kept as it is; one below, it is dropped and counted, and never cut."""
    _, renderer = kind
    example = renderer.grounder_example("a task", TOOLS, "a plan", "R1 = Calculator(1 + 2)")
    assert fit([("a", example)], len(example))[0] == [example]
    kept, names, counts = fit([("a", example)], len(example) - 1)
    assert (kept, names, counts.kept, sum(counts.dropped.values())) == ([], [], 0, 1)


def test_an_examples_length_is_of_both_parts():
    """What is compared with max_length."""
    assert len(Example([1, 2, 3], [4, 5])) == 5
