"""The page of a run: moat/report.py, moat/charts.py and stages/report.py."""

import json
import math
import re
from html.parser import HTMLParser
from pathlib import Path

import polars as pl
import pytest

from moat import layout, params
from moat.machine import Machine
from moat.report import (
    beside_the_paper,
    charts,
    compared,
    control_note,
    learned,
    learning,
    pick_examples,
    read_calibration,
    render,
    steps,
)
from moat.reporting import Deviation, ReportError, deviations, number, percent, points, read_metrics
from moat.schemas.actions import ACTIONS
from moat.schemas.critiques import CRITIQUES
from moat.schemas.dynamics import DYNAMICS
from moat.schemas.evals import EVALS
from moat.schemas.pairs import PAIRS
from moat.schemas.scores import SCORES
from moat.schemas.sft import SFT
from moat.schemas.subgoals import SUBGOALS
from moat.schemas.tasks import TASKS
from moat.stage import Stage
from moat.summary import comparisons, evaluation, pairs_near_gap, round_block, tidy
from stages import report as stage_report
from tests.rows import task

ROOT = Path(__file__).resolve().parent.parent
K = 4
HOSTILE = "<script>alert('x')</script> & \"quotes\""
PLANS = (
    "Subgoal 1: Add 5 to 14; Subgoal 2: Multiply the result by 3",
    "Subgoal 1: Add what comes in; Subgoal 2: Multiply what there is",
    "Subgoal 1: Find the next amount; Subgoal 2: Find the last amount",
    f"Subgoal 1: {HOSTILE}",
)
GOLD = "R1 = Calculator(14 + 5); R2 = Calculator(R1 * 3)"
CALIBRATION = {"critic": "executor", "n": 40, "agreement": 0.875, "low": 0.739, "high": 0.9454} | {
    "right_accepted": 1.0,
    "wrong_accepted": 0.25,
    "forms": [
        {"form": "merged", "right": True, "n": 20, "accept": 20, "correct": 0, "reject": 0, "unparsed": 0},
        {"form": "missing_step", "right": False, "n": 20, "accept": 5, "correct": 12, "reject": 2, "unparsed": 1},
    ],
}


def tasks_of(n):
    return [
        task(
            f"t{i:02d}",
            text=f"{HOSTILE} Ada has 14 apples. Ada buys 5. the pile grows 3-fold. How many, number {i}?",
            gold_actions=GOLD,
            gold_answer="57",
        )
        for i in range(n)
    ]


def candidate_tables(ids):
    """Subgoals, scores, actions and critiques; k = 0 reaches the answer, k = 3 has no score and no actions."""
    subgoals, scores, actions, critiques = [], [], [], []
    for i, task_id in enumerate(ids):
        for k in range(K):
            dropped = "length" if k == 3 else None
            subgoals.append(
                {
                    "task_id": task_id,
                    "k": k,
                    "subgoals": PLANS[k],
                    "finish_reason": "length" if dropped else "stop",
                    "n_tokens": 12,
                    "logprob": -2.0,
                    "seed": k,
                    "dropped": dropped,
                }
            )
            if dropped:
                continue
            nll = 0.1 + (2 - k) * 0.3 if i % 2 else 0.1 + k * 0.3
            scores.append({"task_id": task_id, "k": k, "nll": nll, "ppl": math.exp(nll), "n_action_tokens": 20})
            reached = k == 0
            actions.append(
                {
                    "task_id": task_id,
                    "k": k,
                    "actions": GOLD if reached else "R1 = Calculator(14 /",
                    "finish_reason": "stop",
                    "outcome": "reached" if reached else "syntax",
                    "answer": "57" if reached else None,
                    "message": "" if reached else f"a bracket never closes: {HOSTILE}",
                }
            )
            critiques.append(
                {
                    "task_id": task_id,
                    "k": k,
                    "verdict": "accept" if reached else "correct",
                    "corrected_actions": None if reached else GOLD,
                    "corrected_subgoals": None,
                    "reason": "executed",
                }
            )
    return {"subgoals": subgoals, "scores": scores, "actions": actions, "critiques": critiques}


