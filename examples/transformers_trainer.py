"""A model of transformers with its own Trainer, on generated scenes.

    python examples/transformers_trainer.py [--steps 40]

The Trainer needs nothing special: with labels, the converted model's `loss` is the context loss.
"""

import argparse
import tempfile

import torch
from scenes import draw_scenes
from torch.utils.data import Dataset

import cacseg  # first: it lets torchvision import beside a CPU build of torch

# isort: split
from transformers import SegformerConfig, SegformerForSemanticSegmentation, Trainer, TrainingArguments

CLASSES = 4


class Scenes(Dataset[dict[str, torch.Tensor]]):
    """One scene for each index, in the words of transformers."""

    def __init__(self, count: int, seed: int) -> None:
        self.count, self.seed = count, seed

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        (image,), (labels,) = draw_scenes(1, seed=self.seed + index)
        return {"pixel_values": image, "labels": labels}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=40)
    steps = parser.parse_args().steps
    torch.manual_seed(0)

    config = SegformerConfig(
        num_labels=CLASSES, hidden_sizes=[16, 32, 48, 64], depths=[1, 1, 1, 1], decoder_hidden_size=64
    )
    model = cacseg.convert(SegformerForSemanticSegmentation(config))
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            folder,
            max_steps=steps,
            per_device_train_batch_size=8,
            learning_rate=2e-3,
            logging_steps=10,
            save_strategy="no",
            report_to=[],
            use_cpu=True,
            disable_tqdm=True,
            dataloader_pin_memory=False,
        )
        trainer = Trainer(model, arguments, train_dataset=Scenes(1000, 0), eval_dataset=Scenes(16, 10_000))
        trainer.train()
        print(f"loss on 16 new scenes: {trainer.evaluate()['eval_loss']:.3f}")

    images, labels = draw_scenes(16, seed=20_000)
    with torch.no_grad():
        model.eval()
        for name, output in (("context", model(images)), ("plain", model.plain(images))):
            scores = torch.nn.functional.interpolate(output.logits, size=labels.shape[1:], mode="bilinear")
            print(f"{name} classifier: {(scores.argmax(1) == labels).float().mean():.1%} of the pixels are right")


if __name__ == "__main__":
    main()
