"""The known architectures of other libraries: where their seam is, or why they are refused.

One table; docs/convert.md shows it.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from torch import nn

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
    """The parts of one model that a conversion changes."""

    seam: str = ""  # "" where it has to be found
    dropout: str = ""
    # The convolution of each auxiliary classifier, and the weight of its loss.
    auxiliaries: Mapping[str, float] = MappingProxyType({})
    ignore_index: int | None = None
    refusal: str = ""
    aligned: frozenset[str] = frozenset()  # convolutions whose scores are upsampled so, where no module shows it


SMP = "segmentation_models_pytorch"
HEAD = "segmentation_head.0"
SIXTEEN_CHANNELS = "3x3 over patches: 16 channels become 144"

# Every model ends in a head whose convolution upsampling and activation follow.
SMP_ROWS = [
    *(Row(SMP, name, HEAD, remark=SIXTEEN_CHANNELS) for name in ("Unet", "UnetPlusPlus", "MAnet")),
    *(Row(SMP, name, HEAD) for name in ("Linknet", "DeepLabV3", "DeepLabV3Plus", "UPerNet", "Segformer")),
    Row(SMP, "FPN", HEAD, dropout="decoder.dropout"),
    Row(
        SMP,
        "PSPNet",
        HEAD,
        dropout="decoder.dropout",
        remark="3x3 over patches: 512 channels become 4608 and add 64 M parameters; `psp_out_channels=64` 1 M",
    ),
    Row(SMP, "PAN", HEAD, remark="3x3 over patches: 32 channels become 288"),
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

MASK_MODELS = [
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
MASKS = "it classifies masks, not pixels: no convolution turns the features of a pixel into class scores"
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
    *(Row(TRANSFORMERS, name, refusal=MASKS) for name in MASK_MODELS),
    *(Row(TRANSFORMERS, name, refusal=NO_CLASSES) for name in PROMPTED),
    *OTHERS,
]

MMSEG = "mmseg"
SEGMENTORS = [
    Row(
        MMSEG,
        "EncoderDecoder",
        "decode_head.conv_seg",
        dropout="decode_head.dropout",
        auxiliary="auxiliary_head.conv_seg",
        remark="`model.loss` takes a tensor of labels or its samples; auxiliary heads run where there are labels",
    ),
    Row(
        MMSEG,
        "CascadeEncoderDecoder",
        "decode_head.1.conv_seg",
        dropout="decode_head.1.dropout",
        auxiliary="decode_head.0.conv_seg",
        remark="the last stage; the earlier ones count as auxiliary",
    ),
    Row(MMSEG, "DepthEstimator", refusal="it estimates depth, not classes"),
    Row(MMSEG, "MultimodalEncoderDecoder", refusal=f"its classes are embeddings of their names; {MASKS}"),
]
# Decode heads and auxiliary heads that have more, or something else, to learn than the scores of conv_seg.
HEADS = [
    Row(MMSEG, "EncHead", refusal="it also learns which classes an image holds. Build it with use_se_loss=False"),
    Row(MMSEG, "IterativeDecodeHead", refusal=f"its kernels are updated for each image already (K-Net); {MASKS}"),
    Row(MMSEG, "Mask2FormerHead", refusal=MASKS),
    Row(MMSEG, "MaskFormerHead", refusal=MASKS),
    Row(MMSEG, "PIDHead", refusal="it also learns boundaries, which need labels of their own"),
    Row(MMSEG, "PointHead", refusal="it scores single points, chosen anew in each run. Convert the coarse model"),
    Row(MMSEG, "SegmenterMaskTransformerHead", refusal=MASKS),
    Row(MMSEG, "SideAdapterCLIPHead", refusal=MASKS),
    Row(MMSEG, "STDCHead", refusal="it learns boundaries, which need labels of their own. Leave it out"),
    Row(MMSEG, "VPDDepthHead", refusal="it estimates depth, not classes"),
]

# Further classifiers that a head runs while it trains, beside conv_seg.
SECOND_CLASSIFIERS = {"DAHead": ("pam_conv_seg", "cam_conv_seg"), "DDRHead": ("aux_cls_seg",)}
CROSS_ENTROPIES = ("CrossEntropyLoss", "OhemCrossEntropy")

ROWS = (*SMP_ROWS, *TORCHVISION_ROWS, *TRANSFORMERS_ROWS, *SEGMENTORS, *HEADS)
SUPPORTED: dict[tuple[str, str], Row] = {(row.package, row.architecture): row for row in ROWS}


def find_row(model: nn.Module) -> Row | None:
    """The row of the model's class, or of the nearest class it inherits from."""
    for kind in type(model).__mro__:
        row = SUPPORTED.get((kind.__module__.split(".")[0], kind.__name__))
        if row is not None:
            return row
    return None


