"""The document docs/add-a-tool.md, followed step by step in a copy of the package."""

import re
import shutil
import subprocess
import sys

import pytest


@pytest.fixture
def document(root):
    """The document's text."""
    return (root / "docs" / "add-a-tool.md").read_text(encoding="utf-8")


@pytest.fixture
def package(root, tmp_path, document):
    """A folder with a copy of `moat` in which the document's steps were taken."""
    shutil.copytree(root / "moat", tmp_path / "moat", ignore=shutil.ignore_patterns("__pycache__"))
    (code,) = re.findall(r"^```python\n(.*?)^```$", document, re.MULTILINE | re.DOTALL)
    told, known = re.findall(r"^```py\n(.*?)^```$", document, re.MULTILINE | re.DOTALL)
    entry, imported = known.splitlines(keepends=True)
    tools = tmp_path / "moat" / "tools"
    (tools / "median.py").write_text(code, encoding="utf-8")
    insert(tools / "docs.py", '        "maths": {\n', told)
    insert(tools / "maths.py", "MATHS_TOOLS: Mapping[str, Tool] = MappingProxyType(\n    {\n", entry)
    insert(tools / "maths.py", "from moat.tools.expressions import Statement, binding, parse, parse_one\n", imported)
    return tmp_path


def insert(path, after, text):
    """Put `text` behind `after`, which the file must have once."""
    whole = path.read_text(encoding="utf-8")
    assert whole.count(after) == 1
    path.write_text(whole.replace(after, after + text), encoding="utf-8")


def run(package, *arguments):
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=package,
        env={"PYTHONPATH": str(package)},
        capture_output=True,
        text=True,
        timeout=60,
    )


def test_the_tool_gives_what_the_document_says(package, document):
    (command,) = re.findall(r'^`moat exec --domain maths "(.*)"` prints$', document, re.MULTILINE)
    (printed,) = re.findall(r"^```text\n(.*?)^```$", document, re.MULTILINE | re.DOTALL)
    done = run(package, "-m", "moat.cli", "exec", "--domain", "maths", command)
    assert done.stdout + done.stderr == printed
    assert done.returncode == 1


def test_the_grounders_prompt_tells_of_the_tool(package):
    done = run(package, "-c", "from moat.tools.docs import documentation; print(documentation('maths'))")
    assert "Median(numbers) -> number: the middle one of numbers with commas between" in done.stdout
    assert "Median" in done.stdout.splitlines()[0]
