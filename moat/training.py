"""Training by TRL on token ids: supervised fine-tuning (SFTTrainer) and direct preference optimisation (DPOTrainer).

What TRL is handed is already tokenised by `moat.tokens`, so no trainer renders, truncates or adds an end token. Defaults
of TRL and transformers that matter are set here explicitly: no bf16 and no gradient checkpointing unless asked for, no
packing, no truncation, labels given row by row. DPO's reference log-probabilities are computed before training, through the
journal, keyed by the reference's weights and the row's tokens; the reference is never in memory beside the policy.

With `lora.rank` the trainers get a model with adapters, and these alone are published (`moat.adapters`).

What an update learns from is planned (`moat.batches`), so losses and gradients depend neither on the micro-batch nor on the
number of processes. One process trains in the stage's own; several are started by `moat.trainer`, and run what stands here.

A training that was killed goes on from its last checkpoint to the weights that it would have had. Checkpoints lie in the
scratch folder under a fingerprint of all that determines those weights, and are gone when the model is published.
"""

from __future__ import annotations

import gc
import hashlib
import importlib.util
import json
import math
import os
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path
from typing import Any, BinaryIO, Literal, Self, cast

import torch
from accelerate.state import PartialState
from accelerate.utils import DistributedType, broadcast_object_list
from datasets import Dataset
from torch.utils.data import DataLoader
from transformers import PreTrainedModel, PreTrainedTokenizerBase, TrainerCallback, TrainerControl, TrainerState
from transformers.training_args import TrainingArguments
from trl import DPOConfig, DPOTrainer, SFTConfig, SFTTrainer

from moat import adapters, batches, layout, lock, models, runners, trainer
from moat.batches import FILLER, Plan
from moat.machine import BatchError, Machine
from moat.params import Align, Lora, Sft
from moat.provenance import content_hash
from moat.publish import disk_full_at
from moat.rows import answered, tell
from moat.stage import Advance, Stage, versions
from moat.tokens import Conversation, Example

TRAINERS = ("torch", "transformers", "trl", "accelerate", "datasets", "peft")
IGNORED = -100  # a label that no loss counts
SIDES = ("chosen", "rejected")
OWN = ("row", "name", "length", "tokens", "scored", "weight")  # columns that no collator knows
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


