"""Training by TRL on token ids: supervised fine-tuning (SFTTrainer) and direct preference optimisation (DPOTrainer).

What TRL is handed is already tokenised by `moat.tokens`, so no trainer renders, truncates or adds an end token. Defaults
of TRL and transformers that matter are set here explicitly: no bf16 and no gradient checkpointing unless asked for, no
packing, no truncation, labels given row by row. DPO's reference log-probabilities are computed before training, through the
journal, keyed by the reference's weights and the row's tokens; the reference is never in memory beside the policy.

With `lora.rank` the trainers get a model with adapters, and these alone are published (`moat.adapters`).

A training that was killed goes on from its last checkpoint to the weights that it would have had. Checkpoints lie in the
scratch folder under a fingerprint of all that determines those weights, and are gone when the model is published.
"""

from __future__ import annotations

import hashlib
import json
import math
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from itertools import count
from pathlib import Path
from typing import Any, BinaryIO, Self

import torch
from datasets import Dataset
from transformers import PreTrainedModel, PreTrainedTokenizerBase, TrainerCallback, TrainerControl, TrainerState
from transformers.training_args import TrainingArguments
from trl import DPOConfig, DPOTrainer, SFTConfig, SFTTrainer

from moat import adapters, layout, lock, models
from moat.machine import Machine
from moat.params import Align, Sft
from moat.provenance import combined, content_hash
from moat.publish import disk_full_at
from moat.rows import answered, tell
from moat.stage import Advance, Stage, versions
from moat.tokens import Example

