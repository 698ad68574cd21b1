"""The model card of a saved model: README.md in its folder, with what the Hub reads at its head."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from huggingface_hub import EvalResult, ModelCard, ModelCardData

from cacseg._hub import PLACEHOLDER
from cacseg._version import __version__
from cacseg.models.model import SegmentationModel
from cacseg.models.summary import count_parameters

TEMPLATE = Path(__file__).with_name("card.md")


def make_card(
    model: SegmentationModel,
    *,
    name: str = PLACEHOLDER,
    license: str | None = None,
    data: str | None = None,
    scores: Mapping[str, float] | None = None,
    scored: str = "",
    class_scores: Mapping[str, Sequence[float | None]] | None = None,
    training: Mapping[str, str] | None = None,
    picture: str | None = None,
) -> ModelCard:
    """The card of a model; what is left out is not in it.

    Args:
        model: of `create_model`.
        name: on the Hub, owner/name.
        license: an identifier of the Hub, such as "cc-by-4.0"; None: the card says that there is none.
        data: the data set and split that the scores are of.
        scores: mIoU in percent, by the name of the logits ("plain", "context").
        scored: a remark on the scores, after their heading.
        class_scores: IoU in percent of each class, by the name of the logits.
        training: how the model was trained, as rows of a table.
        picture: the name of a picture beside the card.
    """
    arguments, found = model.arguments, dict(scores or {})
    title = name.rpartition("/")[2] if name != PLACEHOLDER else arguments["name"]
    results = [
        EvalResult(
            task_type="image-segmentation",
            dataset_type=(data or "unknown").split()[0],
            dataset_name=data or "unknown",
            metric_type="mean_iou",
            metric_name=f"mIoU, {output} logits",
            metric_value=round(value, 2),
        )
        for output, value in found.items()
    ]
    facts = ModelCardData(
        license=None if license is None else license.lower(),
        library_name="cacseg",
        pipeline_tag="image-segmentation",
        tags=["semantic-segmentation", "context-aware-classifier"],
        model_name=title,
        eval_results=results or None,
    )
    adapts = model.default_output == "context"
    backbone = arguments["backbone"]
    total, deployed = (f"{count / 1e6:.2f} M" for count in count_parameters(model))
    palette = model.palette or [()] * model.num_classes
    return ModelCard.from_template(
        facts,
        template_path=str(TEMPLATE),
        title=title,
        version=__version__,
        repo=name,
        architecture=f"`{arguments['name']}`" + (f" on `{backbone}`" if backbone else ""),
        classifier=f"a context-aware classifier (preset `{arguments['preset']}`)" if adapts else "a plain classifier",
        parameters=total,
        deployed=deployed,
        data=data,
        scores=found,
        scored=scored,
        class_names=list(model.class_names or map(str, range(model.num_classes))),
        colours=[f"`#{''.join(f'{value:02x}' for value in colour)}`" if len(colour) else "" for colour in palette],
        class_scores=class_scores or {},
        training=training or {},
        picture=picture,
    )
