"""Writes what mmsegmentation computes, for tools/compare_with_mmsegmentation.py to compare with.

    python tools/make_mmsegmentation_reference.py FOLDER [NAME ...]

Runs in an environment of its own, which lite_mmcv.py describes; it needs no cacseg.

For each model of the paper's table: mmsegmentation's own plain model (its configuration written out, BN instead of
SyncBN, 150 classes), every weight drawn from a seed of the model's name, the batch statistics set from four random
images and then perturbed. FOLDER/NAME.pt holds its state dict and, for a 512x512 and a 200x264 image, what enters and
what leaves `decode_head.conv_seg`, and the auxiliary logits (OCRNet: those of the first stage), none of them upsampled.
"""

import argparse
import zlib
from pathlib import Path

import lite_mmcv  # noqa: F401  (before mmseg: stands in for what is not installed)
import mmseg.models  # noqa: F401  (fills the registry)
import torch
from mmengine.registry import init_default_scope
from mmseg.registry import MODELS
from torch import nn
from torch.nn import functional as F

init_default_scope("mmseg")

CLASSES = 150
BN = dict(type="BN", requires_grad=True)
PRE = dict(
    type="SegDataPreProcessor",
    mean=[123.675, 116.28, 103.53],
    std=[58.395, 57.12, 57.375],
    bgr_to_rgb=True,
    pad_val=0,
    seg_pad_val=255,
    size=(512, 512),
)


def _loss(w):
    return dict(type="CrossEntropyLoss", use_sigmoid=False, loss_weight=w)


def _common(**kw):
    return dict(num_classes=CLASSES, norm_cfg=BN, align_corners=False, **kw)


def _resnet(depth, dilated):
    return dict(
        type="ResNetV1c",
        depth=depth,
        num_stages=4,
        out_indices=(0, 1, 2, 3),
        dilations=(1, 1, 2, 4) if dilated else (1, 1, 1, 1),
        strides=(1, 2, 1, 1) if dilated else (1, 2, 2, 2),
        norm_cfg=BN,
        norm_eval=False,
        style="pytorch",
        contract_dilation=True,
    )


def _mobilenetv2():
    return dict(
        type="MobileNetV2",
        widen_factor=1.0,
        strides=(1, 2, 2, 1, 1, 1, 1),
        dilations=(1, 1, 1, 2, 2, 4, 4),
        out_indices=(1, 2, 4, 6),
        norm_cfg=BN,
    )


def _hrnet(w):
    c = [w, 2 * w, 4 * w, 8 * w]
    return dict(
        type="HRNet",
        norm_cfg=BN,
        norm_eval=False,
        extra=dict(
            stage1=dict(num_modules=1, num_branches=1, block="BOTTLENECK", num_blocks=(4,), num_channels=(64,)),
            stage2=dict(num_modules=1, num_branches=2, block="BASIC", num_blocks=(4,) * 2, num_channels=tuple(c[:2])),
            stage3=dict(num_modules=4, num_branches=3, block="BASIC", num_blocks=(4,) * 3, num_channels=tuple(c[:3])),
            stage4=dict(num_modules=3, num_branches=4, block="BASIC", num_blocks=(4,) * 4, num_channels=tuple(c)),
        ),
    )


def _swin(size):
    embed, depths, heads, window, img = dict(
        tiny=(96, [2, 2, 6, 2], [3, 6, 12, 24], 7, 224),
        base=(128, [2, 2, 18, 2], [4, 8, 16, 32], 12, 384),
        large=(192, [2, 2, 18, 2], [6, 12, 24, 48], 12, 384),
    )[size]
    return dict(
        type="SwinTransformer",
        pretrain_img_size=img,
        embed_dims=embed,
        patch_size=4,
        window_size=window,
        mlp_ratio=4,
        depths=depths,
        num_heads=heads,
        strides=(4, 2, 2, 2),
        out_indices=(0, 1, 2, 3),
        qkv_bias=True,
        qk_scale=None,
        patch_norm=True,
        drop_rate=0.0,
        attn_drop_rate=0.0,
        drop_path_rate=0.3,
        use_abs_pos_embed=False,
        act_cfg=dict(type="GELU"),
        norm_cfg=dict(type="LN", requires_grad=True),
    )


def _aux(cin):
    return dict(
        type="FCNHead",
        in_channels=cin,
        in_index=2,
        channels=256,
        num_convs=1,
        concat_input=False,
        dropout_ratio=0.1,
        loss_decode=_loss(0.4),
        **_common(),
    )


def _fcn(cin):
    return dict(
        type="FCNHead",
        in_channels=cin,
        in_index=3,
        channels=512,
        num_convs=2,
        concat_input=True,
        dropout_ratio=0.1,
        loss_decode=_loss(1.0),
        **_common(),
    )


