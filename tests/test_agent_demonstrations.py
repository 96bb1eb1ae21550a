"""What an actor from nothing is shown, and its words: moat/agent_r/{demonstrations,lexicon}.py, the stage prepare."""

import re

import numpy as np
import pytest

from moat import base_models, layout
from moat.agent_r import lexicon
from moat.agent_r.demonstrations import gold_row, judged_rows, played, repeated_rows, slip_rows
from moat.agent_r.judges import Label, label_text
from moat.agent_r.turns import ACKNOWLEDGED
from moat.agent_r.worlds import INSTRUCTIONS, Goal
from moat.environments.textcraft import TextCraft
from moat.params import ParamsError
from moat.schemas.dialogues import DIALOGUES
from moat.schemas.goals import GOALS
from moat.tokens import Renderer
from tests.agent_checkout import build

TASK = "textcraft/birch_boat"


@pytest.fixture(scope="module")
def world():
    with TextCraft(distractors=1) as made:
        yield made


@pytest.fixture(scope="module")
def goal(world):
    return Goal(TASK, "depth 2", world.gold(TASK))


def test_a_gold_demonstration_is_the_played_path(world, goal):
    first, turns = played(world, TASK, goal.gold)
    row = gold_row("textcraft", "Craft.\n", first, turns, TASK)
    assert row["texts"][0] == "Craft.\n" + first
    assert row["texts"][1::2] == [f"Action: {action}" for action in goal.gold]
    assert row["texts"][2::2] == [turn.observation for turn in turns[:-1]]
    assert row["supervised"] == [bool(number % 2) for number in range(len(row["texts"]))]


def test_a_slip_is_one_wrong_action_after_which_the_gold_path_solves_the_task(world, goal):
    """40 slips: played again they are answered so; all but the wrong action is learned from, and it is no gold step there.

    Some of the wrong actions are refused, and some are not.
    """
    refused = set()
    for number, row in enumerate(slip_rows(world, "textcraft", "Craft.\n", goal, ["get 3 string", "craft 1 hat"], 40, 3)):
        texts, learned = row["texts"], row["supervised"]
        assert (row["row_id"], row["origin"]) == (f"slip/{TASK}/{number}", "slip")
        said = [text.removeprefix("Action: ") for text in texts[1::2]]
        place = learned[1::2].index(False)
        assert sum(learned) == len(goal.gold)
        assert not any(learned[::2])
        assert [*said[:place], *said[place + 1 :]] == list(goal.gold)
        assert said[place] != goal.gold[place]
        first, turns = played(world, TASK, said)
        assert (turns[-1].terminal, turns[-1].reward) == (True, 1)
        assert texts[0::2] == ["Craft.\n" + first, *(turn.observation for turn in turns[:-1])]
        refused.add(turns[place].refused)
    assert number == 39
    assert refused == {False, True}


def test_a_text_to_be_repeated_is_of_known_words():
    """30 texts of 8 to 29 of the words, each said again, which alone is learned from; another seed says others."""
    words = lexicon.words(["craft 4 birch planks using 1 birch logs", "minecraft:birch_planks"])
    assert words == [" birch", " logs", " planks", " using", ":birch", "_planks", "craft", "minecraft"]
    made = list(repeated_rows(words, 30, 1))
    for number, row in enumerate(made):
        assert row["row_id"] == f"repeated/{number}"
        (text,) = set(row["texts"])
        assert row["supervised"] == [False, True]
        found = re.findall(r"[ _:][a-z]+", text)
        assert "".join(found) == text
        assert set(found) <= set(words[:6])
        assert 8 <= len(found) < 30
    assert made == list(repeated_rows(words, 30, 1)) != list(repeated_rows(words, 30, 2))


def test_a_label_is_what_trying_the_step_out_says(world, goal):
    """Good: the gold path's own. Of the others: refused, or the rest of the gold path fails: bad; else uncertain."""
    seen = set()
    for row in judged_rows(world, "textcraft", "Craft.\n", goal, ["get 3 string", "get 9 flint"], 80, 3):
        question, answer = row["texts"]
        label = next(label for label in Label if label is not Label.UNPARSED and label_text(label) == answer)
        said = [part.partition("\nAnswer: ")[0] for part in question.split(": Action: ")[1:]]
        before, last = said[:-1], said[-1]
        assert before == list(goal.gold[: len(before)])  # what stands before is the gold path
        number = len(before)
        if label is Label.GOOD:
            assert last == goal.gold[number]
        else:
            assert last != goal.gold[number]
            in_place = played(world, TASK, [*before, last, *goal.gold[number + 1 :]])[1]
            inserted = played(world, TASK, [*before, last, *goal.gold[number:]])[1]
            fails = {in_place[number].refused or turns[-1].reward < 1 for turns in (in_place, inserted)}
            assert (label is Label.BAD) in fails
        seen.add(label)
        assert row["supervised"] == [False, True]
    assert seen == {Label.GOOD, Label.BAD, Label.UNCERTAIN}


