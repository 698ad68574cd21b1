"""How long theta's rows become beside those of C while a job of a study trains, and what of them differs at all.

    python tools/measure_theta.py studies/rates.toml --only data=camvid_held_out_small --only optimisers=adamw_fast \\
        --steps 200 --root camvid=data/camvid --set ...

Prints a line every so many steps for each arm that has a context projector, theta: the mean length of the rows of C, of
the prototypes P and of theta([P, C]), and of theta's rows less their mean over the classes of an image ("class") and
less their mean over the images of a step ("image"). On the CPU, seed 0, drawing the same random numbers as `cacseg
study run --device cpu`. What it found is in docs/search.md.
"""

from __future__ import annotations

import sys

import torch
from study_jobs import make_parser, run_jobs
from torch import Tensor, nn

from cacseg import ContextAwareClassifier
from cacseg.engine.randomness import seed_all
from cacseg.recipes.build import make_model
from cacseg.study.job import load_data
from cacseg.study.plan import Job
from cacseg.study.training import train_model

COLUMNS = ("C", "P", "theta", "class", "image")


def lengths(weight: Tensor, prototypes: Tensor, theta: Tensor) -> list[float]:
    """Of the rows [n, d], [b, n, d] and [b, n, d]: their mean lengths, and those of what differs in theta."""
    of_class, of_image = theta - theta.mean(1, keepdim=True), theta - theta.mean(0, keepdim=True)
    return [rows.norm(dim=-1).mean().item() for rows in (weight, prototypes, theta, of_class, of_image)]


def measure(job: Job, every: int) -> None:
    """Trains the job's model and prints as it goes."""
    data = load_data(job.config, job.held_out, torch.device("cpu"))
    seed_all(job.config.training.seed)
    model = make_model(job.config.model, data.source, lambda text: None)
    classifier = model.classifier
    if not isinstance(classifier, ContextAwareClassifier) or classifier.context_projector is None:
        print(f"{job.arm} has no theta and is left out.", file=sys.stderr)
        return
    step = 0

    def look(_: nn.Module, inputs: tuple[Tensor, ...], rows: Tensor) -> None:
        nonlocal step
        step += 1
        if step % every == 0:
            d = classifier.in_channels
            found = lengths(classifier.weight.flatten(1).detach(), inputs[0][..., :d].detach(), rows[..., :d].detach())
            print(f"| `{job.arm}` | {step} | {' | '.join(f'{one:.2f}' for one in found)} |", flush=True)

    classifier.context_projector.register_forward_hook(look)
    train_model(job.config, model, data.train)


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("--every", type=int, default=20, help="steps between two lines")
    given = parser.parse_args()
    if given.every < 1:
        parser.error(f"--every must be at least 1; got {given.every}.")
    header = f"| arm | step | {' | '.join(COLUMNS)} |\n|---|---|{'---:|' * len(COLUMNS)}"
    run_jobs(parser, given, (0,), header, lambda job: measure(job, given.every))


if __name__ == "__main__":
    main()
