"""What is known of architectures of other libraries: where their seam is, or why they have none."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

AUXILIARY_WEIGHT = 0.4  # torchvision's, mmsegmentation's and transformers' own


class Row(NamedTuple):
    """One class of another library, recognised by package and name, without importing it."""

    package: str  # the first part of the class's module
    architecture: str  # the name of the class
    seam: str = ""  # the name of the convolution; "" where it is refused
    dropout: str = ""  # the name of a dropout right before it, where that is not the module before it in a Sequential
    auxiliary: str = ""  # the name of the auxiliary classifier's convolution, where a model has one
    ignore_index: str = ""  # the entry of the model's config that holds it
    auxiliary_weight: str = ""  # the entry of the model's config that holds it
    refusal: str = ""  # why there is no seam
    remark: str = ""  # for the documentation
    align_corners: bool = False  # of the upsampling of its scores, where no module shows it


class Parts(NamedTuple):
    """The parts of one model that a conversion touches, as its row and the model itself say."""

    seam: str = ""  # "" where it has to be found
    dropout: str = ""
    # The convolution of each auxiliary classifier, and the weight of its loss.
    auxiliaries: Mapping[str, float] = MappingProxyType({})
    ignore_index: int | None = None
    refusal: str = ""
    aligned: frozenset[str] = frozenset()  # convolutions whose scores are upsampled so, where no module shows it


def read_row(row: Row, model: Any) -> Parts:
    """A row, with what its entries of the model's config say."""
    weight = getattr(model.config, row.auxiliary_weight) if row.auxiliary_weight else AUXILIARY_WEIGHT
    names = dict(model.named_modules())
    return Parts(
        seam=row.seam,
        dropout=row.dropout,
        auxiliaries={row.auxiliary: weight} if row.auxiliary and row.auxiliary in names else {},
        ignore_index=getattr(model.config, row.ignore_index) if row.ignore_index else None,
        refusal=row.refusal,
        aligned=frozenset({row.seam}) if row.align_corners else frozenset(),
    )


SMP = "segmentation_models_pytorch"
HEAD = "segmentation_head.0"

# Every model ends in a head whose convolution upsampling and activation follow.
SMP_ROWS = [
    Row(SMP, "Unet", HEAD, remark="3x3 over patches: 16 channels become 144"),
    Row(SMP, "UnetPlusPlus", HEAD, remark="3x3 over patches: 16 channels become 144"),
    Row(SMP, "MAnet", HEAD, remark="3x3 over patches: 16 channels become 144"),
    Row(SMP, "Linknet", HEAD),
    Row(SMP, "FPN", HEAD, dropout="decoder.dropout"),
    Row(
        SMP,
        "PSPNet",
        HEAD,
        dropout="decoder.dropout",
        remark="3x3 over patches: 512 channels become 4608 and add 64 M parameters; `psp_out_channels=64` 1 M",
    ),
    Row(SMP, "PAN", HEAD, remark="3x3 over patches: 32 channels become 288"),
    Row(SMP, "DeepLabV3", HEAD),
    Row(SMP, "DeepLabV3Plus", HEAD),
    Row(SMP, "UPerNet", HEAD),
    Row(SMP, "Segformer", HEAD),
    Row(SMP, "DPT", "segmentation_head.head.4", align_corners=True),
]

TORCHVISION = "torchvision"

# Heads are Sequentials that end in the convolution; `aux_classifier` is a second one.
TORCHVISION_ROWS = [
    Row(TORCHVISION, "FCN", "classifier.4", auxiliary="aux_classifier.4", remark="`fcn_resnet50`, `fcn_resnet101`"),
    Row(
        TORCHVISION,
        "DeepLabV3",
        "classifier.4",
        auxiliary="aux_classifier.4",
        remark="`deeplabv3_resnet50`, `deeplabv3_resnet101`, `deeplabv3_mobilenet_v3_large`",
    ),
    Row(
        TORCHVISION,
        "LRASPP",
        refusal="its scores are the sum of two classifiers on features of different resolution, low_classifier and "
        "high_classifier: there is no single weight to adapt",
        remark="`lraspp_mobilenet_v3_large`",
    ),
]

TRANSFORMERS = "transformers"
IGNORE, WEIGHT = "semantic_loss_ignore_index", "auxiliary_loss_weight"
DECODE_HEAD, AUXILIARY_HEAD = "decode_head.classifier", "auxiliary_head.classifier"
CONVOLUTION = "segmentation_head.classifier.convolution"

PIXELS = [
    Row(TRANSFORMERS, "BeitForSemanticSegmentation", DECODE_HEAD, "", AUXILIARY_HEAD, IGNORE, WEIGHT),
    Row(TRANSFORMERS, "Data2VecVisionForSemanticSegmentation", DECODE_HEAD, "", AUXILIARY_HEAD, IGNORE, WEIGHT),
    Row(TRANSFORMERS, "DPTForSemanticSegmentation", "head.head.4", "", "auxiliary_head.head.4", IGNORE, WEIGHT),
    Row(TRANSFORMERS, "MobileNetV2ForSemanticSegmentation", CONVOLUTION, "segmentation_head.dropout", "", IGNORE),
    Row(TRANSFORMERS, "MobileViTForSemanticSegmentation", CONVOLUTION, "segmentation_head.dropout", "", IGNORE),
    Row(TRANSFORMERS, "MobileViTV2ForSemanticSegmentation", CONVOLUTION, "segmentation_head.dropout", "", IGNORE),
    Row(TRANSFORMERS, "Sapiens2ForSemanticSegmentation", "decode_head.predictor", "", "", IGNORE),
    Row(TRANSFORMERS, "SegformerForSemanticSegmentation", DECODE_HEAD, "decode_head.dropout", "", IGNORE),
    Row(TRANSFORMERS, "Tipsv2DptForSemanticSegmentation", "decoder.head", "", "", IGNORE, remark="a linear layer"),
    Row(TRANSFORMERS, "UperNetForSemanticSegmentation", DECODE_HEAD, "", AUXILIARY_HEAD, "loss_ignore_index", WEIGHT),
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
        TRANSFORMERS,
        "CLIPSegForImageSegmentation",
        refusal="it draws one mask for each text that it is given: a transposed convolution makes them, and there are "
        "no class scores",
    ),
    Row(
        TRANSFORMERS,
        "SegGptForImageSegmentation",
        refusal="it paints masks as an image, in the colours of an example: there are no class scores",
    ),
]

TRANSFORMERS_ROWS = [
    *PIXELS,
    *(Row(TRANSFORMERS, name, refusal=NO_PIXEL_CLASSIFIER) for name in MASKS),
    *(Row(TRANSFORMERS, name, refusal=NO_CLASSES) for name in PROMPTED),
    *OTHERS,
]
