"""Trains a task on its data and leaves the trained model in a folder."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import logging
import os
import re
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any, Literal, NamedTuple

import torch
from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch import Callback, Trainer
from lightning.pytorch.loggers import Logger, TensorBoardLogger
from lightning.pytorch.utilities import rank_zero_only
from torch.nn.modules.batchnorm import _BatchNorm

from cacseg._files import write_file
from cacseg.engine.callbacks import DryRun, Interrupt, Randomness, Watch
from cacseg.engine.checkpoints import (
    LAST,
    SCORES,
    AtomicFiles,
    Averaging,
    Checkpoints,
    checkpoint_bytes,
    read_checkpoint,
)
from cacseg.engine.loaders import Loaders
from cacseg.engine.log import METRICS, Bar, CsvLog, Log
from cacseg.engine.preflight import check_data, check_model, check_space, folder_lock
from cacseg.engine.resumable import check_facts, check_states
from cacseg.engine.stream import share_of_batch
from cacseg.engine.strips import Strips
from cacseg.engine.task import SegmentationTask
from cacseg.functional._precision import matmul_precision

PRECISIONS: dict[str, Any] = {"fp32": "32-true", "tf32": "32-true", "bf16": "bf16-mixed", "fp16": "16-mixed"}


# What gloo, NCCL and torch's store say when a process is gone.
LOST = re.compile(r"gloo|NCCL|TCPStore|[Cc]onnection (closed|reset|refused)|Broken pipe|remote process")


class Result(NamedTuple):
    """How a run ended."""

    step: int
    best_mean_iou: float  # 0 to 1
    best_step: int


def train(
    task: SegmentationTask,
    loaders: Loaders,
    folder: str | Path,
    *,
    resume: bool = False,
    passed: Callable[[], None] | None = None,
    report: Callable[[str], None] = print,
    progress: bool = True,
) -> Result:
    """Trains `task.model`; the folder is made, and with `resume` it holds the run to continue.

    Ctrl-C and SIGTERM raise `Stopped` after a checkpoint. The files are those of `cacseg.engine.checkpoints`,
    metrics.csv and TensorBoard's.

    Args:
        task, loaders: what is trained and how, and on what.
        folder: of this run.
        passed: called once on rank 0, after the dry run and before the first step.
        report: callback for progress messages.
        progress: whether progress is shown: a bar on stderr if that is a terminal, else lines by `report`.
    """
    folder, model, options, steps = Path(folder), task.model, task.training_options, task.schedule.steps
    check_data(loaders.train, loaders.validation)
    check_model(model, loaders.train)
    averaging = None if options.ema_decay is None else Averaging(options.ema_decay)
    check_space(folder, *checkpoint_bytes(model, task.optimiser_options.name, averaging is not None))
    folder.mkdir(parents=True, exist_ok=True)

    last = folder / LAST
    first_step, checkpoint = 0, None
    if resume and last.exists():
        checkpoint = check_facts(read_checkpoint(last), last, steps)
        first_step = checkpoint["global_step"]
        out_of_patience = options.patience is not None and checkpoint["since_best"] >= options.patience
        if first_step >= steps or out_of_patience:
            scores = {
                **json.loads(checkpoint["scores"] or "{}"),
                "finished": True,
            }  # even if training.patience was lowered
            write_file(folder / SCORES, json.dumps(scores) + "\n")  # which a kill may have prevented
            report(f"{folder} is finished: {first_step} of {steps} steps are done")
            return Result(first_step, checkpoint["best"], checkpoint["best_step"])

    bar = progress and sys.stderr.isatty()
    log = Log(report, steps, options.log_every, lines=progress and not bar)
    interrupt, watch = Interrupt(report), Watch(options.log_every)
    checkpoints = Checkpoints(
        folder,
        steps=steps,
        options=options,
        averaging=averaging,
        interrupt=interrupt,
        check=watch.check_all,
        report=report,
    )
    # In this order: the dry run before the random states are set; averages, checks and rows before what is saved.
    callbacks: list[Callback] = [DryRun(passed, report), Randomness(options.seed), interrupt]
    callbacks += [*([averaging] if averaging else []), watch, log]
    callbacks += [Strips()] if "tensorboard" in options.loggers else []
    callbacks += [*([Bar(log, steps * loaders.accumulate)] if bar else []), checkpoints]
    products = matmul_precision("high") if options.precision == "tf32" else nullcontext()
    with _quiet_lightning(), folder_lock(folder), products:
        trainer = _make_trainer(
            accelerator=options.accelerator,
            **_devices_and_nodes(options.devices, options.nodes),
            precision=PRECISIONS[options.precision],
            max_steps=steps,
            max_epochs=-1,
            accumulate_grad_batches=loaders.accumulate,
            val_check_interval=options.validate_every * loaders.accumulate,
            check_val_every_n_epoch=None,
            num_sanity_val_steps=0,
            use_distributed_sampler=False,
            deterministic=options.deterministic,
            logger=_make_loggers(options.loggers, folder, first_step, resume),
            callbacks=callbacks,
            plugins=[AtomicFiles()],
            default_root_dir=folder,
            enable_progress_bar=bar,
            enable_model_summary=False,
        )
        if checkpoint is not None:
            check_states(checkpoint, last, task, trainer, averaging is not None)
            del checkpoint
        if options.precision == "fp16" and trainer.strategy.root_device.type == "cpu":
            raise ValueError("training in fp16 needs a GPU; this run would be on the CPU. Use bf16 or fp32.")
        if options.graph is True and trainer.world_size > 1:  # gradients would not be exchanged
            raise ValueError(
                f"steps can be recorded on one device; this run has {trainer.world_size}. Set training.graph=false."
            )
        share = share_of_batch(loaders.batch, loaders.accumulate, trainer.world_size)
        # A frozen normalisation is in evaluation mode and takes no batch statistics.
        takes_statistics = any(isinstance(one, _BatchNorm) and one.training for one in model.modules())
        if options.synchronise_batch_norm and trainer.world_size > 1 and takes_statistics:
            if trainer.strategy.root_device.type != "cuda":
                raise ValueError(
                    f"synchronised batch normalisation needs CUDA devices; got {trainer.world_size} of type "
                    f"{trainer.strategy.root_device.type}. Set training.freeze_batch_norm=true, or "
                    "training.synchronise_batch_norm=false to let each process normalise its own part."
                )
            model.synchronise_batch_norm()
        if trainer.is_global_zero:
            start = f"resuming after step {first_step}" if first_step else "starting"
            report(
                f"{start}: {steps} steps of {loaders.batch} images, {share} at a time on {trainer.world_size} "
                f"device{'s' if trainer.world_size > 1 else ''} ({trainer.strategy.root_device.type}, "
                f"{options.precision}{', recorded steps' if options.graph is True else ''})"
            )
        try:
            trainer.fit(task, datamodule=loaders, ckpt_path=last if first_step else None, weights_only=True)
        except (RuntimeError, MemoryError) as error:
            words = explain_reader(error) or (explain_rank(error) if trainer.world_size > 1 else None)
            if words is None:
                raise
            then = f"continue with: cacseg train --resume -o {folder}" if last.exists() else "start the run again"
            raise OSError(f"{words}; {then}") from error
        except (ValueError, OSError) as error:
            text, name = str(error), type(error).__name__
            if not text.startswith("Caught "):
                raise
            # Of a loader's worker, whose traceback is left out of the message.
            raise type(error)(text.rpartition(f"{name}: ")[2].strip() or text) from error
    return Result(trainer.global_step, checkpoints.best, checkpoints.best_step)


def explain_rank(error: BaseException) -> str | None:
    """That another process of the run was lost; None of any other error."""
    if not LOST.search(str(error)):
        return None
    said = " ".join(str(error).split())[:160]
    return f"another process of this run was lost ({said}). Was it killed, or out of memory? Fewer devices can go on"


def explain_reader(error: BaseException) -> str | None:
    """What happened to a worker of a loader that ended before its time, and what to do; None of any other error."""
    text = " ".join(str(error).split())
    if isinstance(error, MemoryError) and text.startswith("Caught MemoryError in DataLoader worker"):
        how = "had no memory left"
    elif "DataLoader worker" in text and "Bus error" in text:
        return (
            "a process that reads images found no shared memory left (bus error). Give the machine more of it (of "
            "Docker: --shm-size 8g or --ipc host), or lower training.workers"
        )
    elif "DataLoader worker" in text and "Segmentation fault" in text:
        return "a process that reads images crashed (segmentation fault). Look for the image with `cacseg data check`"
    elif "DataLoader worker" in text and (found := re.search(r"killed by signal: (\w+)", text)):
        how = f"was ended by the system (signal: {found[1]})"
    elif "DataLoader worker" in text and "exited unexpectedly" in text:
        how = "was ended by the system"
    else:
        return None
    return (
        f"a process that reads images {how}; the likely cause is that memory ran out. Lower training.workers, "
        "training.batch or data.crop, or give the run more memory"
    )


def _make_trainer(**options: Any) -> Trainer:
    try:
        return Trainer(**options)
    except MisconfigurationException as error:  # devices that are not there
        asked = f"accelerator={options['accelerator']!r}, devices={options['devices']!r}"
        raise ValueError(
            f"this machine cannot train with {asked} ({' '.join(str(error).split()).rstrip('.!')}). It shows "
            f"{torch.cuda.device_count()} CUDA devices; change training.accelerator or training.devices."
        ) from error


def _devices_and_nodes(devices: int | Literal["auto"], nodes: int) -> dict[str, Any]:
    """Devices and nodes for the Trainer; within torchrun its numbers."""
    if "TORCHELASTIC_RUN_ID" not in os.environ:
        return {"devices": devices, "num_nodes": nodes}
    here, everywhere = int(os.environ["LOCAL_WORLD_SIZE"]), int(os.environ["WORLD_SIZE"])
    return {"devices": here, "num_nodes": everywhere // here}


def _make_loggers(names: Sequence[str], folder: Path, first_step: int, resume: bool) -> list[Logger]:
    made: list[Logger] = []
    for name in names:
        if name == "csv":
            made.append(CsvLog(folder / METRICS, keep_steps=first_step))
        elif name == "tensorboard":
            # purge_step hides what an interrupted run wrote after its last checkpoint, or before its first.
            purge = first_step + 1 if resume else None
            made.append(TensorBoardLogger(folder, name="", version="tensorboard", purge_step=purge))
        else:
            made.append(_make_wandb(folder))
    return made


def _make_wandb(folder: Path) -> Logger:
    if importlib.util.find_spec("wandb") is None:
        raise ModuleNotFoundError("the logger 'wandb' needs wandb, which is not installed: pip install wandb")
    from lightning.pytorch.loggers import WandbLogger

    class WandbLog(WandbLogger):
        """Finishes its run: otherwise the next run of this process would continue it."""

        @rank_zero_only
        def finalize(self, status: str) -> None:
            super().finalize(status)
            if self._experiment is not None:
                self._experiment.finish(exit_code=0 if status == "success" else 1)

    # The same run again when this folder's is resumed, and no other folder's, whatever its name.
    name = f"{folder.name}-{hashlib.sha256(str(folder.resolve()).encode()).hexdigest()[:8]}"
    return WandbLog(project="cacseg", name=folder.name, id=name, save_dir=folder, resume="allow")


@contextmanager
def _quiet_lightning() -> Iterator[None]:
    """Hides Lightning's progress messages, and its hints about what is intended here."""
    loggers = [logging.getLogger(name) for name in ("lightning.pytorch", "lightning.fabric")]
    levels = [logger.level for logger in loggers]
    with warnings.catch_warnings():
        for hint in (
            "The .*dataloader.* does not have many workers",
            "Found .* module.* in eval mode",
            "Checkpoint directory .* exists and is not empty",
            "GPU available but not used",
            ".*AMP with fp16 is not supported on CPU",  # an error here
            "Total length of .* across ranks is zero",
            ".*treespec, LeafSpec.* is deprecated",
            "The AccumulateGrad node's stream does not match",  # Lightning wraps the model on a stream of its own
            "Detected call of `lr_scheduler.step",  # fp16 leaves out first steps until its scale is right
        ):
            warnings.filterwarnings("ignore", message=hint)
        for logger in loggers:
            logger.setLevel(logging.WARNING)
        try:
            yield
        finally:
            for logger, level in zip(loggers, levels, strict=True):
                logger.setLevel(level)
