"""dynamics: how a round learned, as a table to plot: training logs, gaps, lengths, distinct plans, verdicts, entropy.

Reads    data/rounds/{round}/{subgoals,scores,pairs,critiques}.parquet, models/{planner,grounder}/{round}/moat.json
Writes   data/rounds/{round}/dynamics.parquet
Differs  the paper shows none of this. A fall of the log-probability of both plans of a pair, or plans that grow or shrink,
         are known ways for DPO on agent data to go wrong, and they show here first

    python -m moat.launch stages/dynamics.py --round 1
"""

from __future__ import annotations

from moat import layout
from moat.dynamics import Figure, critiques, pairs, read_card, samples, scores, training
from moat.schemas.critiques import CRITIQUES
from moat.schemas.dynamics import DYNAMICS
from moat.schemas.pairs import PAIRS
from moat.schemas.scores import SCORES
from moat.schemas.subgoals import SUBGOALS
from moat.stage import ROUND, Counts, Stage, main

ROLES = ("planner", "grounder")


def run(stage: Stage, round: str) -> None:
    """All input and output of the stage."""
    target = layout.table("dynamics", round)
    paths = {schema.name: layout.table(schema.name, round) for schema in (SUBGOALS, SCORES, PAIRS, CRITIQUES)}
    cards = {role: layout.card(role, round) for role in ROLES}
    stage.header(f"how round {round} learned", [*paths.values(), *cards.values()], [target])
    figures: list[Figure] = []
    for role in ROLES:
        log = read_card(cards[role]).get("log", [])  # a model that was not trained in this round has none: it is a copy
        figures += training(role, log)
        stage.say(f"{role}: {len(log):,} updates" if log else f"{role}: not trained in this round")
    subgoals = SUBGOALS.read(paths["subgoals"])
    figures += samples(subgoals)
    figures += scores(SCORES.read(paths["scores"]))
    figures += pairs(PAIRS.read(paths["pairs"]), subgoals)
    figures += critiques(CRITIQUES.read(paths["critiques"]))
    counts = Counts(len(figures), len(figures))
    DYNAMICS.write(target, [figure._asdict() for figure in figures], stage.facts(counts=counts))
    stage.say(f"{len(figures):,} figures")
    stage.close()


if __name__ == "__main__":
    main(__file__, run, ROUND)
