"""What README and docs show of commands is what the commands print."""

import re

import pytest
from typer.testing import CliRunner

from moat.cli import app


def shown(root):
    """Every `moat exec` of a console block in README and docs that needs no project, with what it is said to print."""
    for path in [root / "README.md", *sorted((root / "docs").glob("*.md"))]:
        for block in re.findall(r"^```console\n(.*?)^```$", path.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL):
            for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
                command, _, printed = part.partition("\n")
                if given := re.fullmatch(r'moat exec --domain (maths|arithmetic) "(.*)"', command):
                    yield path.name, given[1], given[2], printed


def test_the_tools_print_what_the_documents_show(root):
    """Seven examples at least, of every tool of the maths domain."""
    examples = list(shown(root))
    for name, domain, actions, printed in examples:
        done = CliRunner().invoke(app, ["exec", "--domain", domain, actions])
        assert (name, actions, done.output) == (name, actions, printed)
    used = {tool for _, _, actions, _ in examples for tool in re.findall(r"= ([A-Za-z]+)\(", actions)}
    assert used == {"Calculator", "SetEquation", "SolveEquation", "SolveInequality", "Count", "Define", "Code"}


@pytest.mark.parametrize("name", ["README.md", "docs"])
def test_links_between_documents_lead_somewhere(root, name):
    """Files and headings."""
    pages = [root / name] if name.endswith(".md") else sorted((root / name).glob("*.md"))
    for page in pages:
        for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text(encoding="utf-8")):
            if "://" in target:
                continue
            file, _, heading = target.partition("#")
            other = page.parent / file if file else page
            assert other.exists(), (page, target)
            if heading:
                titles = re.findall(r"^#+ (.*)$", other.read_text(encoding="utf-8"), re.MULTILINE)
                assert heading in {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}, target