def pair_row(task_id, dropped=None, with_plans=True):
    low, high = 0.1, 0.7
    plans = {
        "chosen_k": 0,
        "rejected_k": 2,
        "chosen": PLANS[0],
        "rejected": PLANS[2],
        "chosen_nll": low,
        "rejected_nll": high,
        "chosen_ppl": math.exp(low),
        "rejected_ppl": math.exp(high),
    }
    row = {"task_id": task_id, "n_candidates": 3, "n_distinct": 3, "dropped": dropped}
    return row | (plans if with_plans else dict.fromkeys(plans))


def eval_rows(n, reached):
    return [
        {
            "task_id": f"e{i:02d}",
            "source": "stories" if i % 2 else "stories_travel",
            "trained": bool(i % 2),
            "metric": "number",
            "text": "How many?",
            "gold_actions": GOLD,
            "gold_answer": "57",
            "subgoals": PLANS[i % 3],
            "actions": GOLD,
            "turns": [],
            "n_turns": 1,
            "score": float(i < reached),
            "f1": None,
            "element": None,
            "outcome": "reached" if i < reached else "not_reached",
            "answer": "57",
            "success": i < reached,
            "nll": 0.2,
            "samples": [PLANS[0], PLANS[1]],
            "samples_nll": [0.2, 0.4],
            "control_task_id": "e00",
            "control_outcome": "reached" if i < 3 else "not_reached",
            "control_nll": 0.9,
        }
        for i in range(n)
    ]


def dynamics_rows(aligned=True):
    """Figures of a round: 120 updates of the grounder, and two of the planner unless it was not aligned."""
    found = {("grounder", "updates", 0): 120.0, ("samples", "entropy", 0): 0.25, ("planner", "updates", 0): 2.0 * aligned}
    found |= {("grounder", "loss", n): 1 / n for n in range(1, 121)}
    if aligned:
        found |= {("planner", name, n): -float(n) for name in ("logps/chosen", "logps/rejected", "loss") for n in (1, 2)}
    return [{"part": p, "name": name, "update": n, "value": value} for (p, name, n), value in found.items()]


def write_run(folder):
    """A whole run's tables and metrics.json under `folder`, in which the current folder lies."""
    (folder / "params.yaml").write_text((ROOT / "params.yaml").read_text(encoding="utf-8"), encoding="utf-8")
    settings = params.load(folder / "params.yaml")
    ids = [row["task_id"] for row in tasks_of(14)]
    TASKS.write(layout.TRAIN_TASKS, tasks_of(14), {})
    pairs = [pair_row(i) for i in ids[:8]] + [pair_row(i, "gap below min_gap") for i in ids[8:12]]
    pairs += [pair_row(i, "all candidates equal", with_plans=False) for i in ids[12:]]
    sft = {
        "row_id": "accepted-1-t00-0",
        "origin": "accepted",
        "round": 1,
        "task_id": "t00",
        "k": 0,
        "demo_id": None,
        "source": "stories",
        "domain": "arithmetic",
        "text": "How many?",
        "turn": None,
        "turns": [],
        "subgoals": PLANS[0],
        "actions": GOLD,
    }
    rows = candidate_tables(ids) | {"pairs": pairs, "sft": [sft], "dynamics": dynamics_rows()}
    rounds, evals = {}, {}
    for key in sorted(settings.evaluated, key=int):
        EVALS.write(layout.evals(key), eval_rows(20, 8 + 3 * int(key)), {})
        evals[key] = EVALS.read(layout.evals(key))
        block = evaluation(evals[key])
        if key in settings.rounds:
            read = {}
            for schema in (SUBGOALS, SCORES, ACTIONS, PAIRS, CRITIQUES, SFT, DYNAMICS):
                schema.write(layout.table(schema.name, key), rows[schema.name], {})
                read[schema.name] = schema.read(layout.table(schema.name, key))
            block |= round_block(TASKS.read(layout.TRAIN_TASKS), min_gap=0.1, **read)
            block["pairs_near_gap"] = pairs_near_gap(read["pairs"], 0.1, {"n": 64, "nll": 1e-7, "ppl": 1e-6})
        rounds[key] = tidy(block)
    for key, found in comparisons(evals, {key: entry["prev"] for key, entry in settings.rounds.items()}).items():
        rounds[key]["comparison"] = tidy(found)
    layout.METRICS.write_text(json.dumps({"rounds": rounds, "final": {}}), encoding="utf-8")
    layout.CALIBRATION.write_text(json.dumps(CALIBRATION), encoding="utf-8")
    return Stage("report", settings, Machine(), folder)


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    """The page of a synthetic run, rendered twice: its bytes both times."""
    folder = tmp_path_factory.mktemp("run")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        stage = write_run(folder)
        stage_report.run(stage)
        first = layout.REPORT.read_bytes()
        stage_report.run(stage)
        return first, layout.REPORT.read_bytes()


