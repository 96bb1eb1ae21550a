"""The modes of Agent-R side by side: moat/agent_r/ablation.py, and the workspaces of moat/science.py."""

import json

import pytest
from typer.testing import CliRunner

from moat import science
from moat.agent_r import ablation
from moat.agent_r.params import AgentParams
from moat.cli import app
from moat.params import ParamsError, load_as


def block(success, loop=0.1):
    own = {"success": success, "reward": success, "loop_rate": loop, "reflections": 0.5}
    return {"environments": {"textcraft": own}}


def rounds(*successes):
    """A run's rounds: recoveries are a tenth of the successes; the last round's recovery was not measured."""
    found = {str(key): {"main": block(one), "recovery": block(one / 10)} for key, one in enumerate(successes)}
    return found | {str(len(successes) - 1): {"main": block(successes[-1]), "recovery": None}}


RESULTS = {"bc": {"100": rounds(0.1, 0.2), "101": rounds(0.3, 0.3)}, "agent_r": {"100": rounds(0.1, 0.2, 0.5)}}


def test_a_table_has_the_last_round_of_each_condition_and_the_cold_start():
    told = ablation.table(RESULTS, "textcraft", "main", "success", "success, %", 100).splitlines()
    assert told[0].startswith("| textcraft: success, % | 100 | 101 |")
    assert told[2].startswith("| cold start | 10.0 | 30.0 | 20.0 ±")
    assert told[3].startswith("| agent_r | 50.0 |  | 50.0 ± inf | +40.0 |")  # in the order of the conditions
    assert told[4].startswith("| bc | 20.0 | 30.0 | 25.0 ±")
    assert "| +5.0 | 0.500 |" in told[4]


def test_what_was_not_measured_has_no_line():
    told = ablation.table(RESULTS, "textcraft", "recovery", "success", "recovery, %", 100).splitlines()
    assert [line.split(" | ")[0] for line in told[2:]] == ["| cold start"]
    assert "cold start | 1.0 | 3.0" in told[2]


def test_every_environment_and_figure_is_tabulated():
    assert ablation.markdown(RESULTS).count("| textcraft: ") == len(ablation.FIGURES)


@pytest.mark.parametrize("condition", ablation.CONDITIONS, ids=lambda one: one.name)
def test_every_condition_changes_what_there_is(root, tmp_path, condition):
    """Each is a sound params.yaml on the draw `test`, with its seed."""
    changed = science.settings(root / "agent_r", condition, 7)
    with (tmp_path / "params.yaml").open("w", encoding="utf-8") as file:
        science.yaml().dump(changed, file)
    params = load_as(tmp_path / "params.yaml", AgentParams)
    assert params.seed == 7
    assert {world.draw for world in params.environments.values()} == {"test"}
    assert params.train.updates > 0


def test_a_workspace_is_a_project_with_the_pipeline_in_its_folder(root, tmp_path):
    for name in ("moat", "agent_r"):
        (tmp_path / name).symlink_to(root / name)
    (tmp_path / "machine.yaml").write_text("threads: 1\n")
    condition = ablation.CONDITIONS[2]
    place = science.workspace(tmp_path, condition, 3, "agent_r")
    assert place == tmp_path / "science/agent_r/bc/3/agent_r"
    assert load_as(place / "params.yaml", AgentParams).mode == "bc"
    for path in ("../moat/stage.py", "../machine.yaml", "../.dvc/config", "dvc.yaml", "stages/search.py", "data/sources"):
        assert (place / path).exists(), path


def test_runs_are_gathered_and_written_as_they_come(root, tmp_path, monkeypatch):
    (tmp_path / "agent_r").symlink_to(root / "agent_r")
    monkeypatch.setattr(ablation, "run", lambda root, condition, seed: rounds(0.1, seed / 1000))
    said = []
    told = ablation.ablate(tmp_path, [100, 101], ["bc"], 1, said.append)
    assert said == ["bc, seed 100: done", "bc, seed 101: done"]
    again = ablation.ablate(tmp_path, [102], ["agent_r"], 1, said.append)
    assert "| bc | 10.0 | 10.1 |" in told
    assert "| bc | 10.0 | 10.1 |  |" in again
    assert set(json.loads((tmp_path / "science/agent_r/results.json").read_text())) == {"bc", "agent_r"}
    assert (tmp_path / "science/agent_r/results.md").read_text() == again


def test_an_unknown_condition_is_refused(root):
    with pytest.raises(ParamsError, match="no condition nothing: there are agent_r, direct_revision"):
        ablation.ablate(root, [1], ["nothing"], 1, print)
    failed = CliRunner().invoke(app, ["ablate", "--pipeline", "moat"])
    assert failed.exit_code == 1
    assert "no conditions for the pipeline 'moat'" in failed.output
