"""The demo: one small model on generated scenes."""

from __future__ import annotations

from cacseg.recipes.config import Config, change
from cacseg.recipes.named import synthetic

STEPS = 100
IMAGES = 120
SIZE = (96, 96)


def demo(steps: int = STEPS, images: int = IMAGES) -> Config:
    """Minutes on two CPU cores, from random weights.

    The scenes' light differs from image to image already, so colours are not distorted further. The table is of the
    last step: nothing is chosen on the scenes that it is made from.
    """
    return change(
        synthetic(),
        {
            "model.name": "deeplabv3plus",
            "model.backbone": "mobilenetv2_035",
            "model.head_channels": 64,
            "model.output_stride": 16,
            "model.auxiliary": False,
            "data.size": SIZE,
            "data.val_length": images,
            "data.crop": SIZE,
            "data.ratios": (1.0, 1.0),
            "data.max_share": 1.0,
            "data.distort": False,
            "optimiser.rate": 3e-3,
            "schedule.steps": steps,
            "schedule.warmup_steps": min(10, steps // 10),
            "training.batch": 8,
            "training.save_every": steps,
            "training.scored_train_images": 24,
            "training.workers": 0,  # scenes take less time than the start of processes that draw them
        },
    )
