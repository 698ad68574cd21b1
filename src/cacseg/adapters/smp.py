"""segmentation_models_pytorch: every model ends in a head whose convolution upsampling and activation follow."""

from __future__ import annotations

from cacseg.adapters.rows import Row

PACKAGE = "segmentation_models_pytorch"
HEAD = "segmentation_head.0"

ROWS = [
    Row(PACKAGE, "Unet", HEAD, remark="3x3 over patches: 16 channels become 144"),
    Row(PACKAGE, "UnetPlusPlus", HEAD, remark="3x3 over patches: 16 channels become 144"),
    Row(PACKAGE, "MAnet", HEAD, remark="3x3 over patches: 16 channels become 144"),
    Row(PACKAGE, "Linknet", HEAD),
    Row(PACKAGE, "FPN", HEAD, dropout="decoder.dropout"),
    Row(
        PACKAGE,
        "PSPNet",
        HEAD,
        dropout="decoder.dropout",
        remark="3x3 over patches: 512 channels become 4608 and add 64 M parameters; `psp_out_channels=64` 1 M",
    ),
    Row(PACKAGE, "PAN", HEAD, remark="3x3 over patches: 32 channels become 288"),
    Row(PACKAGE, "DeepLabV3", HEAD),
    Row(PACKAGE, "DeepLabV3Plus", HEAD),
    Row(PACKAGE, "UPerNet", HEAD),
    Row(PACKAGE, "Segformer", HEAD),
    Row(PACKAGE, "DPT", "segmentation_head.head.4", align_corners=True),
]