def known_parts(model: nn.Module) -> Parts:
    """The parts of this model, by the row of its class; empty without a row."""
    row = find_row(model)
    if row is None:
        return Parts()
    return read_segmentor(model) if row.package == MMSEG and not row.refusal else read_row(row, model)


def known_parts_inside(model: nn.Module) -> Parts:
    """The parts of the one known model that another module contains, under their names in the whole.

    Nothing where there is none, or several. Nor of mmsegmentation's: its auxiliary heads run by a method of the model.
    """
    found = {name: row for name, module in model.named_modules() if name and (row := find_row(module)) is not None}
    outermost = [name for name in found if not any(name.startswith(f"{other}.") for other in found)]
    if len(outermost) != 1:
        return Parts()
    (prefix,) = outermost
    known = known_parts(model.get_submodule(prefix))
    if found[prefix].package == MMSEG or known.refusal:
        return Parts()
    return known._replace(
        seam=f"{prefix}.{known.seam}",
        dropout=f"{prefix}.{known.dropout}" if known.dropout else "",
        auxiliaries={f"{prefix}.{name}": weight for name, weight in known.auxiliaries.items()},
        aligned=frozenset(f"{prefix}.{name}" for name in known.aligned),
    )


def as_markdown() -> str:
    """The table of the documentation; architectures with the same entries share a row."""
    shared: dict[tuple[str, str, str], list[str]] = {}
    for row in SUPPORTED.values():
        remarks = [one for one in (row.refusal, row.remark) if one]
        if row.auxiliary:
            remarks.append(f"auxiliary `{row.auxiliary}`")
        seam = f"`{row.seam}`" if row.seam else "refused"
        shared.setdefault((row.package, seam, "; ".join(remarks)), []).append(f"`{row.architecture}`")
    lines = ["| library | architecture | seam | remarks |", "|---|---|---|---|"]
    for (package, seam, remark), architectures in shared.items():
        lines.append(f"| {package} | {', '.join(architectures)} | {seam} | {remark} |")
    return "\n".join(lines)


def read_row(row: Row, model: Any) -> Parts:
    """The parts by a row and the model's config."""
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


def read_segmentor(model: nn.Module) -> Parts:
    """The parts of an mmsegmentation model: the last stage has the seam, other stages and heads are auxiliaries."""
    stages, heads = named_heads(model, "decode_head"), named_heads(model, "auxiliary_head")
    last = list(stages)[-1]
    refusals = {row.architecture: row.refusal for row in HEADS}
    auxiliaries: dict[str, float] = {}
    aligned: set[str] = set()
    for name, head in {**stages, **heads}.items():
        kinds = [kind.__name__ for kind in type(head).__mro__]
        refused = next((kind for kind in kinds if kind in refusals), "")
        if refused and not (refused == "EncHead" and not head.use_se_loss):
            return Parts(refusal=f"{name} is {refused}: {refusals[refused]}")
        decode = head.loss_decode
        losses: list[Any] = list(decode) if isinstance(decode, nn.ModuleList) else [decode]
        weights: list[float] = [loss.loss_weight for loss in losses if type(loss).__name__ in CROSS_ENTROPIES]
        if name != last:
            if not weights:
                found = " and ".join(type(loss).__name__ for loss in losses)
                return Parts(refusal=f"{name} must have a cross-entropy among its losses; it has {found}")
            auxiliaries[f"{name}.conv_seg"] = sum(weights)
        layers = next((SECOND_CLASSIFIERS[kind] for kind in kinds if kind in SECOND_CLASSIFIERS), ())
        second = [f"{name}.{layer}" for layer in layers]
        auxiliaries |= dict.fromkeys(second, weights[-1] if weights else 1.0)
        if head.align_corners:
            aligned |= {f"{name}.conv_seg", *second}
    ignored = stages[last].ignore_index
    return Parts(f"{last}.conv_seg", f"{last}.dropout", auxiliaries, ignored, aligned=frozenset(aligned))


def named_heads(model: nn.Module, name: str) -> dict[str, Any]:
    """The heads under a name, one or a list of them; none where the model has none."""
    held = dict(model.named_children()).get(name)
    if isinstance(held, nn.ModuleList):
        return {f"{name}.{index}": head for index, head in enumerate(held)}
    return {} if held is None else {name: held}
