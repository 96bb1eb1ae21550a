"""The `vllm` engine: vLLM's offline class, one engine a process."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from moat.engines.base import Decoding, Generation
from moat.engines.spec import Spec


class VLLMEngine:
    """One model of vLLM."""

    def __init__(self, spec: Spec) -> None:
        raise NotImplementedError

    def generate(self, prompts: Sequence[Sequence[int]], seeds: Sequence[int], decoding: Decoding) -> list[Generation]:
        """Continue each prompt."""
        raise NotImplementedError

    def score(self, prompts: Sequence[Sequence[int]], completions: Sequence[Sequence[int]]) -> list[np.ndarray]:
        """Log-probabilities."""
        raise NotImplementedError