TRAINERS = ("torch", "transformers", "trl", "accelerate", "datasets", "peft")
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
        if self.checkpoints and self.checkpoints.due() and state.global_step < state.max_steps:
            control.should_save = True

    def on_save(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        if self.checkpoints:
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


class _Rows:
    """Mixed into a trainer: rows are token ids already, and the trainer knows which rows the update at work is made of."""

    def _prepare_dataset(self, dataset: Dataset, *args: Any, **kwargs: Any) -> Dataset:
        return dataset

    def _precompute_ref_logps(self, dataset: Dataset, *args: Any, **kwargs: Any) -> Dataset:
        return dataset  # the rows bring their own

    def watch(self, names: Sequence[str]) -> None:
        """Remember the rows of every batch, by name."""
        trainer: Any = self
        collate = trainer.data_collator
        self.names, self.recent = names, list[list[int]]()

        def keep_row(examples: list[dict[str, Any]]) -> dict[str, Any]:
            batch = collate([{name: value for name, value in one.items() if name != "row"} for one in examples])
            return dict(batch) | {"row": torch.tensor([example["row"] for example in examples])}

        trainer.data_collator = keep_row

    def training_step(self, model: Any, inputs: dict[str, Any], *args: Any, **kwargs: Any) -> Any:
        trainer: Any = self
        self.recent = [*self.recent, inputs.pop("row").tolist()][-trainer.args.gradient_accumulation_steps :]
        return super().training_step(model, inputs, *args, **kwargs)  # type: ignore[misc]

    def rows(self) -> list[str]:
        """Names of the rows of the last update."""
        return [self.names[row] for rows in self.recent for row in rows]


class _SFT(_Rows, SFTTrainer):
    """TRL's SFTTrainer on our rows."""


class _DPO(_Rows, DPOTrainer):
    """TRL's DPOTrainer on our rows."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        adapters.drop_reference(self.model)


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
    names: Sequence[str] | None = None,
    checkpoints: Checkpoints | None = None,
) -> list[dict[str, float]]:
    """Fine-tune `model` in place on the completions of `rows`; returns the log, one entry an update.

    The loss is the mean over the supervised tokens of an effective batch, whatever the micro-batch. `names` are what an
    error calls the rows (their numbers by default).
    """
    data = {
        "input_ids": [row.prompt + row.completion for row in rows],
        "labels": [[IGNORED] * len(row.prompt) + row.completion for row in rows],
    }
    config = SFTConfig(
        **arguments,
        packing=False,
        padding_free=False,
        loss_type="nll",
        completion_only_loss=True,
        shuffle_dataset=False,
        dataset_kwargs={"skip_prepare_dataset": True},
    )
    return _run(_SFT, config, model, tokenizer, data, advance, names, checkpoints)


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
) -> list[dict[str, float]]:
    """Align `model` in place; row i of `chosen` and of `rejected` share their prompt. Returns the log.

    `reference` holds log π_ref of every chosen and of every rejected completion, in nats, summed over its tokens.
    Loss: −log σ(β [(log π − log π_ref)(chosen) − (log π − log π_ref)(rejected)]), log-probabilities summed over the
    completion (Rafailov et al. 2023, eq. 7), plus `nll_weight` × the chosen completions' mean NLL per token.
    """
    data: dict[str, list[Any]] = {
        "prompt_ids": [row.prompt for row in chosen],
        "chosen_ids": [row.completion for row in chosen],
        "rejected_ids": [row.completion for row in rejected],
        "ref_chosen_logps": list(reference[0]),
        "ref_rejected_logps": list(reference[1]),
    }
    config = DPOConfig(
        **arguments,
        beta=beta,
        loss_type=["sigmoid", "sft"] if nll_weight else ["sigmoid"],
        loss_weights=[1.0, nll_weight] if nll_weight else [1.0],
        precompute_ref_log_probs=True,
        disable_dropout=True,
    )
    return _run(_DPO, config, model, tokenizer, data, advance, names, checkpoints)


def _run(
    trainer_class: Any,
    config: Any,
    model: PreTrainedModel,
    tokenizer: Any,
    data: dict[str, list[Any]],
    advance: Advance,
    names: Sequence[str] | None,
    checkpoints: Checkpoints | None,
) -> list[dict[str, float]]:
    size = len(next(iter(data.values())))
    rows = Dataset.from_dict(data | {"row": list(range(size))})
    trainer = trainer_class(model=model, args=config, train_dataset=rows, processing_class=tokenizer)
    trainer.watch(names or [str(row) for row in range(size)])
    for callback in ("PrinterCallback", "ProgressCallback"):
        for present in list(trainer.callback_handler.callbacks):
            if type(present).__name__ == callback:
                trainer.remove_callback(present)
    trainer.add_callback(_Watch(advance, trainer.rows, checkpoints))
    last = checkpoints.last() if checkpoints else None
    try:
        with disk_full_at(Path(config.output_dir)):
            trainer.train(resume_from_checkpoint=str(last) if last else None)
    except torch.OutOfMemoryError as error:
        raise BatchError(
            f"out of GPU memory with {config.per_device_train_batch_size} rows a forward pass: lower micro_batch in "
            f"machine.yaml (the effective batch stays the same). {error}"
        ) from error
    log = [entry for entry in trainer.state.log_history if "loss" in entry]
    return [{"update": entry["step"]} | {k: float(v) for k, v in entry.items() if k != "step"} for entry in log]


def _checkpoints(stage: Stage, start: Path, arguments: dict[str, Any], rows: Any, **more: Any) -> Checkpoints:
    """The checkpoints of this very training: same start, rows, settings, machine, versions and training code.

    An experiment beside the checkout may be at the same training in the same scratch folder: each has a folder of its own.
    """
    what = {
        "start": adapters.identity(start, stage.hash_of),
        "arguments": arguments,
        "machine": models.engine_facts(stage.machine) | {"versions": versions(*TRAINERS)},
        "code": combined({Path(file).name: content_hash(Path(file)) for file in (__file__, adapters.__file__)}),
        "lora": stage.params.lora.model_dump(),
        **more,
    }
    told = hashlib.sha256(json.dumps([what, rows], sort_keys=True).encode()).hexdigest()[:16]
    name = f"{stage.label}-{told}"
    claimed, claim = lock.first_free(stage.scratch / "locks" / (f"{name}-{n}" if n else name) for n in count())
    checkpoints = Checkpoints(stage.scratch / "checkpoints" / claimed.name, stage.machine.checkpoint, claim)
    if last := checkpoints.last():
        stage.say(f"going on from update {last.name.rpartition('-')[2]} of a run that was interrupted")
    return checkpoints


def _ids(rows: Sequence[Example]) -> list[list[list[int]]]:
    return [[row.prompt, row.completion] for row in rows]


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
    facts: Mapping[str, Any],
) -> None:
    """Load `start`, fine-tune it on `rows`, publish `target` with `facts`; `updates` overrides the epochs of `settings`.

    Raises RowError for rows that cannot be learned from, FloatingPointError when the loss is not a number.
    """
    check_rows(rows, names, stage.params.max_length)
    adapters.check_start(start, stage.params.lora)
    updates = updates or updates_for(settings, len(rows))
    models.set_up(stage.machine)
    shared = arguments(settings, updates, seed, stage.machine)
    with _checkpoints(stage, start, shared, _ids(rows)) as checkpoints:
        model = models.load_for_training(start, stage.machine, stage.params.lora, seed)
        tokenizer = models.load_tokenizer(start)
        with stage.progress("training", updates) as advance:
            log = sft(model, tokenizer, rows, _in(checkpoints, shared), advance, names, checkpoints)
        _finish(stage, model, target, log, {**facts, "rows": len(rows), "updates": updates})
        checkpoints.clear()


def reference_logprobs(
    stage: Stage, reference: Path, chosen: Sequence[Example], rejected: Sequence[Example], names: Sequence[str]
) -> tuple[list[float], list[float]]:
    """log π_ref (nats, summed over the completion) of every chosen and every rejected row. Raises EngineError."""
    runner = models.runner(stage, reference, max_failed=0.0)
    with stage.progress("reference", 2 * len(chosen)) as advance:
        made = runner.score([*chosen, *rejected], [*names, *names], advance)
    tell(stage, runner)
    sums = [float(values.astype("f8").sum()) for values in answered(made, made)]
    return sums[: len(chosen)], sums[len(chosen) :]


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
    facts: Mapping[str, Any],
) -> None:
    """Load `start`, align it on the pairs against the model in `reference`, publish `target`. Raises as `train_sft` does."""
    for rows in (chosen, rejected):
        check_rows(rows, names, stage.params.max_length)
    adapters.check_start(start, stage.params.lora)
    models.set_up(stage.machine)
    log_ref = reference_logprobs(stage, reference, chosen, rejected, names)
    updates = updates_for(settings, len(chosen))
    shared = arguments(settings, updates, seed, stage.machine)
    if settings.nll_weight and shared["gradient_accumulation_steps"] > 1:
        raise BatchError(
            "align.nll_weight takes a mean over the tokens of a micro-batch, so accumulation would change the loss: "
            "set `micro_batch: null` in machine.yaml, or align.nll_weight to 0"
        )
    weights = {"beta": settings.beta, "nll_weight": settings.nll_weight, "reference": log_ref}
    with _checkpoints(stage, start, shared, [_ids(chosen), _ids(rejected)], **weights) as checkpoints:
        model = models.load_for_training(start, stage.machine, stage.params.lora, seed)
        tokenizer = models.load_tokenizer(start)
        with stage.progress("aligning", updates) as advance:
            log = dpo(
                model,
                log_ref,
                tokenizer,
                chosen,
                rejected,
                _in(checkpoints, shared),
                settings.beta,
                settings.nll_weight,
                advance,
                names,
                checkpoints,
            )
        for name in ("logps/chosen", "logps/rejected", "rewards/margins"):
            stage.say(f"{name} {log[0][name]:.3f} → {log[-1][name]:.3f}")
        _finish(stage, model, target, log, {**facts, "pairs": len(chosen), "updates": updates})
        checkpoints.clear()


def _in(checkpoints: Checkpoints, arguments: dict[str, Any]) -> dict[str, Any]:
    return arguments | {"output_dir": str(checkpoints.folder)}


def _finish(stage: Stage, model: PreTrainedModel, target: Path, log: list[dict[str, float]], facts: dict[str, Any]) -> None:
    kept = [{name: entry[name] for name in sorted(entry) if name in LOGGED} for entry in log]
    base = {"base": stage.hash_of(layout.BASE_MODEL, without=layout.CARD)} if stage.params.lora.rank else {}
    models.save(model, target, facts | base | {"log": kept} | models.engine_facts(stage.machine))
    stage.say(f"{len(log):,} updates, loss {log[0]['loss']:.3f} → {log[-1]['loss']:.3f}")