class Checker(HTMLParser):
    """Collects elements, ids and text, and whether every element is closed in order."""

    VOID = frozenset({"meta", "br", "link", "img", "hr", "input"})

    def __init__(self):
        super().__init__(convert_charrefs=True)
        self.open, self.faults, self.tags, self.attributes, self.text = [], [], [], [], []

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        if not self.open or self.open.pop() != tag:
            self.faults.append(f"{tag} at {self.getpos()}")

    def handle_data(self, data):
        self.text.append(data)


@pytest.fixture(scope="module")
def parsed(page):
    checker = Checker()
    checker.feed(page[0].decode())
    checker.close()
    return checker


# --- the page --------------------------------------------------------------------------------------------------------


def test_equal_inputs_give_equal_bytes(page):
    assert page[0] == page[1]


def test_every_element_is_closed_in_order(parsed):
    assert (parsed.faults, parsed.open) == ([], [])


def test_ids_are_unique_and_references_have_a_target(page, parsed):
    ids = [attrs["id"] for _, attrs in parsed.tags if "id" in attrs]
    assert len(ids) == len(set(ids))
    assert set(re.findall(r'(?:url\(#|href="#)([^)"]+)', page[0].decode())) <= set(ids)


def test_nothing_is_loaded_from_anywhere(page, parsed):
    text = page[0].decode()
    assert "http://" not in text
    assert "https://" not in text
    assert not {tag for tag, _ in parsed.tags} & {"script", "link", "img", "iframe", "object"}
    assert all(attrs.get("href", "#").startswith("#") for _, attrs in parsed.tags)


def test_what_tasks_and_models_wrote_is_text(page, parsed):
    assert b"<script" not in page[0]
    assert "".join(parsed.text).count(HOSTILE) >= 10


def test_ten_tasks_are_shown_with_all_their_candidates(parsed):
    assert sum("card" in attrs.get("class", "").split() for _, attrs in parsed.tags) == 10
    rows = [attrs["class"] for tag, attrs in parsed.tags if tag == "tr" and "class" in attrs]
    assert len(rows) == 10 * K
    assert rows.count("chosen") == rows.count("rejected") == 7  # three of the ten examples have no kept pair


def test_candidates_stand_by_ppl_and_those_without_a_score_last(parsed):
    text = " ".join(" ".join(parsed.text).split())
    shown = [float(value) for value in re.findall(r"critic (\d\.\d{3}) ", text)]
    assert shown == [1.105] * 10  # exp(0.1) leads every card, whichever k it is
    assert text.count("goes no further: length") == 10


def test_every_section_of_the_page_is_there(parsed):
    text = " ".join(" ".join(parsed.text).split())
    for words in (
        "init_from previous",
        "align.nll_weight",
        "gap reached, were it in NLL",
        "dropped: gap below min_gap",
        "rank correlation within tasks",
        "Given another task's plan",
        "How the rounds learned",
        "samples: entropy, nats per token 0.250 0.250",
        "Examples of round 2",
    ):
        assert words in text
    assert sum(tag == "svg" for tag, _ in parsed.tags) == 5 + 3  # over rounds, and over updates


