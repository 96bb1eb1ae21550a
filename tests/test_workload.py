"""What a run will do, counted before it is run: moat/workload.py."""

from pathlib import Path

import pytest

from moat import params, training
from moat.params import Params
from moat.workload import EMBEDDED, JUDGE_PROMPT, LENGTHS, THOUGHT, Workload, _updates

ROOT = Path(__file__).resolve().parent.parent


def profile(name, **changes):
    """A profile with dotted keys (with __ for dots) changed."""
    raw = params.load(ROOT / "profiles" / f"{name}.yaml").model_dump(exclude_unset=True)
    for key, value in changes.items():
        *above, last = key.split("__")
        node = raw
        for part in above:
            node = node[part]
        node[last] = value
    return params.check(raw, Params, Path(name))


def by_stage(load):
    """Works by stage, round and role."""
    return {(work.label, work.role): work for work in load.all()}


@pytest.mark.trap(8)
@pytest.mark.parametrize("name", ["paper_llama2_7b", "paper_mistral_7b", "paper_qwen25_14b"])
def test_the_papers_profiles_sample_27000_candidates_a_round(name):
    """|D| × K = 1,800 × 15, and × N = 54,000 in two rounds; K = 5 gives 9,000."""
    load = Workload(profile(name))
    assert (load.tasks, load.candidates, len(load.params.rounds)) == (1800, 27_000, 2)
    assert Workload(profile(name, sample__k=5)).candidates == 9_000


def test_step_by_step_tasks_are_as_many_rows_as_they_have_steps():
    """Mind2Web's 200 tasks of 7.3 steps are 1,460 rows, 15 requests each, and count as 200 in |D|."""
    load = Workload(profile("paper_llama2_7b"))
    assert load.rows == 1300 + 300 + 1460
    assert by_stage(load)["sample@1", "planner"].requests == 3060 * 15


def test_the_default_profile_by_hand():
    """600 tasks, K = 8, lengths of the embedded tokenizer."""
    found = by_stage(Workload(profile("tiny")))
    one = EMBEDDED
    assert {label for label, _ in found} == {
        *("cold_start@planner", "cold_start@grounder", "evaluate@0", "evaluate@1", "evaluate@2"),
        *(
            f"{stage}@{key}"
            for stage in ("sample", "score", "ground", "pairs", "align_planner", "critique", "mix")
            for key in "12"
        ),
        *("train_grounder@1", "train_grounder@2"),
    }
    sample = found["sample@1", "planner"]
    assert (sample.rows, sample.requests, sample.answers) == (4800, 4800, 4800)
    assert (sample.prompt, sample.generated) == (4800 * one.planner, 4800 * one.plan)
    assert found["score@1", "grounder"].scored == 4800 * (one.grounder + one.plan + one.actions)
    assert found["cold_start@planner", "planner"].trained == 2 * 4000 * (one.planner + one.plan)
    assert found["cold_start@grounder", "grounder"].updates == 2 * 4000 / 16
    assert found["align_planner@1", "reference"].requests == 1200
    assert found["align_planner@1", "planner"].updates == 38  # of 600 pairs at most, in batches of 16
    assert found["align_planner@1", "planner"].sequences == 2
    assert found["train_grounder@1", "grounder"].rows == 2 * 4800  # candidates and as many demonstrations
    # 450 tasks: a plan as it is used, 4 drawn; actions of its own plan and of another's; 6 plans scored
    assert found["evaluate@0", "planner"].requests == 450 * 5
    assert found["evaluate@0", "grounder"].requests == 450 * (2 + 6)
    assert found["critique@1", ""].requests == 0


