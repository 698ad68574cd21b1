"""transformers: the classes for semantic segmentation, and those that classify masks instead of pixels."""

from __future__ import annotations

from cacseg.adapters.rows import Row

PACKAGE = "transformers"
IGNORE, WEIGHT = "semantic_loss_ignore_index", "auxiliary_loss_weight"
DECODE_HEAD, AUXILIARY_HEAD = "decode_head.classifier", "auxiliary_head.classifier"
CONVOLUTION = "segmentation_head.classifier.convolution"

PIXELS = [
    Row(PACKAGE, "BeitForSemanticSegmentation", DECODE_HEAD, "", AUXILIARY_HEAD, IGNORE, WEIGHT),
    Row(PACKAGE, "Data2VecVisionForSemanticSegmentation", DECODE_HEAD, "", AUXILIARY_HEAD, IGNORE, WEIGHT),
    Row(PACKAGE, "DPTForSemanticSegmentation", "head.head.4", "", "auxiliary_head.head.4", IGNORE, WEIGHT),
    Row(PACKAGE, "MobileNetV2ForSemanticSegmentation", CONVOLUTION, "segmentation_head.dropout", "", IGNORE),
    Row(PACKAGE, "MobileViTForSemanticSegmentation", CONVOLUTION, "segmentation_head.dropout", "", IGNORE),
    Row(PACKAGE, "MobileViTV2ForSemanticSegmentation", CONVOLUTION, "segmentation_head.dropout", "", IGNORE),
    Row(PACKAGE, "Sapiens2ForSemanticSegmentation", "decode_head.predictor", "", "", IGNORE),
    Row(PACKAGE, "SegformerForSemanticSegmentation", DECODE_HEAD, "decode_head.dropout", "", IGNORE),
    Row(PACKAGE, "Tipsv2DptForSemanticSegmentation", "decoder.head", "", "", IGNORE, remark="a linear layer"),
    Row(PACKAGE, "UperNetForSemanticSegmentation", DECODE_HEAD, "", AUXILIARY_HEAD, "loss_ignore_index", WEIGHT),
]

MASKS = [
    "DetrForSegmentation",
    "EomtDinov3ForUniversalSegmentation",
    "EomtForUniversalSegmentation",
    "Mask2FormerForUniversalSegmentation",
    "MaskFormerForInstanceSegmentation",
    "OneFormerForUniversalSegmentation",
    "RfDetrForInstanceSegmentation",
    "VideomtForUniversalSegmentation",
]
NO_PIXEL_CLASSIFIER = (
    "it classifies masks, not pixels: queries predict masks and their classes, and no convolution turns the features "
    "of a pixel into class scores"
)

ROWS = [*PIXELS, *(Row(PACKAGE, name, refusal=NO_PIXEL_CLASSIFIER) for name in MASKS)]
