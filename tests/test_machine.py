"""machine.yaml, which says where a run happens: moat/machine.py."""

import json
from pathlib import Path

import pytest
from ruamel.yaml import YAML

from moat import params
from moat.machine import MACHINE, VLLM, Machine, RoleEngine, load, scratch
from moat.params import ParamsError
from moat.stage import Stage

ROOT = Path(__file__).resolve().parent.parent


def test_no_file_means_the_defaults(tmp_path):
    """This computer: one process, one thread, the hf engine, whatever device there is."""
    found = load(tmp_path)
    assert (found.engine, found.device, found.dtype, found.processes, found.threads) == ("hf", "auto", "auto", 1, 1)


@pytest.mark.parametrize("text", ["", "# nothing but a comment\n"])
def test_an_empty_file_means_the_defaults(tmp_path, text):
    """A file that says nothing changes nothing."""
    (tmp_path / MACHINE).write_text(text, encoding="utf-8")
    assert load(tmp_path) == Machine()


def test_the_example_shows_every_key_with_its_default():
    """machine.example.yaml, copied unchanged, is the same machine; each line has a sentence."""
    text = (ROOT / "machine.example.yaml").read_text(encoding="utf-8")
    raw = YAML(typ="safe", pure=True).load(text)
    assert raw == Machine().model_dump()
    assert all("#" in line for line in text.splitlines() if line.strip())


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("treads: 2\n", r"treads: unknown key"),
        ("threads: many\n", r"threads: "),
        ("threads: 0\n", r"threads: .*greater than or equal to 1"),
        ("micro_batch: 0\n", r"micro_batch: "),
        ("engine: ray\n", r"engine: Input should be 'hf' or 'vllm'"),
        ("copies: 0\n", r"copies: .*greater than or equal to 1"),
        ("vllm: {memory: 90}\n", r"vllm\.memory: .*less than or equal to 1"),
        ("vllm: {max_tokens: 9}\n", r"vllm\.max_tokens: unknown key"),
        ("dtype: float16\n", r"dtype: Input should be 'auto', 'float32' or 'bfloat16'"),
        ("device: [cpu\n", r"is not YAML"),
        ("device_memory: 0\n", r"device_memory: .*greater than 0"),
        ("- cpu\n", r"holds no settings"),
        ("# caf\xe9\n", r"line 1: the byte 0xe9 is not UTF-8"),
        ('scratch: ""\n', r"scratch: .*at least 1"),
    ],
)
def test_a_fault_is_named(tmp_path, text, said):
    """File and key, as for params.yaml."""
    (tmp_path / MACHINE).write_bytes(text.encode("latin-1"))
    with pytest.raises(ParamsError, match=rf"(?s)machine\.yaml.*{said}"):
        load(tmp_path)


@pytest.mark.parametrize(
    ("own", "said"),
    [
        ("{engine: hf, url: 'http://a'}", r"engines\.critic: .*url: for engine openai alone, not for hf"),
        ("{engine: hf, concurrency: 4}", r"engines\.critic: .*concurrency: for engine openai alone, not for hf"),
        ("{engine: hf, memory: 0.4}", r"engines\.critic: .*memory: for engine vllm alone, not for hf"),
        ("{engine: vllm, url: 'http://a'}", r"engines\.critic: .*url: for engine openai alone, not for vllm"),
        ("{engine: openai, url: 'http://a', copies: 2}", r"engines\.critic: .*copies: for engine hf and vllm alone"),
        ("{engine: openai}", r"engines\.critic: .*url: missing"),
        ("{url: 'http://a'}", r"engines\.critic\.engine: missing key"),
        ("{engine: ray}", r"engines\.critic\.engine: Input should be 'hf', 'vllm' or 'openai'"),
        ("{engine: openai, url: 'http://a/v1/'}", r"engines\.critic: .*url: write it without /v1"),
        ("{engine: openai, url: 'http://me:sk-5ecret@a'}", r"engines\.critic\.url: String should match"),
        ("{engine: openai, url: 'http://a?key=sk-5ecret'}", r"engines\.critic\.url: String should match"),
        ("{engine: openai, url: 'ftp://a'}", r"engines\.critic\.url: String should match"),
        ("{engine: openai, url: 'http://a', key: sk-5ecret}", r"engines\.critic\.key: unknown key"),
        ("{engine: openai, url: 'http://a', key_env: sk-5ecret}", r"engines\.critic\.key_env: String should match"),
        ("{engine: openai, url: 'http://a', key_env: A, key_file: b}", r"engines\.critic: .*key_env, key_file: set one"),
        ("{engine: openai, url: 'http://a', score: true}", r"engines\.critic\.score: nothing of a critic is scored"),
        ("{engine: openai, url: 'http://a', attempts: 0}", r"engines\.critic\.attempts: .*greater than or equal to 1"),
        ("{engine: openai, url: 'http://a', timeout: 0}", r"engines\.critic\.timeout: .*greater than 0"),
    ],
)
def test_a_fault_in_a_roles_engine_is_named_and_no_key_is_shown(tmp_path, own, said):
    """File and key; a key written into the wrong place is not repeated, in the message or in what it came from."""
    (tmp_path / MACHINE).write_text(f"engines:\n  critic: {own}\n", encoding="utf-8")
    with pytest.raises(ParamsError, match=rf"(?s)machine\.yaml.*{said}") as caught:
        load(tmp_path)
    assert "5ecret" not in str(caught.value) + str(caught.value.__cause__)


