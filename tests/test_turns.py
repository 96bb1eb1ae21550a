"""What the turns of iterative planning say, and how an answer is read: moat/turns.py and the renderer's conversations."""

import pytest

from moat.examples import demo_examples, gold_example, planner_pairs
from moat.tokens import Renderer, Role
from moat.tools.docs import documentation
from moat.turns import KEEP, RESULT_SHOWN, STOP, Done, history, planned, shown, subgoal_of, told
from tests.rows import demo, task

TOOLS = documentation("arithmetic")
FIRST = Done("Subgoal 1: Add 5 to 4", "R1 = Calculator(4 + 5)", "9")
SECOND = Done("Subgoal 2: Double it", "R2 = Calculator(R1 * 2)", "18")
NAMES = ("embedded", "llama", "qwen", "smollm2")


def as_row(turn):
    return {"subgoal": turn.subgoal, "actions": turn.actions, "result": turn.result}


# --- texts ------------------------------------------------------------------------------------------------------------


def test_the_wording_is_that_of_the_public_data():
    assert told(1, "4") == "The executed result for Subgoal 1 is 4. Should we stop planning?"
    assert planned(1, FIRST.subgoal) == "Subgoal 1: Add 5 to 4"
    assert planned(2, SECOND.subgoal) == "No, I will keep planning. Subgoal 2: Double it"


@pytest.mark.parametrize(
    ("answer", "subgoal"),
    [
        ("Subgoal 1: Add", "Subgoal 1: Add"),
        ("No, I will keep planning. Subgoal 2: Add", "Subgoal 2: Add"),
        (" No, I will keep planning.  Subgoal 2: Add\n", "Subgoal 2: Add"),
        ("No, I will keep planning.", ""),
        ("", ""),
        ("Yes, I will stop planning.", None),
        ("Yes, stop.", None),
        ("  Yes", None),
        ("Yesterday", None),  # nothing but a decision begins with it
        ("Subgoal 2: say Yes, I will stop planning.", "Subgoal 2: say Yes, I will stop planning."),
    ],
)
def test_an_answer_names_a_subgoal_or_stops(answer, subgoal):
    assert subgoal_of(answer) == subgoal


def test_a_long_result_is_told_in_part():
    assert shown("x" * RESULT_SHOWN) == "x" * RESULT_SHOWN
    assert shown("x" * (RESULT_SHOWN + 1)) == "x" * (RESULT_SHOWN - 1) + "…"


def test_a_rows_history_is_what_stands_before_its_turn():
    turns = [as_row(FIRST), as_row(SECOND)]
    assert [history({"turn": n, "turns": turns}) for n in (None, 0, 1, 2)] == [None, (), (FIRST,), (FIRST, SECOND)]


# --- conversations as token ids ---------------------------------------------------------------------------------------


@pytest.fixture(params=[(name, "lumos") for name in NAMES] + [(name, "chat") for name in NAMES[1:]], ids="-".join)
def renderer(request, vocabulary):
    name, form = request.param
    return Renderer(vocabulary(name), form)


def test_a_conversation_says_every_turn_in_order(renderer):
    """The planner is told each result and asked to go on; the grounder's own actions stand between its subgoals."""
    text = renderer.tokenizer.decode(renderer.planner_prompt("a task", [FIRST, SECOND]))
    said = ["a task", FIRST.subgoal, told(1, "9"), KEEP + SECOND.subgoal, told(2, "18")]
    places = [text.find(part) for part in said]
    assert places == sorted(places)
    assert places[0] > 0
    text = renderer.tokenizer.decode(renderer.grounder_prompt("a task", TOOLS, "Subgoal 3: Halve", [FIRST, SECOND]))
    said = [
        TOOLS,
        "a task",
        FIRST.subgoal,
        FIRST.actions,
        "is 9.",
        SECOND.subgoal,
        SECOND.actions,
        "is 18.",
        "Subgoal 3: Halve",
    ]
    places = [text.find(part) for part in said]
    assert places == sorted(places)
    assert places[0] > 0


@pytest.mark.trap(3, 11)
@pytest.mark.parametrize("name", NAMES)
def test_a_turns_prompt_begins_with_the_earlier_one(vocabulary, name):
    """lumos: the ids that were scored or sampled from a turn before begin the next turn's, end token and all.

    A chat template may write an answer that is over in another way than one that is asked for.
    """
    renderer = Renderer(vocabulary(name), "lumos")
    first = renderer.planner_example("a task", FIRST.subgoal, [])
    after = renderer.planner_prompt("a task", [FIRST])
    assert after[: len(first)] == first.prompt + first.completion