def test_the_critics_calibration_is_shown(parsed):
    """The sentence with its figures, and each form with its verdicts in their order."""
    text = " ".join(" ".join(parsed.text).split())
    assert "the critic executor agrees with the truth on 87.5% (95% interval 73.9–94.5)" in text
    assert "accepts 100.0% of what is right and 25.0% of what is wrong" in text
    assert "merged right 20 20 missing step wrong 20 5 12 2 1" in text


def test_sources_are_shown_by_their_metric(parsed):
    """Round 0 solves 8 of 20 tasks, 4 of each source; both averages; nothing beside a metric that has nothing."""
    text = " ".join(" ".join(parsed.text).split())
    assert "stories 0 10 number 40.0 (16.8–68.7) 0 parse, 0 execution 10.0" in text
    assert "Averages over task sources" in text
    assert "held-out, weighted by tasks, % 0 40.0 40.0 40.0 40.0 1" in text


def test_rounds_are_compared_on_the_same_tasks(parsed):
    """Round 2 solves 14 tasks of 20, among them the 8 of round 0: six turned right, p = 2 / 64."""
    text = " ".join(" ".join(parsed.text).split())
    assert re.search(r"2 0 all tasks 20 40\.0 70\.0 \+30\.0 \(\+\d+\.\d to \+\d+\.\d\) 6 0 0\.031", text)
    assert re.search(r"2 1 stories_travel 10 60\.0 70\.0 ", text)


def test_pairs_near_the_gap_are_counted(parsed):
    """Their gap is far from it: none."""
    text = " ".join(" ".join(parsed.text).split())
    assert text.count("gap in PPL within noise of min_gap: kept, dropped 0, 0") == 2


def test_a_base_model_that_the_paper_has_not_is_said_in_a_line(parsed):
    text = " ".join(" ".join(parsed.text).split())
    assert "Beside the paper The paper has no figures for this base model, so none stand beside this run's." in text


def scored(**scores):
    return {"sources": {source: {"score": score} for source, score in scores.items()}}


def test_our_rows_stand_below_the_papers_of_the_same_base_model():
    """In the paper's order; what was not evaluated is missing, and so is its average."""
    rounds = {"0": scored(gsm8k=0.25, stories=1.0), "1": scored(gsm8k=0.5, mind2web=0.25, strategyqa=0.75, stories=1.0)}
    rows = beside_the_paper("mistralai/Mistral-7B-v0.2", rounds)
    assert [row.method for row in rows] == ["Agent Lumos", "MOAT", "this run, cold start", "this run, round 1"]
    assert (rows[1].values["SVAMP"], rows[2].values["GSM8K"], rows[2].held_in, rows[3].held_in) == (73.7, 25.0, None, 50.0)
    assert beside_the_paper("mistralai/Mistral-7B-v0.1", rounds) == []


def test_the_papers_rows_are_on_the_page_of_its_base_model(tmp_path, monkeypatch):
    """A whole page of the same run, told that its base model is the paper's; held-out sources of other names are dashes."""
    monkeypatch.chdir(tmp_path)
    stage = write_run(tmp_path)
    rounds = read_metrics(layout.METRICS, sorted(stage.params.evaluated, key=int))["rounds"]
    context = {"facts": [], "deviations": [], "calibration": CALIBRATION, "cards": [], "last": None}
    checker = Checker()
    checker.feed(render(context, rounds, {}, "Qwen/Qwen2.5-14B"))
    text = " ".join(" ".join(checker.text).split())
    assert "MOAT 82.4 32.6 55.3 56.8 87.4 65.8 28.0 60.4 this run, cold start – – – – – – – –" in text
    assert "Percent, on Qwen/Qwen2.5-14B." in text
    assert checker.faults == []


