"""What each process of the distributed test does; a module of its own, so that a spawned process can import it."""

import torch
from torch import distributed
from torch.nn.parallel import DistributedDataParallel

from cacseg.models import create_model


def train_two_steps(rank, folder):
    distributed.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2)
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = DistributedDataParallel(create_model("fcn_mobilenetv2", 4), find_unused_parameters=False)
    optimiser = torch.optim.SGD(model.parameters(), lr=0.01)
    torch.manual_seed(rank)
    for _ in range(2):  # the second step would raise if the first had left a parameter out
        losses = model(torch.randn(2, 3, 64, 64), torch.randint(0, 4, (2, 64, 64)))
        optimiser.zero_grad()
        losses["total"].backward()
        optimiser.step()
    torch.save([parameter.detach() for parameter in model.parameters()], f"{folder}/{rank}.pt")
    distributed.destroy_process_group()
