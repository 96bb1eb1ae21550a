"""Training by TRL on token ids: supervised fine-tuning (SFTTrainer) and direct preference optimisation (DPOTrainer).

What TRL is handed is already tokenised by `moat.tokens`, so no trainer renders, truncates or adds an end token. Defaults
of TRL and transformers that matter are set here explicitly: no bf16 and no gradient checkpointing unless asked for, no
packing, no truncation, labels given row by row.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from datasets import Dataset
from transformers import PreTrainedModel, PreTrainedTokenizerBase, TrainerCallback, TrainerControl, TrainerState
from transformers.training_args import TrainingArguments
from trl import DPOConfig, DPOTrainer, SFTConfig, SFTTrainer

from moat import models
from moat.machine import Machine
from moat.params import Align, Sft
from moat.stage import Advance, Stage
from moat.tokens import Example

IGNORED = -100  # a label that no loss counts
# What a model folder keeps of the training log, an entry an update; no times, so that equal runs have equal bytes.
LOGGED = {
    "update",
    "loss",
    "grad_norm",
    "learning_rate",
    "logps/chosen",
    "logps/rejected",
    "rewards/margins",
    "rewards/accuracies",
    "mean_token_accuracy",
    "entropy",
}


def updates_for(settings: Sft, rows: int) -> int:
    """Optimiser steps over `rows` rows (or pairs); the last batch of an epoch may be smaller."""
    return math.ceil(math.ceil(rows / settings.batch_size) * settings.epochs)


class RowError(RuntimeError):
    """A training row that cannot be learned from, named."""


class BatchError(ValueError):
    """An effective batch that this machine's settings cannot make."""


class _Watch(TrainerCallback):
    """Reports every finished update and stops on a loss that is not a number."""

    def __init__(self, advance: Advance) -> None:
        self.advance = advance
        self.history: list[dict[str, float]] = []

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        self.advance(1)

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: dict[str, float] | None = None,
        **kwargs: Any,
    ) -> None:
        logs = logs or {}
        for name in ("loss", "grad_norm"):
            if name in logs and not math.isfinite(float(logs[name])):
                raise FloatingPointError(
                    f"{name} is {logs[name]} at update {state.global_step} of {state.max_steps}: training cannot go on. "
                    "Lower the learning rate, or look for broken rows in the training table"
                )
        if "loss" in logs:
            self.history.append({"update": state.global_step} | {k: float(v) for k, v in logs.items()})


class _TokenisedDPOTrainer(DPOTrainer):
    """TRL's DPOTrainer on rows that already are `prompt_ids`, `chosen_ids`, `rejected_ids`."""

    def _prepare_dataset(self, dataset: Dataset, *args: Any, **kwargs: Any) -> Dataset:
        return dataset


def check_rows(rows: Sequence[Example], names: Sequence[str], max_length: int) -> None:
    """Refuse rows that TRL would truncate or learn nothing from. Raises RowError naming the first such row."""
    if not rows:
        raise RowError("no rows to train on: look at the drop reasons of the table before this stage")
    for row, name in zip(rows, names, strict=True):
        if len(row) > max_length:
            raise RowError(f"row {name} has {len(row)} tokens, over max_length {max_length}: drop it before training")
        if not row.completion:
            raise RowError(f"row {name} has no supervised token")


def arguments(settings: Sft, updates: int, seed: int, machine: Machine) -> dict[str, Any]:
    """What SFTConfig and DPOConfig share. Raises BatchError when the effective batch cannot be divided."""
    device, dtype = models.device_and_dtype(machine)
    micro_batch = machine.micro_batch or settings.batch_size
    if settings.batch_size % micro_batch:
        raise BatchError(
            f"the effective batch {settings.batch_size} is not a multiple of micro_batch {micro_batch}: "
            "change micro_batch in machine.yaml"
        )
    seed %= 2**32  # numpy's generators, which the trainer seeds, take 32 bits
    return {
        "output_dir": machine.scratch,
        "max_steps": updates,
        "per_device_train_batch_size": micro_batch,
        "gradient_accumulation_steps": settings.batch_size // micro_batch,
        "learning_rate": settings.learning_rate,
        "lr_scheduler_type": settings.schedule,
        "warmup_steps": math.ceil(settings.warmup_ratio * updates),
        "weight_decay": settings.weight_decay,
        "max_grad_norm": settings.max_grad_norm,
        "optim": "adamw_torch",
        "adam_beta1": 0.9,
        "adam_beta2": 0.999,
        "seed": seed,
        "data_seed": seed,
        "bf16": dtype == "bfloat16",
        "fp16": False,
        "gradient_checkpointing": False,
        "use_cpu": device == "cpu",
        "max_length": None,
        "logging_strategy": "steps",
        "logging_steps": 1,
        "logging_nan_inf_filter": False,
        "save_strategy": "no",
        "eval_strategy": "no",
        "report_to": [],
        "disable_tqdm": True,
        "dataloader_num_workers": 0,
        "dataloader_pin_memory": device != "cpu",
        "dataloader_drop_last": False,
        "remove_unused_columns": False,
        "average_tokens_across_devices": True,
        "use_liger_kernel": False,
    }


