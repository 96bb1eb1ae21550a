"""params.yaml as typed settings: moat/params.py."""

import copy
import io
from pathlib import Path

import pytest
from pydantic import ValidationError
from ruamel.yaml import YAML

from moat.params import PARAMS, Params, ParamsError, check, load, yaml

ROOT = Path(__file__).resolve().parent.parent
TEXT = (ROOT / PARAMS).read_text(encoding="utf-8")


def leaves(node, above=()):
    """Every key that holds no map, as a path."""
    for key, value in node.items():
        yield from leaves(value, (*above, key)) if isinstance(value, dict) and value else [(*above, key)]


PLAIN = YAML(typ="safe", pure=True).load(TEXT)
LEAVES = [path for path in leaves(yaml().load(TEXT)) if path[0] not in ("rounds", "evaluated")]
SETTINGS = [path for path in LEAVES if not path[-2:-1] or not path[-2].endswith("_styles")]  # a style may be left out
SECTIONS = sorted({path[:-1] for path in SETTINGS})


def changed(edit):
    """Checks the contents of the real params.yaml with a function applied to them."""
    data = copy.deepcopy(PLAIN)
    edit(data)
    return check(data, Params, Path(PARAMS))


@pytest.fixture
def replaced(tmp_path):
    """Loads the real params.yaml with one text, which must be in it, put in place of another."""

    def replace(*changes):
        text = TEXT
        for old, new in changes:
            assert old in text
            text = text.replace(old, new, 1)
        (tmp_path / PARAMS).write_text(text, encoding="utf-8")
        return load(tmp_path / PARAMS)

    return replace


def inside(data, path):
    for part in path:
        data = data[part]
    return data


def named(path):
    """A key as the error names it; a model's kind may stand between the section and its key."""
    return r"\.(\w+\.)?".join(map(str, path))


# --- the real file ----------------------------------------------------------------------------------------------------


def test_the_projects_own_file_loads():
    """A few values against the file's own lines."""
    params = load(ROOT / PARAMS)
    assert (params.mode, params.init_from, params.reference, params.data_window) == (
        "joint",
        "previous",
        "previous",
        "round",
    )
    assert params.cold_start["planner"].epochs == 2
    assert params.prepare.sources["stories_travel"].trained is False
    assert params.rounds["1"] == {"prev": "0"}


def test_every_key_is_read_and_every_field_is_there():
    """The file's keys and the settings' are the same, at every depth."""
    assert sorted(map(str, leaves(load(ROOT / PARAMS).model_dump()))) == sorted(map(str, leaves(yaml().load(TEXT))))


def test_settings_cannot_be_changed_after_reading():
    """What a stage read is what the file says, to the end of the stage."""
    with pytest.raises(ValidationError, match="frozen"):
        load(ROOT / PARAMS).pairs.min_gap = 0.3


# --- keys and types ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("section", SECTIONS, ids=lambda s: ".".join(s) or "top")
def test_an_unknown_key_is_named(section):
    """A misspelt key would otherwise leave the default in force: it is an error in every section."""
    with pytest.raises(ParamsError, match=rf"(?m)^  {named((*section, 'zzz'))}: unknown key$"):
        changed(lambda data: inside(data, section).update(zzz=1))


@pytest.mark.parametrize("path", SETTINGS, ids=lambda p: ".".join(map(str, p)))
def test_a_missing_key_is_named(path):
    """There are no defaults: params.yaml says everything that defines a result."""
    with pytest.raises(ParamsError, match=r"missing key|union_tag_not_found|Unable to extract tag") as caught:
        changed(lambda data: inside(data, path[:-1]).pop(path[-1]))
    assert path[-2 if path[-1] == "kind" and path[0] == "base_model" else -1] in str(caught.value)