def _dlv3p(cin, c1):
    return dict(
        type="DepthwiseSeparableASPPHead",
        in_channels=cin,
        in_index=3,
        channels=512,
        dilations=(1, 12, 24, 36),
        c1_in_channels=c1,
        c1_channels=48,
        dropout_ratio=0.1,
        loss_decode=_loss(1.0),
        **_common(),
    )


def _uper(cin):
    return dict(
        type="UPerHead",
        in_channels=list(cin),
        in_index=[0, 1, 2, 3],
        pool_scales=(1, 2, 3, 6),
        channels=512,
        dropout_ratio=0.1,
        loss_decode=_loss(1.0),
        **_common(),
    )


def _ocr(w):
    c = [w, 2 * w, 4 * w, 8 * w]
    io = dict(in_channels=c, in_index=(0, 1, 2, 3), input_transform="resize_concat")
    return [
        dict(
            type="FCNHead",
            channels=sum(c),
            kernel_size=1,
            num_convs=1,
            concat_input=False,
            dropout_ratio=-1,
            loss_decode=_loss(0.4),
            **io,
            **_common(),
        ),
        dict(
            type="OCRHead", channels=512, ocr_channels=256, dropout_ratio=-1, loss_decode=_loss(1.0), **io, **_common()
        ),
    ]


def _ed(backbone, head, aux):
    return dict(
        type="EncoderDecoder",
        data_preprocessor=PRE,
        pretrained=None,
        backbone=backbone,
        decode_head=head,
        auxiliary_head=aux,
        train_cfg=dict(),
        test_cfg=dict(mode="whole"),
    )


def _ced(w):
    return dict(
        type="CascadeEncoderDecoder",
        num_stages=2,
        data_preprocessor=PRE,
        pretrained=None,
        backbone=_hrnet(w),
        decode_head=_ocr(w),
        train_cfg=dict(),
        test_cfg=dict(mode="whole"),
    )


def _r(depth, head):
    if head == "upernet":
        return _ed(_resnet(depth, False), _uper([256, 512, 1024, 2048]), _aux(1024))
    return _ed(_resnet(depth, True), _dlv3p(2048, 256), _aux(1024))


def _s(size, e):
    return _ed(_swin(size), _uper([e, 2 * e, 4 * e, 8 * e]), _aux(4 * e))


CONFIGS = {
    "fcn_mobilenetv2": lambda: _ed(_mobilenetv2(), _fcn(320), _aux(96)),
    "deeplabv3plus_mobilenetv2": lambda: _ed(_mobilenetv2(), _dlv3p(320, 24), _aux(96)),
    "ocrnet_hrnet_w18": lambda: _ced(18),
    "upernet_resnet50": lambda: _r(50, "upernet"),
    "deeplabv3plus_resnet50": lambda: _r(50, "deeplabv3plus"),
    "ocrnet_hrnet_w48": lambda: _ced(48),
    "upernet_resnet101": lambda: _r(101, "upernet"),
    "deeplabv3plus_resnet101": lambda: _r(101, "deeplabv3plus"),
    "upernet_swin_tiny": lambda: _s("tiny", 96),
    "upernet_swin_base": lambda: _s("base", 128),
    "upernet_swin_large": lambda: _s("large", 192),
}