def test_one_source_is_not_compared_twice():
    """The row of all tasks would be that of the one source; metrics of an older run have no comparison."""
    found = {"all": {"n": 3}, "sources": {"stories": {"n": 3}}}
    assert compared({"0": {}, "1": {"comparison": {"0": found}}}) == [
        {"round": "1", "against": "0", "of": "stories", "n": 3},
    ]
    found["sources"]["travel"] = {"n": 0}
    assert [row["of"] for row in compared({"1": {"comparison": {"0": found}}})] == ["all tasks", "stories", "travel"]


def test_a_difference_has_its_sign():
    assert [points(value) for value in (0.3, -0.0125, 0.0)] == ["+30.0", "−1.2", "+0.0"]


def test_a_calibration_of_another_shape_is_refused(tmp_path):
    path = tmp_path / "calibration.json"
    for text, words in (("[", "is not what"), ('{"critic": "none"}', "lacks agreement, forms, high, low, n")):
        path.write_text(text, encoding="utf-8")
        with pytest.raises(ReportError, match=words):
            read_calibration(path)
    with pytest.raises(FileNotFoundError, match="dvc repro calibrate_critic"):
        read_calibration(tmp_path / "none.json")


def test_a_round_without_metrics_is_named(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    layout.METRICS.write_text('{"rounds": {"0": {}}}', encoding="utf-8")
    with pytest.raises(ReportError, match=r"metrics\.json lacks the rounds 1, 2"):
        read_metrics(layout.METRICS, ["0", "1", "2"])


def test_metrics_of_another_shape_are_refused(tmp_path):
    (tmp_path / "metrics.json").write_text("[]", encoding="utf-8")
    with pytest.raises(ReportError, match="not what summarize writes"):
        read_metrics(tmp_path / "metrics.json", ["0"])


# --- deviations ------------------------------------------------------------------------------------------------------


def test_deviations_are_read_with_path_value_and_reason():
    text = """
a:                # section
  b:
    c: 0.5        # deviates: a tiny model. Paper: 2e-5
  "d": true       # deviates. Paper: 2
  e: 1            # says that it deviates
# deviates: a line of its own
f: [1, 2]         # deviates: on top
"""
    assert deviations(text) == [
        Deviation("a.b.c", "0.5", "a tiny model. Paper: 2e-5"),
        Deviation("a.d", "true", "Paper: 2"),
        Deviation("f", "[1, 2]", "on top"),
    ]


def test_every_deviation_of_the_project_is_found():
    text = (ROOT / "params.yaml").read_text(encoding="utf-8")
    assert len(deviations(text)) == len(re.findall(r"# deviates\b", text))


# --- examples --------------------------------------------------------------------------------------------------------


def test_examples_do_not_depend_on_the_order_of_rows():
    rows = [pair_row(f"t{i}") for i in range(30)] + [pair_row(f"d{i}", "gap") for i in range(9)]
    one, two = pl.DataFrame(rows), pl.DataFrame(rows[::-1])
    assert pick_examples(one) == pick_examples(two)
    assert sum(name.startswith("d") for name in pick_examples(one)) == 3


@pytest.mark.parametrize(("kept", "dropped", "n"), [(30, 0, 10), (0, 30, 10), (2, 3, 5), (9, 30, 10), (0, 0, 0)])
def test_one_kind_fills_up_for_the_other(kept, dropped, n):
    rows = [pair_row(f"t{i}") for i in range(kept)] + [pair_row(f"d{i}", "gap") for i in range(dropped)]
    table = pl.DataFrame(rows, schema={column.name: None for column in PAIRS.columns} if not rows else None)
    assert len(set(pick_examples(table))) == n


# --- learning dynamics -------------------------------------------------------------------------------------------------


def test_a_logged_figure_is_shown_by_its_ends():
    """A round that has no such figure (the planner was not aligned) shows a dash; a figure of no round has no row."""
    one = {"dynamics": {"planner": {"updates": 2.0, "loss": {"first": 0.75, "last": 0.5}}}}
    other = {"dynamics": {"planner": {"updates": 0.0}}}
    assert learned({"0": {}, "1": one, "2": other}) == [
        {"name": "planner: updates", "values": {"1": "2", "2": "0"}},
        {"name": "planner: loss", "values": {"1": "0.750 → 0.500", "2": "–"}},
    ]
    assert learned({"0": {}}) == []


def test_updates_that_never_happened_are_not_drawn():
    """Without an aligned planner there is the grounder's curve alone; the note counts the updates of each round."""
    tables = {key: pl.DataFrame(dynamics_rows(aligned=False)) for key in ("1", "2")}
    drawn = learning(tables)
    assert [chart["title"] for chart in drawn] == ["Grounder: loss"]
    assert "round 1 120, round 2 120. A point is the mean of up to 3 of them." in drawn[0]["note"]
    assert learning({}) == []


def test_updates_run_from_left_to_right():
    """A loss that falls is drawn from the upper left to the lower right (an SVG's y grows downwards), with numbers below."""
    drawn = learning({"1": pl.DataFrame(dynamics_rows(aligned=False))})[0]["svg"]
    (curve,) = re.findall(r'<path d="([^"]+)"[^>]*style="[^"]*var\(--c1\)', drawn)
    points = [tuple(map(float, point.split())) for point in re.split("[ML]", curve)[1:]]
    assert points[0][0] < points[-1][0]
    assert points[0][1] < points[-1][1]
    assert re.search(r"<text[^>]*>60</text>", drawn)


# --- words and numbers -----------------------------------------------------------------------------------------------


def block(own, other):
    return {"success": own, "control_success": other}


def test_a_shrinking_distance_is_said():
    first = block(0.5, 0.1)
    assert "relies less on the plan" in control_note("1", block(0.6, 0.3), first)
    assert "relies less" not in control_note("1", block(0.7, 0.1), first)
    assert "relies less" not in control_note("0", first, first)


def test_numbers_that_were_not_measured_are_dashes():
    assert (percent(None), number(None)) == ("–", "–")
    assert (percent(0.1234), percent(0.5, ""), number(2.5), number(1234567.0)) == ("12.3%", "50.0", "2.500", "1.23e+06")


def test_plans_and_actions_are_shown_one_step_a_line():
    assert steps("Subgoal 1: a; b; Subgoal 2: c") == "Subgoal 1: a; b;\nSubgoal 2: c"
    assert steps("R1 = Calculator(1); R2 = R1") == "R1 = Calculator(1);\nR2 = R1"
    assert steps(None) == ""


def test_a_run_without_rounds_has_the_cold_start_alone():
    only = {"0": {"success": 0.5, "success_low": 0.4, "success_high": 0.6, "control_success": 0.1, "ppl_gold": None}}
    drawn = charts(only)
    assert [chart["title"] for chart in drawn] == ["Success", "PPL of the gold actions"]


def test_dollar_signs_in_a_name_are_no_formula():
    premise = {"a$x_1$<b>": {"auc": 0.7}}
    tuned = {"distinct_share": 0.4, "sample_styles": {"vague": 1.0}, "premise": premise}
    drawn = charts({"1": block(0.5, 0.1) | {"success_low": 0.4, "success_high": 0.6, "ppl_gold": 1.2} | tuned})
    assert "<b>" not in drawn[-1]["svg"]


def test_the_readme_lists_every_deviation(root):
    """Each key that params.yaml marks has its line in the README's table, with the value of now."""
    lines = [line for line in (root / "README.md").read_text().splitlines() if line.startswith("| `")]
    for deviation in deviations((root / "params.yaml").read_text()):
        (line,) = [line for line in lines if f"`{deviation.key}`" in line]
        assert line.split(" | ")[1] == deviation.value
    assert sum(line.count("`") // 2 for line in lines) == len(deviations((root / "params.yaml").read_text()))