@pytest.mark.parametrize("path", LEAVES, ids=lambda p: ".".join(map(str, p)))
def test_a_wrong_type_is_named(path):
    """A map where a number, a word or a list belongs: the key is named, and the file."""

    def edit(data):
        inside(data, path[:-1])[path[-1]] = {"oops": 1}

    with pytest.raises(ParamsError, match=named(path[:-1] if path == ("base_model", "kind") else path)) as caught:
        changed(edit)
    assert PARAMS in str(caught.value)


@pytest.mark.parametrize(
    ("old", "new", "key"),
    [
        ("  k: ", "  k: 0 # ", r"sample\.k: .*greater than 0"),
        ("  min_gap: ", "  min_gap: -0.1 # ", r"pairs\.min_gap: .*greater than or equal to 0"),
        ("  beta: ", "  beta: 0 # ", r"align\.beta: .*greater than 0"),
        ("  temperature: 1.0", "  temperature: 0", r"sample\.temperature: .*greater than 0"),
        ("  top_p: 1.0", "  top_p: 1.5", r"sample\.top_p: .*less than or equal to 1"),
        ("mode: joint", "mode: both", r"mode: Input should be 'joint' or 'independent'"),
        ("  score: ppl", "  score: perplexity", r"pairs\.score: Input should be 'ppl', 'nll' or 'executed'"),
        ("steps: [2, 3]", "steps: [2, 5]", r"prepare\.sources\.stories\.steps\.1: .*less than or equal to 4"),
        ("steps: [2, 3]", "steps: []", r"prepare\.sources\.stories\.steps: "),
    ],
)
def test_a_value_out_of_range_is_named(replaced, old, new, key):
    """What is allowed stands in the error."""
    with pytest.raises(ParamsError, match=key):
        replaced((old, new))


def test_every_fault_is_told_at_once(replaced):
    """Three mistakes in three sections, one of them a missing and an unknown key: four lines, to be mended in one go."""
    with pytest.raises(ParamsError, match=r"4 fault") as caught:
        replaced(("mode: joint", "mode: both"), ("  beta: ", "  betta: "), ("  k: ", "  k: many # "))
    for said in ("mode: ", "align.betta: unknown key", "align.beta: missing key", "sample.k: "):
        assert said in str(caught.value)


# --- YAML 1.2 ---------------------------------------------------------------------------------------------------------


@pytest.mark.trap(54)
@pytest.mark.parametrize(("written", "value"), [("2e-4", 2e-4), ("1e-07", 1e-7), ("2.0e-4", 2e-4), ("1E-3", 1e-3)])
def test_an_exponent_makes_a_number(replaced, written, value):
    """PyYAML reads `2e-4`, and DVC's own `1e-07`, as text; here they are floats."""
    assert replaced(("learning_rate: 2.0e-4", f"learning_rate: {written}")).align.learning_rate == value


@pytest.mark.trap(54)
@pytest.mark.parametrize("word", ["on", "off", "yes", "no", "1:30"])
def test_a_word_stays_a_word(replaced, word):
    """YAML 1.1, which PyYAML reads, has True and False for these, and 90."""
    draws = {source.draw for source in replaced(("draw: dev", f"draw: {word}")).prepare.sources.values()}
    assert draws == {word, "dev"}


@pytest.mark.trap(54)
def test_a_round_trip_keeps_quotes_and_comments():
    """The dialect that profiles are written in gives the project's own file back byte for byte."""
    out = io.StringIO()
    yaml().dump(yaml().load(TEXT), out)
    assert out.getvalue() == TEXT


def test_broken_yaml_is_named(tmp_path):
    """A syntax error says which file."""
    (tmp_path / PARAMS).write_text("seed: [0\n", encoding="utf-8")
    with pytest.raises(ParamsError, match=r"params\.yaml is not YAML"):
        load(tmp_path / PARAMS)


