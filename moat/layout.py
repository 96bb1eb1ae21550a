"""Where artifacts lie, relative to the project's folder: the one place that knows the paths of dvc.yaml."""

from __future__ import annotations

from pathlib import Path

TRAIN_TASKS = Path("data/tasks/train.parquet")
EVAL_TASKS = Path("data/tasks/eval.parquet")
GOLD = Path("data/tasks/gold.parquet")
SOURCES = Path("data/sources")  # the publishers' files, put there by hand
PASSAGES = Path("data/corpus/passages.parquet")
CORPUS_INDEX = Path("data/corpus/index")
BASE_MODEL = Path("models/base")
CALIBRATION = Path("data/calibration.json")
RECOVERY = Path("data/recovery.parquet")  # Agent-R's: where recoveries begin
METRICS = Path("metrics.json")
CURVES = Path("curves.csv")
REPORT = Path("report.html")
CARD = "moat.json"  # the file in a model folder that says what made it


def demos(role: str) -> Path:
    """Demonstrations of a role."""
    return Path(f"data/demos/{role}.parquet")


def table(name: str, round_key: str) -> Path:
    """A round's table, such as `subgoals` or `pairs`."""
    return Path(f"data/rounds/{round_key}/{name}.parquet")


def evals(round_key: str) -> Path:
    """A round's evaluation."""
    return Path(f"data/evals/{round_key}.parquet")


def recoveries(round_key: str) -> Path:
    """A round's evaluation from the cuts in failed trajectories (Agent-R)."""
    return Path(f"data/recoveries/{round_key}.parquet")


def model(role: str, round_key: str) -> Path:
    """A role's model folder after a round; round 0 is the cold start."""
    return Path(f"models/{role}/{round_key}")


def card(role: str, round_key: str) -> Path:
    """The file in a model folder that says what made it."""
    return model(role, round_key) / CARD
