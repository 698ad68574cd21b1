"""Small models of the three libraries with random weights, by name, which tests/adapters read; and a Swin of ours."""

import copy
import functools
import importlib

import timm
import torch
import transformers
from torch import nn
from transformers import modeling_outputs

import cacseg
from cacseg.models.backbones import Backbone
from cacseg.models.heads import UPerNet
from cacseg.models.model import PlainClassifier, SegmentationModel
from cacseg.models.reference import Swin

smp = importlib.import_module("segmentation_models_pytorch")
segmentation = importlib.import_module("torchvision.models.segmentation")
resnet = importlib.import_module("torchvision.models.resnet")

N, SIZE = 5, 64
TERMS = {"plain": 1.0, "context": 1.0, "oracle": 1.0, "distillation": 1.0, "overlap": 3.0}  # the default's weights
LABELS = {"num_labels": N}
VIT = {"hidden_size": 32, "num_hidden_layers": 4, "num_attention_heads": 2, "intermediate_size": 64, "image_size": SIZE}


def build_smp(name, encoder="resnet18", **arguments):
    return getattr(smp, name)(encoder, encoder_weights=None, classes=N, **arguments)


def build_torchvision(name, aux=True):
    return getattr(segmentation, name)(weights=None, weights_backbone=None, num_classes=N, aux_loss=aux)


def build_shallow(kind, aux=True):
    """What fcn_resnet50, deeplabv3_resnet101 and the like put together, with one block in each of the four stages."""
    backbone = resnet.ResNet(resnet.Bottleneck, [1, 1, 1, 1], replace_stride_with_dilation=[False, True, True])
    module = importlib.import_module(f"torchvision.models.segmentation.{kind}")
    return getattr(module, f"_{kind}_resnet")(backbone, N, aux)


def build_transformers(name, **arguments):
    kind = getattr(transformers, f"{name}ForSemanticSegmentation")
    return kind(kind.config_class(**{**LABELS, **arguments}))


def build_upernet(backbone):
    backbones = {
        "convnext": transformers.ConvNextConfig(
            hidden_sizes=[8, 16, 24, 32], depths=[1, 1, 1, 1], out_features=["stage1", "stage2", "stage3", "stage4"]
        ),
        "swin": transformers.SwinConfig(
            image_size=SIZE,
            embed_dim=8,
            depths=[1, 1, 1, 1],
            num_heads=[1, 1, 2, 2],
            window_size=2,
            out_features=["stage1", "stage2", "stage3", "stage4"],
        ),
    }
    return build_transformers(
        "UperNet", backbone_config=backbones[backbone], hidden_size=16, auxiliary_channels=8, pool_scales=[1, 2]
    )


BEIT = {**VIT, "patch_size": 8, "out_indices": [1, 2, 3, 4], "pool_scales": [1, 2], "auxiliary_channels": 8}
DPT = {
    **VIT,
    "patch_size": 8,
    "backbone_out_indices": [0, 1, 2, 3],
    "neck_hidden_sizes": [8, 8, 16, 16],
    "fusion_hidden_size": 16,
    "is_hybrid": False,
}
SEGFORMER = {
    "hidden_sizes": [8, 16, 24, 32],
    "depths": [1, 1, 1, 1],
    "num_attention_heads": [1, 1, 2, 2],
    "decoder_hidden_size": 16,
    "drop_path_rate": 0.0,
}
SAPIENS = {**VIT, "patch_size": 16, "num_attention_heads": 2}
SAPIENS_HEAD = {
    "upsample_out_channels": [16, 16],
    "upsample_kernel_sizes": [4, 4],
    "conv_out_channels": [16],
    "conv_kernel_sizes": [1],
}
TIPS = {**VIT, "patch_size": 8, "out_indices": [1, 2, 3, 4], "apply_layernorm": True, "reshape_hidden_states": False}
TIPS_NECK = {"neck_hidden_sizes": [8, 8, 16, 16], "fusion_hidden_size": 16}
LIGHT = functools.partial(build_smp, encoder="mobilenet_v2")
NARROW = (64, 32, 16, 16, 16)  # channels of a decoder

