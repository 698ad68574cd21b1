"""Runs the contract of `cacseg.convert` on mmsegmentation itself: python tools/check_convert_with_mmsegmentation.py

Needs the environment of make_mmsegmentation_reference.py, `pip install jaxtyping`, and cacseg on PYTHONPATH. Three
parts, each fails with an error:

    the models of mmsegmentation's own configs/_base_/models (those that can be built there): `plain` is bit-equal to
    the original, every trainable parameter gets a gradient from the losses, restore gives the original back; or refused
    four models under DistributedDataParallel, two processes, find_unused_parameters=False: two steps, equal parameters
    one of them through mmengine: train_step with its samples and its optimiser wrapper, test_step
"""

import argparse
import tempfile
from importlib.metadata import version
from pathlib import Path

import mmseg
import torch
from make_mmsegmentation_reference import BN, CONFIGS, MODELS  # and its stand-ins for what is not installed
from mmengine.config import Config, ConfigDict
from mmengine.optim import OptimWrapper
from mmengine.structures import PixelData
from mmseg.structures import SegDataSample
from torch import distributed, multiprocessing
from torch.nn.parallel import DistributedDataParallel

import cacseg

FOLDER = Path(mmseg.__file__).parent / ".mim" / "configs" / "_base_" / "models"
SIZES = {"lraspp_m-v3-d8": 400}  # where 128 pixels are too few
FIXED_SIZE = ("upernet_beit", "upernet_mae")  # transformers that take images of one size alone, 640x640
DISTRIBUTED = ("fcn_mobilenetv2", "upernet_resnet50", "deeplabv3plus_resnet50", "ocrnet_hrnet_w18")


def settle(config):
    """No synchronised batch statistics and nothing to download, in place."""
    if isinstance(config, dict):
        if config.get("type") == "SyncBN":
            config.update(BN)
        for key, value in config.items():
            if key == "pretrained" or (key == "init_cfg" and isinstance(value, dict) and value["type"] == "Pretrained"):
                config[key] = None
            settle(value)
    elif isinstance(config, list | tuple):
        for value in config:
            settle(value)


def first(output):
    return output[0] if isinstance(output, tuple | list) else output


def check(name):
    """What became of one model, in words."""
    try:
        config = Config.fromfile(FOLDER / f"{name}.py").model.to_dict()
        settle(config)
        if name in FIXED_SIZE:
            config["backbone"]["img_size"] = (128, 128)
        torch.manual_seed(0)
        model = MODELS.build(config)
    except (AssertionError, ImportError, RuntimeError, TypeError) as error:
        return f"not built here: {str(error).splitlines()[0][:80]}"
    kind, keys, size = type(model), list(model.state_dict()), SIZES.get(name, 128)
    images, labels = torch.randn(2, 3, size, size), torch.randint(0, model.num_classes, (2, size, size))
    labels[:, :9] = 255
    try:
        cacseg.convert(model)
    except ValueError as error:
        return f"refused: {error}"
    cacseg.restore(model)
    with torch.no_grad():
        try:
            before = first(model.eval()(images))
        except RuntimeError as error:
            return f"not run here: the original fails, {str(error).splitlines()[0]}"
        cacseg.convert(model)
        assert torch.equal(first(model.plain(images)), before), f"{name}: plain differs from the original"
        assert first(model(images)).shape == before.shape
        assert not torch.equal(first(model(images)), before)
    losses = model.train().loss(images, labels)
    losses["total"].backward()
    left_out = [key for key, one in model.named_parameters() if one.requires_grad and one.grad is None]
    assert not left_out, f"{name}: no gradient for {left_out}"
    assert all(value.isfinite() for value in losses.values())
    auxiliaries = model.conversion.auxiliaries
    cacseg.restore(model)
    assert type(model) is kind
    assert list(model.state_dict()) == keys
    return f"converted, auxiliaries {auxiliaries}" if auxiliaries else "converted"


def train_two_steps(rank, folder, name):
    distributed.init_process_group("gloo", init_method=f"file://{folder}/{name}", rank=rank, world_size=2)
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = DistributedDataParallel(cacseg.convert(MODELS.build(CONFIGS[name]())), find_unused_parameters=False)
    optimiser = torch.optim.SGD(model.parameters(), lr=0.01)
    for step in range(2):  # the second step would raise if the first had left a parameter out
        torch.manual_seed(2 * step + rank)
        losses = model(torch.randn(2, 3, 64, 64), labels=torch.randint(0, 150, (2, 64, 64)))
        optimiser.zero_grad()
        losses["total"].backward()
        optimiser.step()
    torch.save([one.detach() for one in model.parameters()], f"{folder}/{name}{rank}.pt")
    distributed.destroy_process_group()


def check_distributed(name):
    with tempfile.TemporaryDirectory() as folder:
        multiprocessing.spawn(train_two_steps, (folder, name), nprocs=2)
        mine, other = (torch.load(f"{folder}/{name}{rank}.pt", weights_only=True) for rank in (0, 1))
    assert all(torch.equal(a, b) for a, b in zip(mine, other, strict=True)), f"{name}: the processes drifted apart"
    return "two steps in two processes, equal parameters"


def check_runner(name):
    torch.manual_seed(0)
    model = cacseg.convert(MODELS.build(ConfigDict(CONFIGS[name]())))
    images = [torch.randint(0, 256, (3, 512, 512), dtype=torch.uint8) for _ in range(2)]
    samples = [SegDataSample(metainfo={"img_shape": (512, 512), "ori_shape": (512, 512)}) for _ in images]
    for sample in samples:
        sample.gt_sem_seg = PixelData(data=torch.randint(0, 150, (1, 512, 512)))
    batch, before = {"inputs": images, "data_samples": samples}, model.auxiliary_head.conv_seg.weight.detach().clone()
    wrapper = OptimWrapper(torch.optim.SGD(model.parameters(), lr=0.01))
    logged = model.train().train_step(batch, wrapper)
    weights = {"plain": 1.0, "context": 1.0, "oracle": 1.0, "distillation": 1.0, "overlap": 3.0, "auxiliary": 0.4}
    total = sum(weight * logged[term] for term, weight in weights.items())
    torch.testing.assert_close(logged["loss"], total)
    assert not torch.equal(model.auxiliary_head.conv_seg.weight, before)
    with torch.no_grad():
        (answer, _) = model.eval().test_step(batch)
    assert answer.pred_sem_seg.data.shape == (1, 512, 512)
    return f"train_step logs {', '.join(logged)}; test_step predicts"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", default=sorted(path.stem for path in FOLDER.glob("*.py")))
    names = parser.parse_args().names
    packages = ("mmsegmentation", "mmengine", "mmcv-lite", "torch")
    print(", ".join(f"{package} {version(package)}" for package in packages))
    results = {}
    for name in names:
        results[name] = check(name)
        print(f"{name}: {results[name]}", flush=True)
    counts = [sum(text.startswith(word) for text in results.values()) for word in ("converted", "refused", "not ")]
    print("of {} models: {} converted, {} refused, {} not built or run here".format(len(results), *counts))
    for name in DISTRIBUTED:
        print(f"{name}: {check_distributed(name)}", flush=True)
    print(f"fcn_mobilenetv2: {check_runner('fcn_mobilenetv2')}")


if __name__ == "__main__":
    main()
