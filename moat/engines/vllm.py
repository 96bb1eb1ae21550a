"""The `vllm` engine: vLLM's offline class on a model folder, or on a base with an adapter.

Every row is a request of its own (n = 1) with its own seed. K candidates of one prompt as one request with n = K would cost
the same, for vLLM keeps the prompt's keys and values for the K requests too; but its seed would be the group's, so a row's
text would depend on which of its siblings are asked along with it, and a run that goes on after a kill asks for some.

What differs from `hf`: the random numbers are vLLM's, so sampled texts are others; what is computed together is decided
while it runs, so log-probabilities may differ in their last bits between two runs. As in `hf` only the tokenizer's end token
ends a text (the model's generation_config.json is not read), and nothing but temperature and nucleus shapes the draw.

One engine a process: vLLM does not give memory back before its process ends. Nothing else is in this process, so that a
batch that does not fit into memory costs the batch.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, get_args

import numpy as np

from moat import models
from moat.engines.base import Decoding, EngineError, FinishReason, Generation
from moat.engines.spec import Spec
from moat.machine import MACHINE

SETTINGS = {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",  # the engine in this very process, which ends when the stage does
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_LOGGING_LEVEL": "WARNING",
}
CPU_CACHE = 1 << 30  # bytes of keys and values; on a CPU the share of the memory would be that of the whole computer


class VLLMEngine:
    """One model of vLLM. Raises EngineError when vLLM cannot open it, OSError when the folder is torn."""

    def __init__(self, spec: Spec) -> None:
        for name, value in SETTINGS.items():
            os.environ.setdefault(name, value)
        import vllm
        from vllm.lora.request import LoRARequest

        self._vllm = vllm
        tokenizer = models.load_tokenizer(spec.model)
        self.end = tokenizer.eos_token_id
        self._adapter: Any = None
        own, machine, folder = spec.vllm, spec.machine, spec.model
        more: dict[str, Any] = {}
        if (spec.model / "adapter_config.json").is_file():
            folder = spec.base
            self._adapter = LoRARequest(spec.model.name, 1, str(spec.model))
            more |= {"enable_lora": True, "max_loras": 1, **_adapter(spec.model)}
        if machine.device == "cpu":
            # Whole prompts: of one that is read in pieces it sets the random numbers back, which fails for those of a CPU.
            more |= {"kv_cache_memory_bytes": CPU_CACHE, "enforce_eager": True, "enable_chunked_prefill": False}
        else:
            more |= {"gpu_memory_utilization": own.memory, "enforce_eager": own.eager}
        try:
            self._llm = vllm.LLM(
                model=str(folder),
                dtype=machine.dtype,
                max_model_len=_longest(folder, own.longest),
                tensor_parallel_size=own.tensor_parallel,
                generation_config="vllm",
                skip_tokenizer_init=True,
                logprobs_mode="raw_logprobs",
                max_logprobs=1,
                seed=0,
                disable_log_stats=True,
                **more,
            )
        except Exception as error:
            raise EngineError(
                f"vllm cannot open {folder}: {type(error).__name__}: {' '.join(str(error).split())}"
            ) from error
        self.longest: int = self._llm.model_config.max_model_len
        models.check_vocabulary(spec.model, len(tokenizer), self._llm.model_config.get_vocab_size())

    def generate(self, prompts: Sequence[Sequence[int]], seeds: Sequence[int], decoding: Decoding) -> list[Generation]:
        """Continue each prompt until its end token or `max_new_tokens`; one seed a row. Results in the prompts' order.

        Raises EngineError for what does not fit: into memory, or into the length that the engine was opened for.
        """
        self._check([len(prompt) + decoding.max_new_tokens for prompt in prompts])
        how = [
            self._vllm.SamplingParams(
                temperature=decoding.temperature,
                top_p=decoding.top_p,
                seed=seed,
                max_tokens=decoding.max_new_tokens,
                ignore_eos=True,
                stop_token_ids=[self.end],
                logprobs=0,  # those of the drawn tokens
                detokenize=False,
            )
            for seed in seeds
        ]
        return [self._generation(found.outputs[0]) for found in self._ask(prompts, how)]

    def score(self, prompts: Sequence[Sequence[int]], completions: Sequence[Sequence[int]]) -> list[np.ndarray]:
        """Log-probability (nats, float32) of every completion token given its prompt and the tokens before it.

        Raises ValueError when a prompt or a completion is empty, EngineError as `generate` does.
        """
        if not all(prompts) or not all(completions):
            raise ValueError("scoring needs at least one prompt token and one completion token in every row")
        rows = [[*prompt, *completion] for prompt, completion in zip(prompts, completions, strict=True)]
        self._check([len(row) + 1 for row in rows])
        # a token has to be generated; the prompt's log-probabilities are what is wanted
        how = self._vllm.SamplingParams(temperature=0, max_tokens=1, prompt_logprobs=0, detokenize=False)
        return [
            np.array(
                [told[token].logprob for told, token in zip(found.prompt_logprobs[-len(own) :], own, strict=True)],
                dtype=np.float32,
            )
            for found, own in zip(self._ask(rows, how), completions, strict=True)
        ]

    def _check(self, lengths: Sequence[int]) -> None:
        if max(lengths) > self.longest:
            raise EngineError(
                f"a row needs {max(lengths):,} tokens, its answer among them, and vllm was opened for {self.longest:,}: "
                f"set vllm.longest in {MACHINE}; the model's own limit is its max_position_embeddings"
            )

    def _ask(self, prompts: Sequence[Sequence[int]], how: Any) -> list[Any]:
        """vLLM's answers, in order."""
        from vllm.v1.engine.exceptions import EngineDeadError

        rows: Any = [{"prompt_token_ids": list(prompt)} for prompt in prompts]
        with _memory():
            try:
                found: list[Any] = self._llm.generate(rows, how, use_tqdm=False, lora_request=self._adapter)
            except EngineDeadError as error:
                raise SystemExit(f"vllm's engine has died: {error}") from error  # a new process may have more luck
        return found

    def _generation(self, made: Any) -> Generation:
        ids = list(made.token_ids)
        if made.finish_reason == "stop":
            ids = ids[:-1]
        return Generation(ids, FinishReason(made.finish_reason), float(made.cumulative_logprob))