ARCHITECTURES = {
    "smp Unet": lambda: build_smp("Unet", decoder_channels=NARROW),
    "smp Unet, softmax after it": lambda: LIGHT("Unet", decoder_channels=NARROW, activation="softmax2d"),
    "smp UnetPlusPlus": lambda: LIGHT("UnetPlusPlus", decoder_channels=NARROW),
    "smp MAnet": lambda: build_smp("MAnet", decoder_channels=NARROW, decoder_pab_channels=16),
    "smp Linknet": lambda: LIGHT("Linknet"),
    "smp FPN": lambda: LIGHT("FPN", decoder_pyramid_channels=32, decoder_segmentation_channels=32),
    "smp PSPNet": lambda: build_smp("PSPNet", psp_out_channels=32),
    "smp PAN": lambda: LIGHT("PAN"),
    "smp DeepLabV3": lambda: LIGHT("DeepLabV3", decoder_channels=32),
    "smp DeepLabV3Plus": lambda: LIGHT("DeepLabV3Plus", decoder_channels=32),
    "smp UPerNet": lambda: LIGHT("UPerNet", decoder_channels=32),
    "smp Segformer": lambda: build_smp("Segformer", encoder="mit_b0", decoder_segmentation_channels=32),
    "smp DPT": lambda: smp.DPT(
        "tu-vit_tiny_patch16_224.augreg_in21k",
        encoder_weights=None,
        classes=N,
        encoder_depth=4,
        decoder_intermediate_channels=(8, 8, 16, 16),
        decoder_fusion_channels=16,
        dynamic_img_size=True,
    ),
    "torchvision fcn": lambda: build_shallow("fcn"),
    "torchvision fcn, no aux": lambda: build_shallow("fcn", aux=None),
    "torchvision deeplabv3": lambda: build_shallow("deeplabv3"),
    "torchvision deeplabv3, no aux": lambda: build_shallow("deeplabv3", aux=None),
    "torchvision deeplabv3_mobilenet_v3_large": lambda: build_torchvision("deeplabv3_mobilenet_v3_large"),
    "transformers Beit": lambda: build_transformers("Beit", **BEIT),
    "transformers Beit, no auxiliary": lambda: build_transformers("Beit", **BEIT, use_auxiliary_head=False),
    "transformers Data2VecVision": lambda: build_transformers("Data2VecVision", **BEIT),
    "transformers DPT": lambda: build_transformers("DPT", **DPT),
    "transformers DPT, no auxiliary": lambda: build_transformers("DPT", **DPT, use_auxiliary_head=False),
    "transformers MobileNetV2": lambda: build_transformers("MobileNetV2", depth_multiplier=0.35),
    "transformers MobileViT": lambda: build_transformers(
        "MobileViT", hidden_sizes=[16, 24, 32], neck_hidden_sizes=[8, 8, 16, 16, 24, 24, 32], aspp_out_channels=16
    ),
    "transformers MobileViTV2": lambda: build_transformers("MobileViTV2", width_multiplier=0.25, aspp_out_channels=16),
    "transformers Sapiens2": lambda: build_transformers(
        "Sapiens2", **SAPIENS, head_config=transformers.Sapiens2HeadConfig(**SAPIENS_HEAD)
    ),
    "transformers Segformer": lambda: build_transformers("Segformer", **SEGFORMER),
    "transformers Tipsv2Dpt": lambda: build_transformers(
        "Tipsv2Dpt", backbone_config=transformers.Tipsv2VisionConfig(**TIPS), **TIPS_NECK
    ),
    "transformers UperNet with ConvNeXt": lambda: build_upernet("convnext"),
    "transformers UperNet with Swin": lambda: build_upernet("swin"),
}


# Where the smallest image is larger, or the model is.
WIDE = [f"torchvision {kind}" for kind in ("fcn", "fcn, no aux", "deeplabv3", "deeplabv3, no aux")]
SIZES = {"smp PAN": 128, **dict.fromkeys(WIDE, 32)}


def build(name):
    """The model in eval mode, with batch statistics that fit its features, so that none is degenerate."""
    model, state = built(name)
    torch.set_rng_state(state)  # what is drawn next must not depend on whether the model was there already
    return copy.deepcopy(model)


@functools.lru_cache(maxsize=8)
def built(name):
    """The model, and the state of the random numbers after it."""
    torch.manual_seed(0)
    model = ARCHITECTURES[name]()
    norms = [module for module in model.modules() if isinstance(module, torch.nn.BatchNorm2d)]
    momenta = [norm.momentum for norm in norms]
    for norm in norms:
        norm.momentum = 1.0
    with torch.no_grad():
        model.train()(draw(name, seed=1)[0])
    for norm, momentum in zip(norms, momenta, strict=True):
        norm.momentum = momentum
    return model.eval(), torch.get_rng_state()


def draw(name="", b=2, seed=0):
    size, generator = SIZES.get(name, SIZE), torch.Generator().manual_seed(seed)
    labels = torch.randint(0, N, (b, size, size), generator=generator)
    labels[:, :3] = 255
    return torch.randn(b, 3, size, size, generator=generator), labels


def scores_of(output):
    """The logits in whatever a library returns."""
    if isinstance(output, modeling_outputs.SemanticSegmenterOutput):
        return output.logits
    return output["out"] if isinstance(output, dict) else output


SMALL = ["smp Unet", "smp FPN", "torchvision deeplabv3_mobilenet_v3_large", "transformers Segformer"]


class Tiny(nn.Module):
    """A model of one's own, small enough to compile in a test."""

    def __init__(self, kernel=1, dropout=0.0):
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 16, 3, stride=2, padding=1), nn.BatchNorm2d(16), nn.ReLU())
        self.head = nn.Sequential(nn.Dropout2d(dropout), nn.Conv2d(16, N, kernel, padding=kernel // 2))

    def forward(self, images):
        return nn.functional.interpolate(self.head(self.stem(images)), size=images.shape[2:], mode="bilinear")


def tiny(kernel=1, **arguments):
    torch.manual_seed(0)
    return cacseg.convert(Tiny(kernel), seam="head.1", **arguments)


def small_swin(classifier=None, **arguments):
    """A model of ours with windows of 3 in maps of few pixels: whole, padded and shifted ones, and a single window."""
    torch.manual_seed(0)
    sizes = {"embed_dim": 8, "depths": (2, 2, 1, 1), "num_heads": (1, 1, 2, 2), "window_size": 3, "num_classes": 0}
    net = timm.create_model(
        "swin_tiny_patch4_window7_224", always_partition=True, strict_img_size=False, drop_path_rate=0.0, **sizes
    )
    backbone = Backbone(Swin(net), "small", (8, 16, 32, 64))
    head = UPerNet((8, 16, 32, 64), 8)
    return SegmentationModel(backbone, head, classifier or PlainClassifier(8, N), **arguments)


class Refuses(nn.Module):
    """A network that takes images of multiples alone."""

    def __init__(self, multiple):
        super().__init__()
        self.multiple, self.conv = multiple, nn.Conv2d(3, 4, 1)

    def forward(self, images):
        if any(side % self.multiple for side in images.shape[2:]):
            raise RuntimeError(f"wrong size {tuple(images.shape)}")
        return self.conv(images)
