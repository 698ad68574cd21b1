"""The table of architectures is whole, and the documentation shows it."""

import re
import subprocess
import sys
from pathlib import Path

import torch
import transformers
from transformers.models.auto import modeling_auto

from architectures import segmentation, smp
from cacseg.adapters import SUPPORTED

ROOT = Path(__file__).parent.parent.parent


def of(package):
    return {architecture: row for (name, architecture), row in SUPPORTED.items() if name == package}


def test_every_row_has_a_seam_or_a_reason():
    assert all(bool(row.seam) != bool(row.refusal) for row in SUPPORTED.values())


def test_every_architecture_of_smp_has_a_row():
    known = {kind.__name__ for kind in smp.MODEL_ARCHITECTURES_MAPPING.values()}
    assert known <= set(of("segmentation_models_pytorch"))


def test_every_architecture_of_torchvision_has_a_row():
    known = {name for name in ("FCN", "DeepLabV3", "LRASPP") if isinstance(getattr(segmentation, name), type)}
    assert known == set(of("torchvision"))


def test_every_class_of_transformers_has_a_row():
    rows = of("transformers")
    pixels = set(modeling_auto.MODEL_FOR_SEMANTIC_SEGMENTATION_MAPPING_NAMES.values())
    masks = {
        *modeling_auto.MODEL_FOR_UNIVERSAL_SEGMENTATION_MAPPING_NAMES.values(),
        *modeling_auto.MODEL_FOR_INSTANCE_SEGMENTATION_MAPPING_NAMES.values(),
        *modeling_auto.MODEL_FOR_MASK_GENERATION_MAPPING_NAMES.values(),
    }
    every = {name for name in dir(transformers) if re.search(r"^(?!Auto)\w+For\w*Segmentation$", name)}
    assert len(every) >= 16
    assert every <= set(rows)
    assert pixels <= {name for name, row in rows.items() if row.seam}
    assert masks <= {name for name, row in rows.items() if row.refusal}
    assert all(isinstance(getattr(transformers, name), type) for name in pixels | masks)


def test_the_before_and_after_of_the_readme():
    """What the diff leaves and adds runs."""
    block = re.search(r"```diff\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    code = "\n".join(line[2:] for line in block[1].splitlines() if not line.startswith("-"))
    names = {"loader": [(torch.randn(2, 3, 64, 64), torch.randint(0, 19, (2, 64, 64)))]}
    exec(code.replace("classes=19", "classes=19, encoder_weights=None"), names)
    assert all(parameter.grad is not None for parameter in names["model"].parameters())


def test_converting_imports_nothing_heavier_than_torch():
    code = (
        "import sys, torch, cacseg; cacseg.convert(torch.nn.Sequential(torch.nn.Conv2d(3, 2, 1)));"
        "print([name for name in ('timm', 'transformers', 'torchvision', 'lightning') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
    assert "Sequential" in done.stderr  # what it is, and the layer that it replaced
    assert "'0'" in done.stderr
