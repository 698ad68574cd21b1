"""What each process of the distributed evaluation does, in a module of its own that a spawned process can import."""

import torch
from torch import distributed

from cacseg.data import open_data
from cacseg.data.sample import FaultyImagesError
from cacseg.engine.evaluate import evaluate
from cacseg.models import create_model


def small_model(names=None, num_classes=3):
    torch.manual_seed(4)  # of which every class is answered somewhere
    model = create_model(
        "fcn", num_classes, backbone="test_resnet", head_channels=16, preset="released"
    ).eval()  # begins away from plain
    model.class_names = names
    return model


class FirstClasses:
    """The first three classes of the generated scenes; the others are ignored."""

    def __init__(self, data):
        self.data = data
        self.name, self.split, self.ignore_index = data.name, data.split, 255
        self.class_names, self.palette = data.class_names[:3], data.palette[:3]

    def __len__(self):
        return len(self.data)

    def image_name(self, index):
        return self.data.image_name(index)

    def read(self, index):
        sample = self.data.read(index)
        labels = sample.labels.copy()
        labels[labels > 2] = 255
        return sample._replace(labels=labels)


class Damaged(FirstClasses):
    """One image, which one of the processes reads, cannot be read."""

    def read(self, index):
        if index == 3:
            raise OSError(f"{self.image_name(index)} is damaged.")
        return super().read(index)


def small_data():
    return FirstClasses(open_data("synthetic", None, "val", size=(48, 64), length=5))  # odd: shares differ


def evaluate_share(rank, folder):
    distributed.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2)
    torch.set_num_threads(1)
    found = evaluate(small_model(), small_data(), oracle=True)
    near = {name: torch.stack(one) for name, one in found.boundaries.items()}
    content = {"counts": found.counts, "boundaries": near, "names": [one.name for one in found.images]}
    try:
        evaluate(small_model(), Damaged(open_data("synthetic", None, "val", size=(48, 64), length=5)))
    except FaultyImagesError as error:
        content |= {"summary": error.summary, "reasons": list(error.reasons)}
    torch.save(content, f"{folder}/{rank}.pt")
    distributed.destroy_process_group()
