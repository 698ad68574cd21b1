"""What a trained classifier lacks: its scores when it is told which classes an image has, or given true prototypes.

    python tools/measure_presence.py studies/unscaled.toml --only data=msrc21_unscaled --only models=fcn_mobilenetv2 \\
        --only optimisers=adamw --only arms=tuned --seeds 0,1 --steps 2000 --device cuda --root msrc21=DATA --set ...

Trains each job as `cacseg study run` does and prints mIoU and pixel accuracy, in percent, of

- its plain and its context answer;
- both of them when no class that the image's labels lack may be answered ("told");
- context answers with prototypes pooled by the labels ("true prototypes"; absent classes keep theirs);
- context answers of A = C + k theta, for other k than 1.

For arms whose A is theta([P, C]) + C, such as `tuned`. What it found is in docs/search.md.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator

import torch
from study_jobs import make_parser, run_jobs
from torch import Tensor

from cacseg import ContextAwareClassifier, functional
from cacseg.data import normalise
from cacseg.engine.device import autocast
from cacseg.engine.inference import predict_each
from cacseg.engine.randomness import seed_all
from cacseg.engine.resident import Resident
from cacseg.functional.labels import class_masks
from cacseg.metrics import confusion, scores
from cacseg.models import SegmentationModel
from cacseg.recipes.build import make_model
from cacseg.study.job import EVALUATED_AT_ONCE, load_data
from cacseg.study.plan import Job
from cacseg.study.training import cast, train_model

FACTORS = (0.0, 0.5, 1.5)  # of theta
NAMES = (
    *("plain", "context", "plain, told", "context, told", "true prototypes"),
    *(f"A = C + {factor} theta" for factor in FACTORS),
)


def tell(logits: Tensor, labels: Tensor) -> Tensor:
    """Logits [b, n, h, w] that leave no chance to classes that the labels [b, H, W] of the image lack."""
    return logits.masked_fill(~present(labels, logits.shape[1])[..., None, None], -1e4)


def present(labels: Tensor, num_classes: int) -> Tensor:
    """Which classes [b, n] the labels have."""
    return class_masks(labels, num_classes, 255).flatten(2).amax(dim=-1) > 0


def answers(model: SegmentationModel, images: Tensor, labels: Tensor) -> Iterator[Tensor]:
    """The logits of the answers in `NAMES`, at the size of the features."""
    classifier = model.classifier
    assert isinstance(classifier, ContextAwareClassifier)
    features = model.features(images).float()
    plain, context = classifier.both_logits(features)
    yield from (plain, context, tell(plain, labels), tell(context, labels))
    weight, projector = classifier.weight.flatten(1), classifier.context_projector
    assert projector is not None

    def classify(prototypes: Tensor, factor: float = 1.0) -> Tensor:
        theta = projector(torch.cat([prototypes, weight.expand_as(prototypes)], dim=-1))
        return functional.cosine_logits(features, factor * theta + weight, classifier.scale)

    covered = model.pad_labels(labels, images, model.stride)
    small = functional.resize_labels(covered, features.shape[2:], classifier.label_sampling)
    own = functional.context_prototypes(features, plain)
    true = functional.oracle_prototypes(features, small, weight)
    yield classify(torch.where(present(small, model.num_classes)[..., None], true, own))
    yield from (classify(own, factor) for factor in FACTORS)


@torch.no_grad()
def score(model: SegmentationModel, split: Resident, precision: str) -> list[tuple[float, float]]:
    """mIoU and pixel accuracy of each answer in `NAMES`, in percent."""
    device, n = split.images.device, model.num_classes
    mean, std = torch.tensor([model.mean, model.std], device=device)
    counts = torch.zeros(len(NAMES), n, n, dtype=torch.int64, device=device)
    model.eval()

    def networks(images: Tensor, labels: Tensor | None) -> Iterator[Tensor]:
        assert labels is not None
        for logits in answers(model, images, labels):
            yield model.upsample_logits(logits.float(), images.shape[2:])

    for images, labels in split.of_one_size(EVALUATED_AT_ONCE):
        known = torch.where(labels == split.ignore_index, 255, labels.long())
        with autocast(device, precision):
            size = labels.shape[1], labels.shape[2]
            found = predict_each(networks, [normalise(images, mean, std)], size, labels=known)
            for place, logits in enumerate(found):
                counts[place] += confusion(logits.argmax(1), labels, n, split.ignore_index)
    both = (scores(matrix.cpu()) for matrix in counts)
    return [(100.0 * one.mean_iou, 100.0 * one.pixel_accuracy) for one in both]


def measure(job: Job, device: torch.device) -> None:
    """Trains the job's model and prints what its answers score."""
    config = job.config
    data = load_data(config, job.held_out, device)
    seed_all(config.training.seed)
    model = make_model(config.model, data.source, lambda text: None).to(device)
    classifier = model.classifier
    if not isinstance(classifier, ContextAwareClassifier) or classifier.context_design != "project_concat_residual":
        print(f"{job.arm} has no A = theta([P, C]) + C and is left out.", file=sys.stderr)
        return
    trained = train_model(config, model, data.train)
    found = score(trained.model, data.scored, cast(config.training.precision))
    for name, (miou, pixels) in zip(NAMES, found, strict=True):
        print(f"| `{job.arm}` | {config.training.seed} | {name} | {miou:.2f} | {pixels:.2f} |", flush=True)


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("--seeds", default="0", metavar="A,B", help="one after another (default: 0)")
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"), help="(default: cpu)")
    given = parser.parse_args()
    if not all(one.isdecimal() for one in given.seeds.split(",")):
        parser.error(f"--seeds must be whole numbers, as 0,1,2; got {given.seeds!r}.")
    if given.device == "cuda" and not torch.cuda.is_available():
        parser.error("--device cuda needs an NVIDIA GPU; there is none. Leave it out.")
    seeds = tuple(int(one) for one in given.seeds.split(","))
    header = "| arm | seed | answer | mIoU | pixels |\n|---|---|---|---:|---:|"
    run_jobs(parser, given, seeds, header, lambda job: measure(job, torch.device(given.device)))


if __name__ == "__main__":
    main()