def test_a_role_takes_from_the_machine_what_it_does_not_say_itself():
    """Engine, copies and vLLM's settings; a null is no setting. Who has no role is answered by hf."""
    whole = VLLM(tensor_parallel=2, memory=0.8, longest=512, score=True)
    own = RoleEngine(engine="vllm", memory=0.4, score=False)
    machine = Machine(engine="vllm", copies=3, vllm=whole, engines={"grounder": own})
    assert machine.role("planner").vllm == whole
    assert machine.role("grounder").vllm == whole.model_copy(update={"memory": 0.4, "score": False})
    assert [machine.role(role).copies for role in ("planner", "grounder", None)] == [3, 3, 3]
    assert machine.role(None).engine == "hf"


def test_an_unknown_role_is_named(tmp_path):
    (tmp_path / MACHINE).write_text("engines: {judge: {engine: hf}}\n", encoding="utf-8")
    with pytest.raises(
        ParamsError, match=r"(?s)machine\.yaml.*engines\.judge.*'planner', 'grounder', 'actor', 'critic' or 'reader'"
    ):
        load(tmp_path)


@pytest.mark.parametrize("put", [Path.mkdir, lambda path: path.symlink_to("nowhere")])
def test_what_stands_there_and_cannot_be_read_is_no_default(tmp_path, put):
    """A folder, or a link to a file that is gone: settings that were meant are not passed over in silence."""
    put(tmp_path / "machine.yaml")
    with pytest.raises(ParamsError, match=r"machine\.yaml cannot be read \(.+\)"):
        load(tmp_path)


# --- the scratch folder -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("notes.txt", r"notes\.txt' is a file"),
        ("notes.txt/below", r"notes\.txt' is a file"),
        ("x" * 300, r"is no path that can be used"),
        ("a\0b", r"is no path that can be used"),
    ],
)
def test_a_scratch_folder_that_cannot_be_is_an_error_of_machine_yaml(tmp_path, path, said):
    """File, key and path, before a stage works for an hour and cannot keep it."""
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(ParamsError, match=rf"(?s)machine\.yaml: scratch: .*{said}.*: name a folder that can be written"):
        scratch(tmp_path, Machine(scratch=path))
    assert (tmp_path / "notes.txt").read_text() == "mine"


def test_a_scratch_folder_that_cannot_be_written_is_an_error_of_machine_yaml(tmp_path, monkeypatch):
    """Also where it is to be made inside of one that cannot."""
    monkeypatch.setattr("os.access", lambda path, mode: Path(path) != tmp_path)
    with pytest.raises(ParamsError, match=r"machine\.yaml: scratch: .*cannot be written"):
        scratch(tmp_path, Machine(scratch="new/deep"))
    (tmp_path / "own").mkdir()
    assert scratch(tmp_path, Machine(scratch="own/deep")) == tmp_path / "own" / "deep"


def test_a_scratch_folder_is_not_made_before_it_is_used(tmp_path):
    assert scratch(tmp_path, Machine(scratch="new/deep")) == tmp_path / "new" / "deep"
    assert list(tmp_path.iterdir()) == []


def test_an_experiment_shares_the_scratch_folder_and_not_the_notes(tmp_path):
    """The note on a run of the checkout stays when an experiment beside it runs the same stage."""
    settings = params.load(ROOT / "params.yaml")
    experiment = tmp_path / ".dvc" / "tmp" / "exps" / "tmp1"
    experiment.mkdir(parents=True)
    one, other = (Stage("sample", settings, Machine(), root, {"round": "1"}) for root in (tmp_path, experiment))
    assert one.scratch == other.scratch == tmp_path / ".scratch"
    for stage in (one, other):
        stage.close()
    assert one.note_path != other.note_path
    assert {one.note_path.name, other.note_path.name} == {"sample-1.json"}
    notes = [json.loads(stage.note_path.read_text(encoding="utf-8")) for stage in (one, other)]
    assert [note["root"] for note in notes] == [str(tmp_path), str(experiment)]


def test_a_server_at_the_top_is_sent_to_its_role(tmp_path):
    (tmp_path / MACHINE).write_text("engine: openai\n")
    with pytest.raises(ParamsError, match=r"engine: a server is asked by role: write `engines: \{planner: "):
        load(tmp_path)