@contextmanager
def _memory() -> Iterator[None]:
    """Out of GPU memory is an EngineError: a smaller batch may fit."""
    import torch

    try:
        yield
    except torch.OutOfMemoryError as error:
        raise EngineError(f"out of GPU memory: {error}") from error


def _longest(folder: Path, wanted: int | None) -> int | None:
    """Tokens to open a model for, one more than rows have, for scoring generates one; None: as many as it allows."""
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    own: int | None = config.get("text_config", config).get("max_position_embeddings")
    return None if wanted is None or (own is not None and wanted + 1 > own) else wanted + 1


def _adapter(folder: Path) -> dict[str, Any]:
    """How vLLM has to be opened for an adapter: the smallest rank that it fits into, and the layers that it changes.

    Were the layers not named, it would wrap the output layer too, and then cannot score (on a CPU it fails).
    """
    from vllm.config.lora import MaxLoRARanks

    config = json.loads((folder / "adapter_config.json").read_text(encoding="utf-8"))
    rank = max([config["r"], *(config.get("rank_pattern") or {}).values()])
    ranks = [one for one in get_args(MaxLoRARanks) if one >= rank]
    if not ranks:
        raise EngineError(f"the adapter in {folder} has rank {rank}, more than vllm takes: `moat export` merges it")
    layers = config["target_modules"]
    return {"max_lora_rank": min(ranks)} | ({"lora_target_modules": layers} if isinstance(layers, list) else {})