@pytest.mark.parametrize(
    ("end", "said"),
    [
        (b"# caf\xe9\n", "line {line}: the byte 0xe9 is not UTF-8"),
        (b"\tx: 1\n", r"'\\t' that cannot start any token \(line {line}, column 1\)$"),
        (b"seed: 1\n", r'duplicate key "seed".* \(line {line}, column 1\)$'),
    ],
    ids=["another encoding", "tab", "key given twice"],
)
def test_the_line_that_cannot_be_read_is_named(tmp_path, end, said):
    """Of our words alone: the parser's own advice is to switch its check off."""
    (tmp_path / PARAMS).write_bytes(TEXT.encode() + end)
    with pytest.raises(ParamsError, match=r"params\.yaml.*" + said.format(line=TEXT.count("\n") + 1)):
        load(tmp_path / PARAMS)


@pytest.mark.parametrize(
    ("key", "old", "written"),
    [
        ("pairs.min_gap", "min_gap: 0.1", 'min_gap: "0.1"'),
        ("pairs.min_gap", "min_gap: 0.1", "min_gap: .inf"),
        ("align.learning_rate", "learning_rate: 2.0e-4", "learning_rate: .nan"),
        ("mix.dedup", "dedup: true", "dedup: yes"),
        ("mix.dedup", "dedup: true", "dedup: 1"),
        ("sample.k", "k: 8", "k: 8.0"),
        ("seed", "seed: 0", "seed: false"),
    ],
)
def test_a_value_of_another_type_is_refused(replaced, key, old, written):
    """What DVC holds for another value is another value: "0.1" is text, and YAML 1.2's yes a word."""
    with pytest.raises(ParamsError, match=rf"  {key}: "):
        replaced((old, written))


def test_whole_numbers_do_for_fractions(replaced):
    """`min_gap: 0` and `epochs: 2` need no decimal point."""
    assert replaced(("min_gap: 0.1", "min_gap: 0")).pairs.min_gap == 0.0


def test_a_missing_file_is_named(tmp_path):
    """And what to do about it."""
    with pytest.raises(FileNotFoundError, match=r"params\.yaml is missing: .*git checkout"):
        load(tmp_path / PARAMS)


@pytest.mark.parametrize("text", ["", "just words\n", "- 1\n"])
def test_a_file_without_keys_is_an_error(tmp_path, text):
    """An empty file is no empty setting."""
    (tmp_path / PARAMS).write_text(text, encoding="utf-8")
    with pytest.raises(ParamsError, match=r"params\.yaml holds no settings"):
        load(tmp_path / PARAMS)


# --- rounds -----------------------------------------------------------------------------------------------------------


def rounds(text):
    """The real file's first lines of rounds, replaced."""
    start, end = TEXT.index("rounds: &rounds\n"), TEXT.index("evaluated:")
    return TEXT[start:end], f"rounds: &rounds\n{text}"


@pytest.mark.trap(46)
@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('  1: {prev: "0"}\n', r"rounds\.1"),
        ('  "1": {prev: 0}\n', r"rounds\.1\.prev"),
        ('  "1": {prev: "0"}\n  "2": {prev: "3"}\n', r'round "2" reads round \'3\', which does not exist'),
        ('  "0": {prev: "0"}\n', r"not '0'"),
        ('  first: {prev: "0"}\n', r"not 'first'"),
        ('  "1": {}\n', r"round \"1\" reads round ''"),
        ('  "1": {prev: "0", next: "2"}\n', r"rounds\.1\.next"),
    ],
)
def test_a_round_that_dvc_would_lose_is_refused(replaced, text, said):
    """Keys are quoted numbers from 1, and prev is quoted and exists: DVC drops the stages of anything else silently."""
    with pytest.raises(ParamsError, match=said):
        replaced(rounds(text))


