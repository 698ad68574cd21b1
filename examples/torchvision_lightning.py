"""A model of torchvision under Lightning, on generated scenes.

    python examples/torchvision_lightning.py [--steps 60]

The auxiliary classifier stays plain; its loss joins with the weight 0.4.
"""

import argparse

import torch
from scenes import draw_scenes
from torch import Tensor
from torch.utils.data import DataLoader, TensorDataset

import cacseg  # first: it lets torchvision import beside a CPU build of torch

# isort: split
import lightning
from torchvision.models import resnet18
from torchvision.models.feature_extraction import create_feature_extractor
from torchvision.models.segmentation import FCN
from torchvision.models.segmentation.fcn import FCNHead

CLASSES = 4


class Task(lightning.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        # Small enough to learn from nothing in a minute; fcn_resnet50(...) and the others are converted the same way.
        backbone = create_feature_extractor(resnet18(weights=None), {"layer2": "out", "layer1": "aux"})
        self.model = cacseg.convert(FCN(backbone, FCNHead(128, CLASSES), FCNHead(64, CLASSES)))

    def training_step(self, batch: tuple[Tensor, Tensor]) -> Tensor:
        losses = self.model.loss(*batch)
        self.log_dict(losses)
        return losses["total"]

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=2e-3)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=60)
    steps = parser.parse_args().steps
    lightning.seed_everything(0, verbose=False)

    task = Task()
    trainer = lightning.Trainer(
        max_steps=steps,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(task, DataLoader(TensorDataset(*draw_scenes(4 * steps, seed=1)), batch_size=4))
    print("  ".join(f"{name} {value:.3f}" for name, value in trainer.callback_metrics.items()))

    images, labels = draw_scenes(16, seed=2)
    with torch.no_grad():
        task.eval()
        for name, output in (("context", task.model(images)), ("plain", task.model.plain(images))):
            print(
                f"{name} classifier: {(output['out'].argmax(1) == labels).float().mean():.1%} of the pixels are right"
            )


if __name__ == "__main__":
    main()
