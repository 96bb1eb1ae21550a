"""The one place where a judge meets an engine. Loads torch: import it only where a judge is opened."""

from __future__ import annotations

from functools import partial

from moat.asking import Asked, open_model
from moat.judge_prompt import JudgeRenderer
from moat.judging import Judge
from moat.params import Critic
from moat.stage import Stage


def open_judge(settings: Critic, stage: Stage) -> Judge:
    """The judge that params name, asked through the stage's journal.

    Raises ModelError, JudgeError, or as `runners.runner` does.
    """
    asked = Asked("critic", settings.judge, settings.revision, "critic.judge")
    opened = open_model(stage, asked, partial(JudgeRenderer, prompt=settings.prompt), settings, "judging", "judge")
    return Judge(opened.renderer, opened.ask, stage.params.seed, settings.max_new_tokens, opened.longest, opened.facts)
