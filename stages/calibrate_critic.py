"""calibrate_critic: the critic of this run on actions that are known to be right or wrong.

Reads    params.yaml: critic, seed; with a judge (critic.kind llm or executor_then_llm) also its model
Writes   data/calibration.json
Differs  not in the paper, which trusts its critic: this says how far it can be trusted. No other stage but the report reads
         it, and the set is the same for every run and critic (`moat.calibration`)

    python -m moat.launch stages/calibrate_critic.py
"""

from __future__ import annotations

import json

from moat import layout
from moat.calibration import calibrate, known_cases
from moat.judging import Judge
from moat.publish import publish_text
from moat.stage import Stage, main


def run(stage: Stage) -> None:
    """All input and output of the stage."""
    params = stage.params
    settings = params.critic
    stage.header(f"critic {settings.kind} on known cases", [], [layout.CALIBRATION])

    def judge() -> Judge:
        from moat.judge_engine import open_judge  # loads torch, which the critics without a model do without

        return open_judge(settings, stage)

    found = calibrate(settings, known_cases(), judge)
    publish_text(layout.CALIBRATION, json.dumps(found, indent=1) + "\n")
    stage.say(f"agrees with {found['agreement']:.1%} of {found['n']:,} known cases")
    stage.close()


if __name__ == "__main__":
    main(__file__, run)