@pytest.mark.trap(46)
def test_evaluated_is_round_0_and_every_round(replaced):
    """A round that is never evaluated, or an evaluation of a round that is not there, is refused."""
    with pytest.raises(ParamsError, match="evaluated must hold round 0 and every round"):
        replaced(('  "0": {prev: ""}\n', ""))
    with pytest.raises(ParamsError, match="evaluated must hold round 0 and every round"):
        changed(lambda data: data["evaluated"].update({"9": {"prev": "8"}}))


def test_a_line_more_is_a_round_more(replaced):
    """`evaluated` follows by the merge, with nothing else to change."""
    params = replaced(rounds("".join(f'  "{r}": {{prev: "{r - 1}"}}\n' for r in (1, 2, 3, 4))))
    assert set(params.evaluated) == {"0", "1", "2", "3", "4"}


# --- what must fit together -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("edit", "said"),
    [
        (lambda s: s["stories"]["planner_styles"].update(numbers=0.9), "planner_styles must sum to 1"),
        (lambda s: s["stories"]["grounder_styles"].update(vague=0.5), "grounder_styles must sum to 1"),
        (lambda s: s["stories"].update(distractors=[0.5, 0.4]), "distractors must sum to 1"),
        (lambda s: s["stories_travel"].update(trained=True), "travel is held out"),
        (lambda s: s["stories_travel"].update(n_demos=5), "a held-out source has n_train 0 and n_demos 0"),
        (lambda s: s["stories"].update(n_train=s["stories"]["n_demos"] + 1), "n_train cannot exceed n_demos"),
    ],
)
def test_settings_that_contradict_each_other_are_refused(edit, said):
    """The error names the source and the rule."""
    with pytest.raises(ParamsError, match=rf"prepare\.sources\.stories(_travel)?: .*{said}"):
        changed(lambda data: edit(data["prepare"]["sources"]))


def test_a_pretrained_model_has_its_own_keys():
    """kind decides which keys base_model takes; an embedded model's are unknown to a pretrained one."""
    pretrained = {"kind": "pretrained", "name": "models/llama", "revision": "0a1b"}
    assert changed(lambda data: data.update(base_model=pretrained)).base_model.name == "models/llama"
    with pytest.raises(ParamsError, match=r"hidden_size: unknown key"):
        changed(lambda data: data.update(base_model=pretrained | {"hidden_size": 64}))


@pytest.mark.parametrize("kind", ["llm", "executor_then_llm"])
def test_a_critic_that_asks_a_judge_needs_one(kind):
    """The judge and its revision, both; a critic that asks none needs neither."""
    judge = {"kind": kind, "judge": "a/judge", "revision": "0a1b"}
    assert changed(lambda data: data["critic"].update(judge)).critic.judge == "a/judge"
    for missing in ("judge", "revision"):
        with pytest.raises(ParamsError, match=rf"critic: .*kind {kind} asks a judge model"):
            changed(lambda data, missing=missing: data["critic"].update(judge | {missing: ""}))
    for other in ("executor", "none"):
        assert (
            changed(lambda data, other=other: data["critic"].update(kind=other, judge="", revision="")).critic.kind == other
        )


def test_what_deviates_has_another_value_than_the_papers():
    """A line marked `deviates` that ends in the paper's number does not hold that number."""
    for line in TEXT.splitlines():
        head, _, said = line.partition("# deviates")
        paper = said.rpartition("aper: ")[2].strip()
        if said and paper.replace(".", "").replace("e-", "").isdigit():
            assert float(head.split(":")[1]) != float(paper), line


def test_the_settings_know_no_key_that_the_file_lacks():
    """Every top-level field stands in the file (a section's fields are asked for one by one above)."""
    assert set(Params.model_fields) == set(yaml().load(TEXT))


def test_every_setting_says_what_it_is():
    """A line with a value has a comment; of the rounds, the comment stands above."""
    body = TEXT[TEXT.index("prepare:") :]
    for line in TEXT[: TEXT.index("rounds: &rounds")].splitlines() + body.splitlines():
        value = line.partition(":")[2].strip()
        assert not value or "#" in line, line
