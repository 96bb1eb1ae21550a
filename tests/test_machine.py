"""machine.yaml, which says where a run happens: moat/machine.py."""

from pathlib import Path

import pytest
from ruamel.yaml import YAML

from moat.machine import MACHINE, Machine, load
from moat.params import ParamsError

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
        ("engine: vllm\n", r"engine: Input should be 'hf'"),
        ("dtype: float16\n", r"dtype: Input should be 'auto', 'float32' or 'bfloat16'"),
        ("device: [cpu\n", r"is not YAML"),
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