def sft(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    rows: Sequence[Example],
    arguments: dict[str, Any],
    advance: Advance,
) -> list[dict[str, float]]:
    """Fine-tune `model` in place on the completions of `rows`; returns the log, one entry an update.

    The loss is the mean over the supervised tokens of an effective batch, whatever the micro-batch.
    """
    data = Dataset.from_dict(
        {
            "input_ids": [row.prompt + row.completion for row in rows],
            "labels": [[IGNORED] * len(row.prompt) + row.completion for row in rows],
        }
    )
    config = SFTConfig(
        **arguments,
        packing=False,
        padding_free=False,
        loss_type="nll",
        completion_only_loss=True,
        shuffle_dataset=False,
        dataset_kwargs={"skip_prepare_dataset": True},
    )
    return _run(SFTTrainer, config, model, tokenizer, data, advance)


def dpo(
    model: PreTrainedModel,
    reference: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    chosen: Sequence[Example],
    rejected: Sequence[Example],
    arguments: dict[str, Any],
    beta: float,
    nll_weight: float,
    advance: Advance,
) -> list[dict[str, float]]:
    """Align `model` in place; row i of `chosen` and of `rejected` share their prompt. Returns the log.

    Loss: −log σ(β [(log π − log π_ref)(chosen) − (log π − log π_ref)(rejected)]), log-probabilities summed over the
    completion (Rafailov et al. 2023, eq. 7), plus `nll_weight` × the chosen completions' mean NLL per token.
    """
    data = Dataset.from_dict(
        {
            "prompt_ids": [row.prompt for row in chosen],
            "chosen_ids": [row.completion for row in chosen],
            "rejected_ids": [row.completion for row in rejected],
        }
    )
    config = DPOConfig(
        **arguments,
        beta=beta,
        loss_type=["sigmoid", "sft"] if nll_weight else ["sigmoid"],
        loss_weights=[1.0, nll_weight] if nll_weight else [1.0],
        precompute_ref_log_probs=False,
        disable_dropout=True,
    )
    return _run(_TokenisedDPOTrainer, config, model, tokenizer, data, advance, ref_model=reference)


def _run(
    trainer_class: Any,
    config: Any,
    model: PreTrainedModel,
    tokenizer: Any,
    data: Dataset,
    advance: Advance,
    **extra: Any,
) -> list[dict[str, float]]:
    watch = _Watch(advance)
    trainer = trainer_class(
        model=model, args=config, train_dataset=data, processing_class=tokenizer, callbacks=[watch], **extra
    )
    for callback in ("PrinterCallback", "ProgressCallback"):
        for present in list(trainer.callback_handler.callbacks):
            if type(present).__name__ == callback:
                trainer.remove_callback(present)
    trainer.train()
    return watch.history


def train_sft(
    stage: Stage,
    *,
    start: Path,
    target: Path,
    rows: Sequence[Example],
    names: Sequence[str],
    settings: Sft,
    seed: int,
    updates: int | None = None,
) -> None:
    """Load `start`, fine-tune it on `rows`, publish `target`; `updates` overrides the epochs of `settings`.

    Raises RowError for rows that cannot be learned from, FloatingPointError when the loss is not a number.
    """
    check_rows(rows, names, stage.params.max_length)
    updates = updates or updates_for(settings, len(rows))
    models.set_up(stage.machine)
    model, tokenizer = models.load(start, stage.machine), models.load_tokenizer(start)
    with stage.progress("training", updates) as advance:
        log = sft(model, tokenizer, rows, arguments(settings, updates, seed, stage.machine), advance)
    _finish(stage, model, target, log, {"rows": len(rows), "updates": updates, "settings": settings.model_dump()})


def train_dpo(
    stage: Stage,
    *,
    start: Path,
    reference: Path,
    target: Path,
    chosen: Sequence[Example],
    rejected: Sequence[Example],
    names: Sequence[str],
    settings: Align,
    seed: int,
) -> None:
    """Load `start` and `reference`, align on the pairs, publish `target`. Raises as `train_sft` does."""
    for rows in (chosen, rejected):
        check_rows(rows, names, stage.params.max_length)
    updates = updates_for(settings, len(chosen))
    models.set_up(stage.machine)
    model, tokenizer = models.load(start, stage.machine), models.load_tokenizer(start)
    frozen = models.load(reference, stage.machine)
    shared = arguments(settings, updates, seed, stage.machine)
    if settings.nll_weight and shared["gradient_accumulation_steps"] > 1:
        raise BatchError(
            "align.nll_weight takes a mean over the tokens of a micro-batch, so accumulation would change the loss: "
            "set `micro_batch: null` in machine.yaml, or align.nll_weight to 0"
        )
    with stage.progress("aligning", updates) as advance:
        log = dpo(model, frozen, tokenizer, chosen, rejected, shared, settings.beta, settings.nll_weight, advance)
    for name in ("logps/chosen", "logps/rejected", "rewards/margins"):
        stage.say(f"{name} {log[0][name]:.3f} → {log[-1][name]:.3f}")
    _finish(stage, model, target, log, {"pairs": len(chosen), "updates": updates, "settings": settings.model_dump()})


def _finish(stage: Stage, model: PreTrainedModel, target: Path, log: list[dict[str, float]], facts: dict[str, Any]) -> None:
    kept = [{name: entry[name] for name in sorted(entry) if name in LOGGED} for entry in log]
    facts |= {"made_by": stage.name, "log": kept} | models.engine_facts(stage.machine)
    models.save(model, target, facts)
    stage.say(f"{len(log):,} updates, loss {log[0]['loss']:.3f} → {log[-1]['loss']:.3f}")