def test_the_same_seed_is_the_same_steps(world, goal):
    for rows in (judged_rows, slip_rows):
        made = [list(rows(world, "textcraft", "", goal, [], 6, seed)) for seed in (1, 1, 2)]
        assert made[0] == made[1] != made[2]


def test_every_word_of_the_tasks_is_a_token(world, goal):
    """Words, instructions and fixed sentences are one token each, and any text is encoded without loss."""
    first, turns = played(world, TASK, goal.gold)
    row = gold_row("textcraft", INSTRUCTIONS["textcraft"], first, turns, TASK)
    told = lexicon.phrases([INSTRUCTIONS["textcraft"]], [first], row["texts"])
    renderer = Renderer(base_models.word_tokenizer(told), "lumos")
    for text, one in ((INSTRUCTIONS["textcraft"], 1), (ACKNOWLEDGED, 1), (" birch", 1), (" boat", 1), ("Action: craft", 1)):
        assert len(renderer.tokenizer(text, add_special_tokens=False).input_ids) == one, text
    for text in row["texts"]:
        assert renderer.decode(renderer.tokenizer(text, add_special_tokens=False).input_ids) == text
    said = lexicon.sentences([first], np.random.default_rng(0))
    assert "".join(said) in first
    assert 0 < len(said) <= lexicon.SAID


def test_prepare_shares_out_the_tasks(tmp_path, monkeypatch):
    """As many as asked for; the demonstrated ones first among those searched; the same again, byte for byte."""
    made = build(tmp_path, {"environments.textcraft.n_demos": 2, "environments.textcraft.n_train": 4})
    monkeypatch.chdir(made.root)
    made.run("prepare")
    train, tests = made.read(GOALS, layout.TRAIN_TASKS), made.read(GOALS, layout.EVAL_TASKS)
    counted = [sum(row[name] for row in train) for name in ("searched", "demonstrated")]
    assert (len(train), *counted, len(tests)) == (4, 4, 2, 3)
    shown = made.read(DIALOGUES, layout.demos("actor"))
    assert {row["task_id"] for row in shown if row["task_id"]} == {row["task_id"] for row in train if row["demonstrated"]}
    bytes_of = [(made.root / path).read_bytes() for path in (layout.TRAIN_TASKS, layout.demos("actor"))]
    made.run("prepare")
    assert bytes_of == [(made.root / path).read_bytes() for path in (layout.TRAIN_TASKS, layout.demos("actor"))]


def test_more_tasks_than_there_are_are_refused(tmp_path, monkeypatch):
    made = build(tmp_path, {"environments.textcraft.n_train": 10_000})
    monkeypatch.chdir(made.root)
    with pytest.raises(ParamsError, match=r"environments\.textcraft: there are [0-9,]+ tasks .*not 10,000: lower n_train"):
        made.run("prepare")


def test_an_optional_environment_that_cannot_run_is_left_out_and_said(root, tmp_path, monkeypatch, capsys):
    """Without Java: the run goes on with what there is; one that is not optional is an error that says what to install."""
    from moat.environments import java
    from moat.environments.base import EpisodeError, EpisodeErrorKind
    from moat.params import yaml

    raw = yaml().load((root / "agent_r/params.yaml").read_text(encoding="utf-8"))
    game = dict(raw["environments"]["cookingworld"]) | {"n_demos": 1, "n_train": 1, "n_eval": 1}

    def missing(*arguments, **named):
        raise EpisodeError(EpisodeErrorKind.MISSING, "textworld_express", "", "Java is missing: install a JRE")

    monkeypatch.setattr(java.Java, "__init__", missing)
    for optional in (True, False):
        made = build(tmp_path / str(optional), {"environments.cookingworld": game | {"optional": optional}})
        made.change({"environments.cookingworld": game | {"optional": optional}, "train_on": ["textcraft", "cookingworld"]})
        monkeypatch.chdir(made.root)
        if optional:
            made.run("prepare")
            assert {row["environment"] for row in made.read(GOALS, layout.TRAIN_TASKS)} == {"textcraft"}
            assert "cookingworld is left out: textworld_express: Java is missing" in capsys.readouterr().out
        else:
            with pytest.raises(EpisodeError, match="Java is missing"):
                made.run("prepare")
