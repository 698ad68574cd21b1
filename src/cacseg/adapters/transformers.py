"""transformers: the classes for semantic segmentation, and those that have no classifier of pixels."""

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
    "ConditionalDetrForSegmentation",
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

PROMPTED = ["EdgeTamModel", "Sam2Model", "Sam3TrackerModel", "SamHQModel", "SamModel"]
NO_CLASSES = "it draws the masks that points and boxes ask for: there are no classes"

OTHERS = [
    Row(
        PACKAGE,
        "CLIPSegForImageSegmentation",
        refusal="it draws one mask for each text that it is given: a transposed convolution makes them, and there are "
        "no class scores",
    ),
    Row(
        PACKAGE,
        "SegGptForImageSegmentation",
        refusal="it paints masks as an image, in the colours of an example: there are no class scores",
    ),
]

ROWS = [
    *PIXELS,
    *(Row(PACKAGE, name, refusal=NO_PIXEL_CLASSIFIER) for name in MASKS),
    *(Row(PACKAGE, name, refusal=NO_CLASSES) for name in PROMPTED),
    *OTHERS,
]
