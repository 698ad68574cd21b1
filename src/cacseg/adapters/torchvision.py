"""torchvision's segmentation models: heads are Sequentials that end in the convolution; `aux` is a second one."""

from __future__ import annotations

from cacseg.adapters.rows import Row

PACKAGE = "torchvision"

ROWS = [
    Row(PACKAGE, "FCN", "classifier.4", auxiliary="aux_classifier.4", remark="`fcn_resnet50`, `fcn_resnet101`"),
    Row(
        PACKAGE,
        "DeepLabV3",
        "classifier.4",
        auxiliary="aux_classifier.4",
        remark="`deeplabv3_resnet50`, `deeplabv3_resnet101`, `deeplabv3_mobilenet_v3_large`",
    ),
    Row(
        PACKAGE,
        "LRASPP",
        refusal="its scores are the sum of two classifiers on features of different resolution, low_classifier and "
        "high_classifier: there is no single weight to adapt",
        remark="`lraspp_mobilenet_v3_large`",
    ),
]
