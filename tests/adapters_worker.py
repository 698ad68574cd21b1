"""What each process of the distributed test of converted models does; importable by a spawned process."""

import torch
from torch import distributed
from torch.nn.parallel import DistributedDataParallel

import cacseg
import mmseg_standin
from architectures import ARCHITECTURES, draw

MODELS = {
    "smp Unet": ARCHITECTURES["smp Unet"],
    "torchvision deeplabv3_mobilenet_v3_large": ARCHITECTURES["torchvision deeplabv3_mobilenet_v3_large"],
    "transformers Segformer": ARCHITECTURES["transformers Segformer"],
    "transformers UperNet with ConvNeXt": ARCHITECTURES["transformers UperNet with ConvNeXt"],
    "mmseg, two auxiliaries": lambda: mmseg_standin.build("two auxiliaries"),
    "mmseg, cascade": lambda: mmseg_standin.build("cascade"),
}


def train_two_steps(rank, folder):
    distributed.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2)
    torch.set_num_threads(1)
    trained = []
    for name, make in MODELS.items():
        torch.manual_seed(0)
        converted = cacseg.convert(make())
        model = DistributedDataParallel(converted, find_unused_parameters=False)
        optimiser = torch.optim.SGD(model.parameters(), lr=0.01)
        for step in range(2):  # the second step would raise if the first had left a parameter out
            images, labels = draw(seed=2 * step + rank)
            given = model(images, labels=labels)
            optimiser.zero_grad()
            (given.loss if name.startswith("transformers") else given["total"]).backward()
            optimiser.step()
        trained += [parameter.detach() for parameter in model.parameters()]
    torch.save(trained, f"{folder}/{rank}.pt")
    distributed.destroy_process_group()
