"""What is known of the architectures of segmentation_models_pytorch, torchvision and transformers."""

from __future__ import annotations

from cacseg.adapters.rows import Row

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
