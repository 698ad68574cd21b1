"""What is used of Lightning, imported after torchvision has been made importable (Lightning imports it)."""

from __future__ import annotations

from cacseg._torchvision import ensure_torchvision_imports

ensure_torchvision_imports()

from lightning.fabric.plugins import CheckpointIO as CheckpointIO  # noqa: E402
from lightning.fabric.utilities.exceptions import MisconfigurationException as MisconfigurationException  # noqa: E402
from lightning.pytorch import Callback as Callback  # noqa: E402
from lightning.pytorch import LightningDataModule as LightningDataModule  # noqa: E402
from lightning.pytorch import LightningModule as LightningModule  # noqa: E402
from lightning.pytorch import Trainer as Trainer  # noqa: E402
from lightning.pytorch.callbacks import Checkpoint as Checkpoint  # noqa: E402
from lightning.pytorch.callbacks import RichProgressBar as RichProgressBar  # noqa: E402
from lightning.pytorch.callbacks import WeightAveraging as WeightAveraging  # noqa: E402
from lightning.pytorch.loggers import TensorBoardLogger as TensorBoardLogger  # noqa: E402
from lightning.pytorch.loggers.logger import Logger as Logger  # noqa: E402
from lightning.pytorch.utilities import rank_zero_only as rank_zero_only  # noqa: E402


def is_first_process() -> bool:
    """Whether this is rank 0, which prints and writes; known before any trainer exists."""
    rank: int = getattr(rank_zero_only, "rank", 0)
    return rank == 0