@pytest.mark.trap(4, 11)
def test_one_bos_and_an_end_after_every_answer(renderer):
    """lumos: at most one BOS, at the start, and as many end tokens as there are answers."""
    example = renderer.planner_example("a task", STOP, [FIRST, SECOND])
    ids = example.prompt + example.completion
    if renderer.format == "lumos":
        assert ids.count(renderer.end) == 3
        assert renderer.tokenizer.bos_token_id not in ids[1:] or renderer.tokenizer.bos_token_id == renderer.end
    assert example.completion.count(renderer.end) == 1
    assert example.completion[-1] == renderer.end


@pytest.mark.trap(4, 26)
@pytest.mark.parametrize("name", NAMES[1:])
def test_a_chat_conversation_is_the_models_own_encoding(vocabulary, name):
    """Id for id what transformers makes of the template, for two turns."""
    tokenizer = vocabulary(name)
    prompt = Renderer(tokenizer, "chat").planner_prompt("T", [FIRST])
    content = tokenizer.decode(Renderer(tokenizer, "lumos").planner_prompt("T", []))
    content = content.partition("<|user|>\n")[2].partition("\n<|assistant|>")[0]
    messages = [
        {"role": "user", "content": content},
        {"role": "assistant", "content": FIRST.subgoal},
        {"role": "user", "content": told(1, "9")},
    ]
    assert prompt == tokenizer.apply_chat_template(messages, tokenize=True, add_generation_prompt=True).input_ids


@pytest.mark.trap(26)
def test_no_special_token_comes_from_a_history(renderer):
    """Every special token's name in subgoal, actions and result: the special tokens are those of a harmless history."""
    tokenizer = renderer.tokenizer
    hostile = " ".join(f"x {token} y" for token in tokenizer.all_special_tokens)
    special = set(tokenizer.all_special_ids)
    found = [
        [i for i in renderer.grounder_prompt("t", TOOLS, "s", [Done(text, text, text)]) if i in special]
        for text in ("harmless", hostile)
    ]
    assert found[0] == found[1]


def test_without_a_history_nothing_changes(renderer):
    """A whole plan's prompt is what it was: turns have instructions of their own."""
    assert renderer.planner_prompt("t") == renderer.planner_prompt("t", None) != renderer.planner_prompt("t", [])


# --- rows to examples -------------------------------------------------------------------------------------------------


def test_the_grounder_reads_the_subgoal_without_the_decision(tokenizer):
    """`No, I will keep planning.` is the planner's; a turn at which it stops has nothing to ground."""
    renderer = Renderer(tokenizer, "lumos")
    row = task("a", turn=1, turns=[as_row(FIRST)], subgoals=planned(2, SECOND.subgoal))
    example = gold_example(renderer, row, "gold_actions")
    assert example.prompt == renderer.grounder_prompt(row["text"], TOOLS, SECOND.subgoal, [FIRST])
    with pytest.raises(ValueError, match="nothing to ground"):
        gold_example(renderer, row | {"subgoals": STOP}, "gold_actions")


def test_demonstrations_and_pairs_of_a_turn_have_its_history(tokenizer):
    renderer = Renderer(tokenizer, "lumos")
    row = demo("d", turn=1, turns=[as_row(FIRST)], subgoals=planned(2, SECOND.subgoal), actions=SECOND.actions)
    import polars as pl

    frame = pl.DataFrame([row], infer_schema_length=None)
    prompt = renderer.planner_prompt(row["text"], [FIRST])
    assert demo_examples(renderer, frame, Role.PLANNER, 9_999)[0][0].prompt == prompt
    assert demo_examples(renderer, frame, Role.GROUNDER, 9_999)[0][0].prompt == renderer.grounder_prompt(
        row["text"], TOOLS, SECOND.subgoal, [FIRST]
    )
    both = row | {"task_id": "t", "chosen": row["subgoals"], "rejected": STOP}
    chosen, rejected, _, _ = planner_pairs(renderer, [both], 9_999)
    assert chosen[0].prompt == rejected[0].prompt == prompt
