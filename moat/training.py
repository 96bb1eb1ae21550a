"""Training by TRL on token ids: supervised fine-tuning (SFTTrainer) and direct preference optimisation (DPOTrainer).

What TRL is handed is already tokenised by `moat.tokens`, so no trainer renders, truncates or adds an end token. Defaults
of TRL and transformers that matter are set here explicitly: no bf16 and no gradient checkpointing unless asked for, no
packing, no truncation, labels given row by row.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from datasets import Dataset
from transformers import PreTrainedModel, PreTrainedTokenizerBase, TrainerCallback, TrainerControl, TrainerState
from transformers.training_args import TrainingArguments
from trl import DPOConfig, DPOTrainer, SFTConfig, SFTTrainer

from moat.tokens import Example

IGNORED = -100  # a label that no loss counts


@dataclass(frozen=True, slots=True)
class Optimisation:
    """What defines an optimisation; `batch_size` is the effective one, in rows (SFT) or pairs (DPO)."""

    epochs: float
    learning_rate: float
    batch_size: int
    schedule: Literal["linear", "cosine", "constant"]
    warmup_ratio: float
    weight_decay: float
    max_grad_norm: float
    seed: int
    updates: int | None = None  # optimiser steps; None: as many as `epochs` take

    def total_updates(self, rows: int) -> int:
        """Optimiser steps over `rows` rows; the last batch of an epoch may be smaller."""
        return self.updates or math.ceil(math.ceil(rows / self.batch_size) * self.epochs)


class RowError(RuntimeError):
    """A training row that cannot be learned from, named."""


class _Watch(TrainerCallback):
    """Reports every finished update and stops on a loss that is not a number."""

    def __init__(self, advance: Any) -> None:
        self.advance = advance
        self.history: list[dict[str, float]] = []

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
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


class _TokenisedDPOTrainer(DPOTrainer):  # type: ignore[misc]
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


def _arguments(how: Optimisation, rows: int, scratch: Path, micro_batch: int, dtype: str, device: str) -> dict[str, Any]:
    """The settings that SFTConfig and DPOConfig share. Raises ValueError when the batch cannot be divided."""
    if how.batch_size % micro_batch:
        raise ValueError(
            f"effective batch {how.batch_size} is not a multiple of micro_batch {micro_batch}: "
            "change micro_batch in machine.yaml"
        )
    return dict(
        output_dir=str(scratch),
        max_steps=how.total_updates(rows),
        per_device_train_batch_size=micro_batch,
        gradient_accumulation_steps=how.batch_size // micro_batch,
        learning_rate=how.learning_rate,
        lr_scheduler_type=how.schedule,
        warmup_steps=math.ceil(how.warmup_ratio * how.total_updates(rows)),
        weight_decay=how.weight_decay,
        max_grad_norm=how.max_grad_norm,
        optim="adamw_torch",
        adam_beta1=0.9,
        adam_beta2=0.999,
        seed=how.seed,
        data_seed=how.seed,
        bf16=dtype == "bfloat16",
        fp16=False,
        gradient_checkpointing=False,
        use_cpu=device == "cpu",
        max_length=None,
        logging_strategy="steps",
        logging_steps=1,
        logging_nan_inf_filter=False,
        save_strategy="no",
        eval_strategy="no",
        report_to=[],
        disable_tqdm=True,
        dataloader_num_workers=0,
        dataloader_pin_memory=device != "cpu",
        dataloader_drop_last=False,
        remove_unused_columns=False,
        average_tokens_across_devices=True,
        use_liger_kernel=False,
    )


def sft(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    rows: Sequence[Example],
    how: Optimisation,
    *,
    scratch: Path,
    micro_batch: int,
    dtype: str,
    advance: Any,
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
        **_arguments(how, len(rows), scratch, micro_batch, dtype, model.device.type),
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
    how: Optimisation,
    *,
    beta: float,
    nll_weight: float,
    scratch: Path,
    micro_batch: int,
    dtype: str,
    advance: Any,
) -> list[dict[str, float]]:
    """Align `model` in place; row i of `chosen` and of `rejected` share their prompt. Returns the log.

    Loss: −log σ(β [(log π − log π_ref)(chosen) − (log π − log π_ref)(rejected)]), log-probabilities summed over the
    completion (Rafailov et al. 2023, eq. 7), plus `nll_weight` × the chosen completion's mean NLL per token.
    """
    data = Dataset.from_dict(
        {
            "prompt_ids": [row.prompt for row in chosen],
            "chosen_ids": [row.completion for row in chosen],
            "rejected_ids": [row.completion for row in rejected],
        }
    )
    with_nll = nll_weight > 0
    config = DPOConfig(
        **_arguments(how, len(chosen), scratch, micro_batch, dtype, model.device.type),
        beta=beta,
        loss_type=["sigmoid", "sft"] if with_nll else ["sigmoid"],
        loss_weights=[1.0, nll_weight] if with_nll else [1.0],
        precompute_ref_log_probs=False,
        disable_dropout=True,
    )
    return _run(_TokenisedDPOTrainer, config, model, tokenizer, data, advance, ref_model=reference)


def _run(
    trainer_class: Any, config: Any, model: PreTrainedModel, tokenizer: Any, data: Dataset, advance: Any, **extra: Any
) -> list[dict[str, float]]:
    watch = _Watch(advance)
    trainer = trainer_class(
        model=model, args=config, train_dataset=data, processing_class=tokenizer, callbacks=[watch], **extra
    )
    for callback in ("PrinterCallback", "ProgressCallback"):
        for present in list(trainer.callback_handler.callbacks):
            if type(present).__name__ == callback:
                trainer.remove_callback(present)
    model.train()
    trainer.train()
    model.eval()
    torch.set_grad_enabled(True)
    return watch.history