def test_iterative_planning_counts_turns():
    """A row is a turn: 2.5 of a story. The planner's demonstrations have the decision to stop besides."""
    load = Workload(profile("tiny", planning="iterative"))
    assert (load.rows, load.candidates) == (1500, 1500 * 8)
    found = by_stage(load)
    assert found["cold_start@planner", "planner"].rows == 4000 * 3.5
    assert found["cold_start@grounder", "grounder"].rows == 4000 * 2.5
    assert found["evaluate@1", "planner"].rows == 450
    assert found["evaluate@1", "planner"].requests == round(450 * 2.5) * 6  # decoded, 4 drawn, and played


def test_a_judge_is_asked_about_every_candidate_at_most():
    """Its instructions, the data and an answer with its thinking; under the executor nobody is asked."""
    load = Workload(profile("paper_llama2_7b"))
    asked = by_stage(load)["critique@1", "critic"]
    assert (asked.requests, asked.at_most) == (45_900, True)
    assert asked.prompt > 45_900 * JUDGE_PROMPT
    assert asked.generated == 45_900 * THOUGHT
    assert by_stage(load)["calibrate_critic", "critic"].requests == 224
    short = by_stage(Workload(profile("paper_llama2_7b", critic__max_new_tokens=100)))
    assert short["critique@1", "critic"].generated == 45_900 * 100


def test_a_reader_is_asked_by_questions_alone():
    """StrategyQA trains (300 tasks × 15 × 2 questions), HotpotQA is evaluated on too."""
    found = by_stage(Workload(profile("paper_llama2_7b")))
    assert found["ground@1", "reader"].requests == 300 * 15 * 2
    assert found["evaluate@1", "reader"].requests == (229 + 100) * 2 * 2
    without = Workload(profile("paper_llama2_7b", tools__qa__reader=""))
    assert not any(work.role == "reader" for work in without.all())


def test_the_ablations_are_left_out():
    """What is switched off has no work; independent training has the joint run's updates on its own demonstrations."""
    joint = by_stage(Workload(profile("tiny")))
    off = by_stage(Workload(profile("tiny", align__enabled=False, train_grounder__enabled=False)))
    assert not {label for label, _ in off} & {"align_planner@1", "train_grounder@1"}
    alone = by_stage(Workload(profile("tiny", mode="independent", independent__factor=3)))
    assert ("align_planner@1", "reference") not in alone
    for key in (("align_planner@1", "planner"), ("train_grounder@1", "grounder")):
        assert alone[key].updates == 3 * joint[key].updates
        assert alone[key].rows == 4000
    chosen = by_stage(Workload(profile("tiny", align__loss="sft_chosen")))
    assert chosen["align_planner@1", "planner"].sequences == 1
    assert 2 * chosen["align_planner@1", "planner"].trained == joint["align_planner@1", "planner"].trained


def test_a_window_over_all_rounds_grows():
    """The second round trains on both rounds' candidates."""
    found = by_stage(Workload(profile("tiny", data_window="all")))
    assert found["mix@2", ""].rows == 2 * found["mix@1", ""].rows


@pytest.mark.parametrize(
    ("rows", "batch", "epochs"), [(600, 16, 1), (601, 16, 2), (1, 128, 2), (128, 128, 0.5), (1000, 7, 1.5)]
)
def test_updates_are_the_trainers(rows, batch, epochs):
    settings = params.load(ROOT / "params.yaml").train_grounder.model_copy(update={"batch_size": batch, "epochs": epochs})
    assert _updates(settings, rows) == training.updates_for(settings, rows)


def test_every_importer_has_lengths():
    """The most specific that a name begins with."""
    from moat.sources.registry import IMPORTERS
    from moat.workload import _kind

    source = params.load(ROOT / "profiles" / "paper_llama2_7b.yaml").prepare.sources["gsm8k"]
    for name in IMPORTERS:
        own = source.model_copy(update={"train": source.train.model_copy(update={"importer": name})})
        assert name.startswith(_kind(own))
    assert _kind(source, demos=True) == "lumos_maths"
    assert LENGTHS[_kind(source)] is LENGTHS["gsm8k"]
