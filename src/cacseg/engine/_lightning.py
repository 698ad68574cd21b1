"""What is used of Lightning."""

from __future__ import annotations

from lightning.fabric.plugins import CheckpointIO as CheckpointIO
from lightning.fabric.utilities.exceptions import MisconfigurationException as MisconfigurationException
from lightning.pytorch import Callback as Callback
from lightning.pytorch import LightningDataModule as LightningDataModule
from lightning.pytorch import LightningModule as LightningModule
from lightning.pytorch import Trainer as Trainer
from lightning.pytorch.callbacks import Checkpoint as Checkpoint
from lightning.pytorch.callbacks import RichProgressBar as RichProgressBar
from lightning.pytorch.loggers import TensorBoardLogger as TensorBoardLogger
from lightning.pytorch.loggers.logger import Logger as Logger
from lightning.pytorch.utilities import rank_zero_only as rank_zero_only


def is_first_process() -> bool:
    """Whether this is rank 0, which prints and writes; known before any trainer exists."""
    rank: int = getattr(rank_zero_only, "rank", 0)
    return rank == 0