def image(h, w):
    """Random image of several spatial scales, zero mean and unit variance per channel (as a normalised photograph)."""
    x = sum(
        a
        * F.interpolate(
            torch.randn(1, 3, max(2, -(-h // s)), max(2, -(-w // s))), (h, w), mode="bilinear", align_corners=False
        )
        for a, s in ((1, 1), (1, 8), (1, 32), (0.5, 128))
    )
    return (x - x.mean((2, 3), keepdim=True)) / x.std((2, 3), keepdim=True)


@torch.no_grad()
def randomise(model):
    """Every weight random; BatchNorm statistics near (not equal to) those of four calibration images."""
    for m in model.modules():
        if isinstance(m, (nn.Conv2d, nn.Linear)):
            fan_in = m.weight[0].numel()
            gain = 1.0 if isinstance(m, nn.Linear) else 2.0
            m.weight.normal_(0, (gain / fan_in) ** 0.5)
            if m.bias is not None:
                m.bias.normal_(0, 0.2)
        elif isinstance(m, (nn.BatchNorm2d, nn.LayerNorm)):
            m.weight.uniform_(0.5, 1.5)
            m.bias.normal_(0, 0.3)
        if hasattr(m, "relative_position_bias_table"):
            m.relative_position_bias_table.normal_(0, 1.0)

    # branches that are summed: smaller gains, so that depth neither blows up nor turns chaotic
    for name, m in model.named_modules():
        last = {"BasicBlock": "bn2", "Bottleneck": "bn3"}.get(type(m).__name__)
        if last:
            getattr(m, last).weight.uniform_(0.3, 0.9)
        elif type(m).__name__ == "InvertedResidual" and m.use_res_connect:
            m.conv[-1].bn.weight.uniform_(0.3, 0.9)
        elif isinstance(m, nn.BatchNorm2d) and "fuse_layers" in name:
            m.weight.uniform_(0.3, 0.9)
    floor = {m: 0.1 for m in model.modules() if isinstance(m, nn.BatchNorm2d)}
    if isinstance(model.decode_head, nn.ModuleList):  # OCR: regions and attention that differ from one another
        model.decode_head[0].conv_seg.weight.mul_(3)
        block = model.decode_head[1].object_context_block
        for m in (block.key_project[-1].bn, block.query_project[-1].bn):
            m.weight.uniform_(1.0, 2.5)
        floor.update({m: 1.0 for m in block.modules() if m in floor})  # its maps vary more between images than within

    def calibrate(m, args):
        x = args[0]
        if x.shape[0] * x.shape[2] * x.shape[3] < 64:  # pooled maps: too few pixels for statistics of one channel
            mean, var = x.mean().expand(x.shape[1]), x.var().expand(x.shape[1])
        else:
            mean, var = x.mean((0, 2, 3)), x.var((0, 2, 3))
        var = var + floor[m] * x.square().mean() + 1e-6  # no channel is amplified into rounding noise
        m.running_mean.copy_(mean + 0.2 * var.sqrt() * torch.randn_like(mean))
        m.running_var.copy_(var * torch.empty_like(var).uniform_(0.6, 1.6))
        m.num_batches_tracked.fill_(1)

    hooks = [m.register_forward_pre_hook(calibrate) for m in model.modules() if isinstance(m, nn.BatchNorm2d)]
    model.eval()
    forward(model, torch.cat([image(384, 384) for _ in range(4)]))
    for h in hooks:
        h.remove()


def heads(model):
    if isinstance(model.decode_head, nn.ModuleList):
        return model.decode_head[1], model.decode_head[0]
    return model.decode_head, model.auxiliary_head


FEATURE_MODULE = {
    "UPerHead": lambda h: h.fpn_bottleneck,
    "FCNHead": lambda h: h.conv_cat,
    "DepthwiseSeparableASPPHead": lambda h: h.sep_bottleneck,
    "OCRHead": lambda h: h.object_context_block,
}


def forward(model, x):
    """backbone stages, features that enter conv_seg, logits, auxiliary logits (none of them upsampled)."""
    head, aux_head = heads(model)
    seen = {}
    hooks = [
        FEATURE_MODULE[type(head).__name__](head).register_forward_hook(lambda m, a, o: seen.__setitem__("module", o)),
        head.conv_seg.register_forward_pre_hook(lambda m, a: seen.__setitem__("conv_seg", a[0])),
    ]
    stages = model.backbone(x)
    aux = aux_head(stages)
    logits = head(stages, aux) if type(head).__name__ == "OCRHead" else head(stages)
    for h in hooks:
        h.remove()
    assert torch.equal(seen["module"], seen["conv_seg"])
    return list(stages), seen["module"], logits, aux


def write(name, folder):
    torch.manual_seed(zlib.crc32(name.encode()))
    model = MODELS.build(CONFIGS[name]())
    randomise(model)
    data = {"name": name, "state_dict": {key: value.clone() for key, value in model.state_dict().items()}}
    for tag, size in (("512", (512, 512)), ("odd", (200, 264))):
        images = image(*size)
        with torch.no_grad():
            _, features, logits, auxiliary = forward(model, images)
            assert torch.equal(model._forward(images), logits)  # the model's own entry point agrees
        data |= {f"image_{tag}": images, f"features_{tag}": features, f"logits_{tag}": logits, f"aux_{tag}": auxiliary}
    torch.save(data, folder / f"{name}.pt")
    print(f"{name}: {sum(parameter.numel() for parameter in model.parameters()):,} parameters", flush=True)


def main():
    parser = argparse.ArgumentParser(description="Write what mmsegmentation computes, with random weights.")
    parser.add_argument("folder", type=Path, help="where NAME.pt is written; 4 GB for all eleven")
    parser.add_argument("names", nargs="*", default=list(CONFIGS), help="the models; all of them by default")
    arguments = parser.parse_args()
    arguments.folder.mkdir(parents=True, exist_ok=True)
    for name in arguments.names:
        write(name, arguments.folder)


if __name__ == "__main__":
    main()