class Checkpoints:
    """Checkpoints of one training in `folder`, one at most every `seconds`.

    The trainer's are not written at once, so a marker tells the whole ones; others are deleted and never resumed from.
    `claim` is what keeps other runs out of the folder; it ends with the training.
    """

    MARKER = "complete"

    def __init__(self, folder: Path, seconds: float, claim: BinaryIO | None = None) -> None:
        self.folder = folder
        self.claim = claim
        self.seconds = seconds
        self._saved = time.monotonic()

    def _all(self) -> list[Path]:
        return sorted(self.folder.glob("checkpoint-*"), key=lambda path: int(path.name.rpartition("-")[2]))

    def last(self) -> Path | None:
        """The latest whole checkpoint; torn ones are deleted."""
        for path in self._all():
            if not (path / self.MARKER).is_file():
                shutil.rmtree(path)
        return next(reversed(self._all()), None)

    def due(self) -> bool:
        """Whether the time for another has come."""
        return time.monotonic() - self._saved >= self.seconds

    def saved(self) -> None:
        """Mark the newest as whole, and let the older ones go."""
        *older, newest = self._all()
        (newest / self.MARKER).touch()
        for path in older:
            shutil.rmtree(path)
        self._saved = time.monotonic()

    def clear(self) -> None:
        """The training is over."""
        shutil.rmtree(self.folder, ignore_errors=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        if self.claim:
            self.claim.close()


class _Watch(TrainerCallback):
    """Reports every finished update, asks for checkpoints, and stops on a loss that is not a number."""

    def __init__(self, advance: Advance, rows: Callable[[], list[str]], checkpoints: Checkpoints | None) -> None:
        self.advance = advance
        self.rows = rows
        self.checkpoints = checkpoints

    def on_train_begin(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        self.advance(state.global_step)

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        self.advance(1)
        if self.checkpoints and state.global_step < state.max_steps:
            # clocks differ: the first process decides for all, who save together
            control.should_save = broadcast_object_list([self.checkpoints.due()])[0]

    def on_save(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        if self.checkpoints:
            PartialState().wait_for_everyone()  # whole only when every process has written its part
            if state.is_world_process_zero:
                self.checkpoints.saved()

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
                    f"{name} is {logs[name]} at update {state.global_step} of {state.max_steps}, over the rows "
                    f"{', '.join(self.rows())}: training cannot go on. Lower the learning rate, or look for broken rows"
                )


class _Places:
    """The data set as a loader asks for it: rows by number, and the filler where a place has none."""

    def __init__(self, rows: Dataset, filler: dict[str, Any]) -> None:
        self.rows = rows
        self.filler = filler | {"row": FILLER}

    def __len__(self) -> int:
        return len(self.rows)

    def __getitems__(self, numbers: list[int]) -> list[dict[str, Any]]:
        found = iter(self.rows.__getitems__([number for number in numbers if number != FILLER]))
        return [self.filler if number == FILLER else next(found) for number in numbers]


class _Share:
    """The micro-batches of one process, for a DataLoader."""

    def __init__(self, plan: Plan, process: int) -> None:
        self.plan = plan
        self.process = process

    def __len__(self) -> int:
        return self.plan.updates * self.plan.accumulation

    def __iter__(self) -> Iterator[list[int]]:
        return self.plan.of(self.process)


class _Rows:
    """Mixed into a trainer: rows are token ids already, and come as `moat.batches` plans them."""

    def _prepare_dataset(self, dataset: Dataset, *args: Any, **kwargs: Any) -> Dataset:
        return dataset

    def _precompute_ref_logps(self, dataset: Dataset, *args: Any, **kwargs: Any) -> Dataset:
        return dataset  # the rows bring their own

    def _send_telemetry(self) -> None:
        """Nothing is sent."""

    def _prepare_input(self, data: Any) -> Any:
        """To the device and no more: DeepSpeed's way rounds the reference's log-probabilities to bfloat16."""
        trainer: Any = self
        return data.to(trainer.args.device) if isinstance(data, torch.Tensor) else super()._prepare_input(data)  # type: ignore[misc]

    def follow(self, plan: Plan) -> None:
        """Take the rows as planned."""
        trainer: Any = self
        self.plan, self.mine = plan, list[int]()
        self.tokens: list[int] = trainer.train_dataset["tokens"][:]
        self.scored: list[int] = trainer.train_dataset["scored"][:]

    def get_train_dataloader(self) -> Any:
        trainer: Any = self
        collate = trainer.data_collator

        def keep_row(examples: list[dict[str, Any]]) -> dict[str, Any]:
            batch = collate([{name: value for name, value in one.items() if name not in OWN} for one in examples])
            return dict(batch) | {"row": torch.tensor([example["row"] for example in examples])}

        return DataLoader(
            cast(Any, _Places(trainer.train_dataset, trainer.filler(trainer.train_dataset[0]))),
            batch_sampler=cast(Any, _Share(self.plan, trainer.args.process_index)),
            collate_fn=keep_row,
            pin_memory=trainer.args.dataloader_pin_memory,
        )

    def training_step(self, model: Any, inputs: dict[str, Any], *args: Any, **kwargs: Any) -> Any:
        self.mine = [row for row in inputs.pop("row").tolist() if row != FILLER]
        return super().training_step(model, inputs, *args, **kwargs)  # type: ignore[misc]

    def rows(self) -> list[str]:
        """Names of the rows of the last update, of all processes."""
        trainer: Any = self
        return list(trainer.train_dataset[self.plan.whole(trainer.state.global_step - 1)]["name"])

    def log(self, logs: dict[str, float], *args: Any, **kwargs: Any) -> None:
        """What TRL measures is a mean over a micro-batch's places: made one over the rows, or tokens, of the update."""
        trainer: Any = self
        metrics: dict[str, list[float]] = trainer._metrics["train"]
        if metrics:
            steps = self.plan.micro_batches(trainer.state.global_step - 1)
            rows = [[row for share in step for row in share if row != FILLER] for step in steps]
            places = [sum(map(len, step)) for step in steps]
            tokens = [sum(self.tokens[row] for row in step) for step in rows]
            scored = [sum(self.scored[row] for row in step) for step in rows]
            for name, values in metrics.items():
                if name.startswith(("rewards/", "logps/")):
                    metrics[name] = [_dot(values, places) / sum(map(len, rows))]
                elif name in ("mean_token_accuracy", "entropy"):
                    weights = scored if name == "entropy" else tokens
                    metrics[name] = [_dot(values, weights) / sum(weights)]
        super().log(logs, *args, **kwargs)  # type: ignore[misc]


def _dot(values: Sequence[float], weights: Sequence[int]) -> float:
    return math.fsum(value * weight for value, weight in zip(values, weights, strict=True))


class _SFT(_Rows, SFTTrainer):
    """TRL's SFTTrainer on our rows; it divides by the supervised tokens of the whole effective batch, or weighs them."""

    def follow(self, plan: Plan) -> None:
        """Take the rows as planned."""
        super().follow(plan)
        trainer: Any = self
        data = trainer.train_dataset
        self.weights: list[float] | None = data["weight"][:] if "weight" in data.column_names else None

    def training_step(self, model: Any, inputs: dict[str, Any], *args: Any, **kwargs: Any) -> Any:
        self.places = inputs["row"].tolist()
        return super().training_step(model, inputs, *args, **kwargs)

    def compute_loss(self, model: Any, inputs: dict[str, Any], *args: Any, **kwargs: Any) -> Any:
        """With weights: (N/B) sum of weight times NLL over the update, for N rows in all and B of an effective batch."""
        if self.weights is None:
            return super().compute_loss(model, inputs, *args, **kwargs)
        scale = self.plan.rows / self.plan.batch
        weights = [0.0 if row == FILLER else self.weights[row] * scale for row in self.places]
        kwargs["num_items_in_batch"] = 1  # what the sum is divided by
        return super().compute_loss(_Weighed(model, weights), inputs, *args, **kwargs)

    def filler(self, row: dict[str, Any]) -> dict[str, Any]:
        """A row of which nothing is supervised."""
        return {"input_ids": row["input_ids"][:2], "labels": [IGNORED] * 2}


class _Weighed:
    """A model whose log-probabilities count as much as the rows of a micro-batch weigh."""

    def __init__(self, model: Any, weights: list[float]) -> None:
        self.model = model
        self.weights = weights

    def __call__(self, **inputs: Any) -> Any:
        outputs = self.model(**inputs)
        outputs.log_probs = outputs.log_probs * torch.tensor(self.weights, device=outputs.log_probs.device)[:, None]
        return outputs


class _DPO(_Rows, DPOTrainer):
    """TRL's DPOTrainer on our rows, whose loss is a mean over a micro-batch: weighed so that it is one over the update."""

    nll_weight = 0.0

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        adapters.drop_reference(self.model)

    def filler(self, row: dict[str, Any]) -> dict[str, Any]:
        """A pair without completions: its margin is 0 whatever the model, its loss ln 2 and its gradient exactly 0."""
        ids = (row["prompt_ids"] + row["chosen_ids"])[:2]
        return {"prompt_ids": ids} | {f"{side}_ids": [] for side in SIDES} | {f"ref_{side}_logps": 0.0 for side in SIDES}

    def _send_telemetry(self) -> None:
        """Nothing is sent. TRL then loads a reference model under FSDP alone, which is not needed: it must not know yet."""
        self.is_fsdp_enabled = False

    def _precompute_ref_logps(self, dataset: Dataset, *args: Any, **kwargs: Any) -> Dataset:
        self.is_fsdp_enabled = self.accelerator.distributed_type == DistributedType.FSDP
        return dataset

    def _compute_loss(self, model: Any, inputs: dict[str, Any], return_outputs: bool) -> Any:
        """(1/N) sum of -log sigma(margin) + w (1/T) sum of NLL, over the N pairs and T chosen tokens of the update.

        The trainer takes the mean over accumulation steps and processes of what is returned here for a micro-batch.
        """
        whole, places = self.plan.whole(self.state.global_step), len(inputs["ref_chosen_logps"])
        shares = self.plan.processes * self.plan.accumulation
        self.loss_types, self.loss_weights = ["sigmoid"], [shares * places / len(whole)]
        if self.nll_weight and self.mine:
            share = shares * sum(self.tokens[row] for row in self.mine) / sum(self.tokens[row] for row in whole)
            self.loss_types, self.loss_weights = ["sigmoid", "sft"], [*self.loss_weights, self.nll_weight * share]
        loss = super()._compute_loss(model, inputs, return_outputs)
        fillers = places - len(self.mine)
        return loss - math.log(2) * shares * fillers / len(whole) if fillers else loss


def check_rows(rows: Sequence[Example | Conversation], names: Sequence[str], max_length: int) -> None:
    """Refuse rows that TRL would truncate or learn nothing from. Raises RowError naming the first such row."""
    if not rows:
        raise RowError("no rows to train on: look at the drop reasons of the table before this stage")
    for row, name in zip(rows, names, strict=True):
        if len(row) > max_length:
            raise RowError(f"row {name} has {len(row)} tokens, over max_length {max_length}: drop it before training")
        if not (row.completion if isinstance(row, Example) else any(row.mask[1:])):
            raise RowError(f"row {name} has no supervised token")


def check_machine(machine: Machine, settings: Sft) -> None:
    """Refuse what this computer cannot do, before anything is worked out. Raises BatchError or OSError with what to set."""
    device, dtype = models.device_and_dtype(machine)
    models.check_attention(machine)
    machine.accumulation(settings.batch_size)
    sharded = machine.strategy in ("fsdp", "zero2", "zero3")
    if machine.strategy in ("zero2", "zero3") and importlib.util.find_spec("deepspeed") is None:
        raise OSError(
            f"strategy {machine.strategy} needs DeepSpeed: `pip install -c constraints.txt deepspeed`, or take fsdp"
        )
    if device == "cuda" and machine.processes > torch.cuda.device_count():
        raise OSError(
            f"machine.yaml says processes: {machine.processes}, a GPU for each, and there are {torch.cuda.device_count()}: "
            "set `processes` to that"
        )
    if device == "cpu" and machine.offload:
        raise OSError("machine.yaml says offload: true, from a GPU to the CPU, where all is: set `offload: false`")
    if device == "cpu" and sharded and dtype == "bfloat16":
        raise OSError(f"strategy {machine.strategy} has no bfloat16 on a CPU: set `dtype: auto` in machine.yaml")


def arguments(settings: Sft, updates: int, seed: int, machine: Machine) -> dict[str, Any]:
    """What SFTConfig and DPOConfig share. Raises BatchError when the effective batch cannot be divided."""
    device, dtype = models.device_and_dtype(machine)
    micro_batch, accumulated = machine.accumulation(settings.batch_size)
    # accelerate knows DeepSpeed and FSDP on accelerators alone: a CPU passes for one, with gloo between the processes
    passing = device == "cpu" and machine.strategy in ("fsdp", "zero2", "zero3")
    seed %= 2**32  # numpy's generators, which the trainer seeds, take 32 bits
    return {
        "max_steps": updates,
        "per_device_train_batch_size": micro_batch,
        "gradient_accumulation_steps": accumulated,
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
        "gradient_checkpointing": machine.gradient_checkpointing,
        "gradient_checkpointing_kwargs": {"use_reentrant": False},
        "use_cpu": device == "cpu" and not passing,
        "ddp_backend": "gloo" if passing else None,
        "ddp_find_unused_parameters": False,
        "max_length": None,
        "logging_strategy": "steps",
        "logging_steps": 1,
        "logging_nan_inf_filter": False,
        "save_strategy": "no",
        "save_total_limit": 2,  # the last whole one stays until the next is whole, and then goes
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


@dataclass(frozen=True)
class Job:
    """A training without its rows and its model: which loss, and the arguments of its trainer."""

    loss: Literal["sft", "dpo"]
    arguments: dict[str, Any]
    beta: float = 0.0
    nll_weight: float = 0.0
    group_by_length: bool = False

    def config(self) -> Any:
        """The trainer's settings; from here on the processes know each other."""
        if self.loss == "sft":
            return SFTConfig(
                **self.arguments,
                packing=False,
                padding_free=False,
                loss_type="nll",
                completion_only_loss=True,
                shuffle_dataset=False,
                dataset_kwargs={"skip_prepare_dataset": True},
            )
        return DPOConfig(
            **self.arguments, beta=self.beta, loss_type=["sigmoid"], precompute_ref_log_probs=True, disable_dropout=True
        )


def _own(names: Sequence[str] | None, lengths: list[int], tokens: list[int], scored: list[int]) -> dict[str, list[Any]]:
    """What batches, errors and weights are made from; names are the rows' numbers by default."""
    numbers = list(range(len(tokens)))
    named: dict[str, list[Any]] = {"row": numbers, "name": list(names or map(str, numbers))}
    return named | {"length": lengths, "tokens": tokens, "scored": scored}


def sft_columns(
    rows: Sequence[Example | Conversation], names: Sequence[str] | None, weights: Sequence[float] | None = None
) -> dict[str, list[Any]]:
    """The rows as SFTTrainer reads them; `weights` as for `train_sft`."""
    ids = [row.prompt + row.completion if isinstance(row, Example) else row.ids for row in rows]
    labels = [
        [IGNORED] * len(row.prompt) + row.completion
        if isinstance(row, Example)
        else [token if learned else IGNORED for token, learned in zip(own, row.mask, strict=True)]
        for row, own in zip(rows, ids, strict=True)
    ]
    tokens = [sum(label != IGNORED for label in own[1:]) for own in labels]  # nothing foretells a row's first
    return (
        {"input_ids": ids, "labels": labels}
        | _own(names, [len(row) for row in rows], tokens, tokens)
        | ({"weight": list(weights)} if weights else {})
    )


def dpo_columns(
    reference: tuple[Sequence[float], Sequence[float]],
    chosen: Sequence[Example],
    rejected: Sequence[Example],
    names: Sequence[str] | None,
) -> dict[str, list[Any]]:
    """The pairs as DPOTrainer reads them."""
    tokens = [len(row.completion) for row in chosen]
    columns: dict[str, list[Any]] = {
        "prompt_ids": [row.prompt for row in chosen],
        "chosen_ids": [row.completion for row in chosen],
        "rejected_ids": [row.completion for row in rejected],
        "ref_chosen_logps": list(reference[0]),
        "ref_rejected_logps": list(reference[1]),
    }
    lengths = [max(map(len, pair)) for pair in zip(chosen, rejected, strict=True)]
    return columns | _own(names, lengths, tokens, [n + len(row.completion) for n, row in zip(tokens, rejected, strict=True)])


def sft(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    rows: Sequence[Example | Conversation],
    arguments: dict[str, Any],
    advance: Advance,
    names: Sequence[str] | None = None,
    checkpoints: Checkpoints | None = None,
    weights: Sequence[float] | None = None,
    group_by_length: bool = False,
) -> list[dict[str, float]]:
    """Fine-tune `model` in place on what is supervised of `rows`; returns the log, one entry an update.

    The loss is the mean over the supervised tokens of an effective batch, whatever the micro-batch; with `weights` it is
    as for `train_sft`. `names` are what an error calls the rows (their numbers by default).
    """
    data = Dataset.from_dict(sft_columns(rows, names, weights))
    job = Job("sft", arguments, group_by_length=group_by_length)
    return log_of(train(job, data, lambda: model, tokenizer, advance, checkpoints))


def dpo(
    model: PreTrainedModel,
    reference: tuple[Sequence[float], Sequence[float]],
    tokenizer: PreTrainedTokenizerBase,
    chosen: Sequence[Example],
    rejected: Sequence[Example],
    arguments: dict[str, Any],
    beta: float,
    nll_weight: float,
    advance: Advance,
    names: Sequence[str] | None = None,
    checkpoints: Checkpoints | None = None,
    group_by_length: bool = False,
) -> list[dict[str, float]]:
    """Align `model` in place; row i of `chosen` and of `rejected` share their prompt. Returns the log.

    `reference` holds log π_ref of every chosen and of every rejected completion, in nats, summed over its tokens.
    Loss: −log σ(β [(log π − log π_ref)(chosen) − (log π − log π_ref)(rejected)]), log-probabilities summed over the
    completion (Rafailov et al. 2023, eq. 7), plus `nll_weight` × the chosen completions' mean NLL per token.
    """
    data = Dataset.from_dict(dpo_columns(reference, chosen, rejected, names))
    job = Job("dpo", arguments, beta, nll_weight, group_by_length)
    return log_of(train(job, data, lambda: model, tokenizer, advance, checkpoints))


def train(
    job: Job,
    rows: Dataset,
    load: Callable[[], PreTrainedModel],
    tokenizer: Any,
    advance: Advance,
    checkpoints: Checkpoints | None,
) -> Any:
    """Train what `load` gives, from the last whole checkpoint if there is one; returns the trainer.

    Called by every process of a training. The model is loaded when the processes know each other, because what shares a
    model out loads it so. Raises FloatingPointError, BatchError when memory runs out, DiskFullError.
    """
    config = job.config()
    if config.device.type == "cpu" and os.environ.get("ACCELERATE_USE_FSDP") == "true":
        # accelerate shards on accelerators alone, and on a CPU would copy the model in silence; torch's FSDP2 runs on both
        PartialState._shared_state["distributed_type"] = DistributedType.MULTI_GPU
    config._n_gpu = min(config.n_gpu, 1)  # of several GPUs one process takes one: no torch.nn.DataParallel behind our back
    own: Any = {"sft": _SFT, "dpo": _DPO}[job.loss]
    try:
        trainer = own(model=load(), args=config, train_dataset=rows, processing_class=tokenizer)
        trainer.nll_weight = job.nll_weight
        shape = (config.world_size, config.gradient_accumulation_steps)
        batch = config.per_device_train_batch_size * math.prod(shape)
        lengths = rows["length"][:] if job.group_by_length else None
        trainer.follow(Plan(len(rows), batch, config.max_steps, config.data_seed, *shape, lengths))
        for callback in ("PrinterCallback", "ProgressCallback"):
            for present in list(trainer.callback_handler.callbacks):
                if type(present).__name__ == callback:
                    trainer.remove_callback(present)
        trainer.add_callback(_Watch(advance, trainer.rows, checkpoints))
        last = checkpoints.last() if checkpoints else None
        with disk_full_at(Path(config.output_dir)):
            trainer.train(resume_from_checkpoint=str(last) if last else None)
    except torch.OutOfMemoryError as error:
        raise BatchError(
            f"out of GPU memory with {config.per_device_train_batch_size} rows a forward pass: lower micro_batch in "
            f"machine.yaml (the effective batch stays the same), or see docs/training.md. {error}"
        ) from error
    return trainer


def log_of(trainer: Any) -> list[dict[str, float]]:
    """What a trainer logged, an entry an update."""
    log = [entry for entry in trainer.state.log_history if "loss" in entry]
    return [{"update": entry["step"]} | {k: float(v) for k, v in entry.items() if k != "step"} for entry in log]


def to_train(start: Path, machine: Machine, lora: Lora, seed: int) -> PreTrainedModel:
    """The model in `start` as it is trained.

    A step of a small learning rate is less than bfloat16 tells apart: weights that are trained in it are kept in float32 and
    rounded for the computing alone. DeepSpeed and FSDP do so themselves, and place the model, too.
    """
    own: dict[str, Any] = {}
    _, dtype = models.device_and_dtype(machine)
    if machine.strategy not in ("plain", "ddp"):
        own = {"device": "cpu", "dtype": dtype}
    elif dtype == "bfloat16" and not lora.rank:
        own = {"dtype": "float32"}
    return models.load_for_training(start, machine.model_copy(update=own), lora, seed)


def training_facts(machine: Machine) -> dict[str, Any]:
    """What made a trained model, and may move its last bits."""
    return models.engine_facts(machine) | {"strategy": machine.strategy, "processes": machine.processes}


def _checkpoints(stage: Stage[Any], start: Path, arguments: dict[str, Any], rows: Any, **more: Any) -> Checkpoints:
    """The checkpoints of this very training: same start, rows, settings, machine, versions and training code.

    An experiment beside the checkout may be at the same training in the same scratch folder: each has a folder of its own.
    """
    what = {
        "start": adapters.identity(start, stage.hash_of),
        "arguments": arguments,
        "machine": training_facts(stage.machine) | {"versions": versions(*TRAINERS)},
        "code": [content_hash(Path(one.__file__ or "")) for one in (adapters, batches, trainer, sys.modules[__name__])],
        "lora": stage.params.lora.model_dump(),
        "config": "" if stage.machine.strategy == "plain" else content_hash(trainer.config(stage.machine.strategy)),
        "offload": stage.machine.offload,
        **more,
    }
    told = hashlib.sha256(json.dumps([what, rows], sort_keys=True).encode()).hexdigest()[:16]
    name = f"{stage.label}-{told}"
    claimed, claim = lock.first_free(stage.scratch / "locks" / (f"{name}-{n}" if n else name) for n in count())
    checkpoints = Checkpoints(stage.scratch / "checkpoints" / claimed.name, stage.machine.checkpoint, claim)
    if last := checkpoints.last():
        stage.say(f"going on from update {last.name.rpartition('-')[2]} of a run that was interrupted")
    return checkpoints


def _ids(rows: Sequence[Example | Conversation]) -> list[list[Any]]:
    return [[row.prompt, row.completion] if isinstance(row, Example) else [row.turns, row.supervised] for row in rows]


def _trained(
    stage: Stage[Any], job: Job, columns: dict[str, list[Any]], start: Path, seed: int, what: str, checkpoints: Checkpoints
) -> tuple[PreTrainedModel, list[dict[str, float]]]:
    """The model in `start`, trained as machine.yaml says, and the log."""
    machine, lora = stage.machine, stage.params.lora
    device, dtype = models.device_and_dtype(machine)
    job = replace(job, arguments=job.arguments | {"output_dir": str(checkpoints.folder)})
    if device == "cuda":  # what reference log-probabilities were worked out with makes room
        gc.collect()
        torch.cuda.empty_cache()
    with stage.progress(what, job.arguments["max_steps"]) as advance:
        if machine.strategy == "plain":
            model = to_train(start, machine, lora, seed)
            rows = Dataset.from_dict(columns)
            log = log_of(train(job, rows, lambda: model, models.load_tokenizer(start), advance, checkpoints))
            return (model if lora.rank else model.to(getattr(torch, dtype))), log
        weights, log, settings = trainer.run(stage, job, columns, start, seed, checkpoints, advance)
    here = machine.model_copy(update={"device": "cpu", "dtype": dtype})
    model = models.load_for_training(start, here, lora, seed)
    unknown = model.load_state_dict(weights, strict=False).unexpected_keys
    if unknown:
        raise AssertionError(f"weights that the model does not have: {unknown}")
    for one, own in zip((model.config, model.generation_config), settings, strict=True):
        for name, value in own.items():
            setattr(one, name, value)
    return model, log


def train_sft(
    stage: Stage[Any],
    *,
    start: Path,
    target: Path,
    rows: Sequence[Example | Conversation],
    names: Sequence[str],
    settings: Sft,
    seed: int,
    updates: int | None = None,
    weights: Sequence[float] | None = None,
    facts: Mapping[str, Any],
) -> None:
    """Load `start`, fine-tune it on `rows`, publish `target` with `facts`; `updates` overrides the epochs of `settings`.

    Without `weights` an update's loss is the mean over its supervised tokens. With them every supervised token of a row
    counts `weights[row]` times its NLL: the losses of an epoch's updates, each times its share B / N of the rows, sum to
    that sum over the whole set.

    Raises RowError for rows that cannot be learned from, BatchError or OSError for what this computer cannot do,
    FloatingPointError when the loss is not a number, TrainingError when processes fail in another way.
    """
    check_machine(stage.machine, settings)
    check_rows(rows, names, stage.params.max_length)
    adapters.check_start(start, stage.params.lora)
    updates = updates or updates_for(settings, len(rows))
    models.set_up(stage.machine)
    job = Job("sft", arguments(settings, updates, seed, stage.machine), group_by_length=settings.group_by_length)
    more: dict[str, Any] = {"group_by_length": settings.group_by_length}
    more |= {} if weights is None else {"weights": list(weights)}
    with _checkpoints(stage, start, job.arguments, _ids(rows), **more) as checkpoints:
        model, log = _trained(stage, job, sft_columns(rows, names, weights), start, seed, "training", checkpoints)
        _finish(stage, model, target, log, {**facts, "rows": len(rows), "updates": updates})
        checkpoints.clear()


def reference_logprobs(
    stage: Stage[Any], reference: Path, chosen: Sequence[Example], rejected: Sequence[Example], names: Sequence[str]
) -> tuple[list[float], list[float]]:
    """log π_ref (nats, summed over the completion) of every chosen and every rejected row. Raises EngineError."""
    runner = runners.runner(stage, reference, max_failed=0.0)
    with stage.progress("reference", 2 * len(chosen)) as advance:
        made = runner.score([*chosen, *rejected], [*names, *names], advance)
    tell(stage, runner)
    sums = [float(values.astype("f8").sum()) for values in answered(made, made)]
    return sums[: len(chosen)], sums[len(chosen) :]


def train_dpo(
    stage: Stage[Any],
    *,
    start: Path,
    reference: Path,
    target: Path,
    chosen: Sequence[Example],
    rejected: Sequence[Example],
    names: Sequence[str],
    settings: Align,
    seed: int,
    facts: Mapping[str, Any],
) -> None:
    """Load `start`, align it on the pairs against the model in `reference`, publish `target`. Raises as `train_sft` does."""
    check_machine(stage.machine, settings)
    for rows in (chosen, rejected):
        check_rows(rows, names, stage.params.max_length)
    adapters.check_start(start, stage.params.lora)
    models.set_up(stage.machine)
    log_ref = reference_logprobs(stage, reference, chosen, rejected, names)
    updates = updates_for(settings, len(chosen))
    how: dict[str, Any] = {name: getattr(settings, name) for name in ("beta", "nll_weight", "group_by_length")}
    job = Job("dpo", arguments(settings, updates, seed, stage.machine), **how)
    more = how | {"reference": log_ref}
    with _checkpoints(stage, start, job.arguments, [_ids(chosen), _ids(rejected)], **more) as checkpoints:
        columns = dpo_columns(log_ref, chosen, rejected, names)
        model, log = _trained(stage, job, columns, start, seed, "aligning", checkpoints)
        for name in ("logps/chosen", "logps/rejected", "rewards/margins"):
            stage.say(f"{name} {log[0][name]:.3f} → {log[-1][name]:.3f}")
        _finish(stage, model, target, log, {**facts, "pairs": len(chosen), "updates": updates})
        checkpoints.clear()


def _finish(
    stage: Stage[Any], model: PreTrainedModel, target: Path, log: list[dict[str, float]], facts: dict[str, Any]
) -> None:
    kept = [{name: entry[name] for name in sorted(entry) if name in LOGGED} for entry in log]
    base = {"base": stage.hash_of(layout.BASE_MODEL, without=layout.CARD)} if stage.params.lora.rank else {}
    models.save(model, target, facts | base | {"log": kept} | training_facts(stage.machine))
    stage.say(f"{len(log):,} updates, loss {log[0]['loss']:.3f} → {log[-1]['loss']:.3f}")
