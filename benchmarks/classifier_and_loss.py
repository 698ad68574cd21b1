"""Forward and backward of classifier + loss from the features, side by side in one process.

    python benchmarks/classifier_and_loss.py                     2 CPU threads, b=2 n=150 d=512, 128x128 -> 512x512
    python benchmarks/classifier_and_loss.py --device cuda --batch 4 --dtype bfloat16

Rows: `plain`, the usual F.cross_entropy(F.interpolate(conv(features))); `looped`, the released method written with a
loop over the classes and full-resolution logits, as its authors' code does; and this package with both presets.
Rounds are interleaved, so that a busy moment of the machine falls on every row: a ratio is the median of the ratios
within each round, with the smallest and the largest beside it.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import time
from collections.abc import Callable
from datetime import date
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import cacseg


def plain_step(conv: nn.Conv2d, features: Tensor, labels: Tensor) -> Tensor:
    """What a segmentation model does without us."""
    logits = F.interpolate(conv(features), size=labels.shape[1:], mode="bilinear", align_corners=False)
    return F.cross_entropy(logits, labels, ignore_index=255)


def looped_step(classifier: cacseg.ContextAwareClassifier, features: Tensor, labels: Tensor) -> Tensor:
    """The released preset, one class at a time; equal to ContextLoss("released") to rounding."""
    weight = classifier.weight.flatten(1)
    b, _, h, w = features.shape
    directions = F.normalize(features, dim=1)
    small = F.interpolate(labels[:, None].float(), size=(h, w), mode="nearest")[:, 0].long()
    classes = [k for k in small.unique().tolist() if k != 255]

    plain = F.conv2d(features, classifier.weight, classifier.bias)
    share = plain.softmax(1).flatten(2)
    means = share @ features.flatten(2).transpose(1, 2) / share.sum(-1, keepdim=True)
    assert classifier.context_projector is not None
    assert classifier.oracle_projector is not None
    rows = F.normalize(classifier.context_projector(torch.cat([means, weight.expand_as(means)], -1)), dim=-1)
    context = classifier.scale * (rows @ directions.flatten(2)).view(b, -1, h, w)

    prototypes = weight.detach().clone()
    for k in classes:
        mask = (small == k)[:, None]
        mean = (mask * features).sum((0, 2, 3)) / mask.sum()
        here = F.one_hot(torch.tensor(k), len(weight)).to(features)[:, None]
        prototypes = prototypes * (1 - here) + mean * here
    rows = F.normalize(classifier.oracle_projector(torch.cat([prototypes, weight], -1)), dim=-1)
    oracle = classifier.scale * F.conv2d(directions, rows[:, :, None, None])

    soft = oracle.detach().softmax(1)
    hard = F.one_hot(small.clamp_max(len(weight) - 1), len(weight)).permute(0, 3, 1, 2)
    cost = -((0.5 * soft + 0.5 * hard) * context.log_softmax(1)).sum(1)
    entropy = -(soft * (soft + 1e-12).log()).sum(1)
    terms = []
    for k in classes:
        weights = entropy * (small == k)
        terms.append((weights * cost).sum() / weights.sum())

    def full(logits: Tensor, align_corners: bool) -> Tensor:
        return F.interpolate(logits, size=labels.shape[1:], mode="bilinear", align_corners=align_corners)

    return (
        F.cross_entropy(full(plain, True), labels, ignore_index=255)
        + F.cross_entropy(full(context, False), labels, ignore_index=255, reduction="none").mean()
        + F.cross_entropy(full(oracle, True), labels, ignore_index=255)
        + torch.stack(terms).mean()
    )


def our_step(
    classifier: cacseg.ContextAwareClassifier, loss: cacseg.ContextLoss, features: Tensor, labels: Tensor
) -> Tensor:
    """This package."""
    outputs = classifier(features, labels)
    assert isinstance(outputs, cacseg.ContextLogits)
    return loss(outputs, labels)["total"]


def measure(step: Callable[[], Tensor], features: Tensor, device: torch.device) -> tuple[float, float | None]:
    """Milliseconds of one forward and backward, and on a GPU the MiB it needs at most beside its inputs."""
    features.grad = None
    on_gpu = device.type == "cuda"
    if on_gpu:
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
    start = time.perf_counter()
    step().backward()
    if on_gpu:
        torch.cuda.synchronize()
    time_ms = (time.perf_counter() - start) * 1e3
    return time_ms, (torch.cuda.max_memory_allocated() - before) / 2**20 if on_gpu else None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dtype", default="float32", choices=["float32", "bfloat16", "float16"])
    parser.add_argument("--batch", type=int, default=2)
    parser.add_argument("--classes", type=int, default=150)
    parser.add_argument("--channels", type=int, default=512)
    parser.add_argument("--size", type=int, default=128, help="height and width of the features")
    parser.add_argument("--ratio", type=int, default=4, help="labels are this many times larger")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5, help="timed rounds after one warm-up")
    parser.add_argument("--without-loop", action="store_true", help="leave the slow looped row out")
    parser.add_argument("--compile", action="store_true", help="add rows under torch.compile")
    parser.add_argument("--json", metavar="FILE", help="write the figures there as well")
    arguments = parser.parse_args()

    torch.set_num_threads(arguments.threads)
    torch.manual_seed(0)
    device, dtype = torch.device(arguments.device), getattr(torch, arguments.dtype)
    n, d, full = arguments.classes, arguments.channels, arguments.size * arguments.ratio
    features = torch.randn(
        arguments.batch, d, arguments.size, arguments.size, device=device, dtype=dtype, requires_grad=True
    )
    labels = torch.randint(0, n, (arguments.batch, full, full), device=device)  # every class is present
    conv = nn.Conv2d(d, n, 1).to(device)

    steps: dict[str, Callable[[], Tensor]] = {"plain": lambda: plain_step(conv, features, labels)}
    for preset in ("released", "paper"):
        classifier = cacseg.ContextAwareClassifier.from_conv(conv, preset=preset)
        loss = cacseg.ContextLoss(preset)
        steps[preset] = lambda c=classifier, o=loss: our_step(c, o, features, labels)  # type: ignore[misc]
        if preset == "released" and not arguments.without_loop:
            steps["looped"] = lambda c=classifier: looped_step(c, features, labels)  # type: ignore[misc]
    if arguments.compile:
        steps |= {f"{name}, compiled": torch.compile(step) for name, step in steps.items() if name != "looped"}

    def run(name: str) -> Tensor:
        with torch.autocast(device.type, dtype=dtype, enabled=dtype != torch.float32):
            return steps[name]()

    if "looped" in steps and dtype == torch.float32:
        torch.testing.assert_close(run("looped"), run("released"), rtol=1e-4, atol=1e-4)  # the same computation
    figures: dict[str, list[tuple[float, float | None]]] = {name: [] for name in steps}
    for _ in range(arguments.rounds + 1):
        for name, seen in figures.items():
            seen.append(measure(lambda name=name: run(name), features, device))  # type: ignore[misc]
    rows: dict[str, dict[str, float | None]] = {}
    for name, seen in figures.items():
        ratios = [ours / plain for (ours, _), (plain, _) in zip(seen[1:], figures["plain"][1:], strict=True)]
        memory = [mib for _, mib in seen[1:] if mib is not None]
        rows[name] = {
            "time_ms": statistics.median(time_ms for time_ms, _ in seen[1:]),
            "time_ratio": statistics.median(ratios),
            "time_ratio_least": min(ratios),
            "time_ratio_most": max(ratios),
            "memory_mib": max(memory) if memory else None,
        }
    print(f"{device} {arguments.dtype}, torch {torch.__version__}, {torch.get_num_threads()} threads: ", end="")
    print(f"b={arguments.batch} n={n} d={d} features {arguments.size}x{arguments.size} labels {full}x{full}")
    print(f"{'':20}{'ms':>10}{'x plain':>10}{'least':>8}{'most':>8}{'MiB':>10}{'x plain':>10}")
    for name, row in rows.items():
        print(f"{name:20}{row['time_ms']:10.1f}{row['time_ratio']:10.2f}", end="")
        print(f"{row['time_ratio_least']:8.2f}{row['time_ratio_most']:8.2f}", end="")
        memory_mib, base = row["memory_mib"], rows["plain"]["memory_mib"]
        print(f"{memory_mib:10.0f}{memory_mib / base:10.2f}" if memory_mib is not None and base is not None else "")
    if arguments.json:
        facts = {name: value for name, value in vars(arguments).items() if name != "json"}
        hardware = torch.cuda.get_device_name() if device.type == "cuda" else platform.processor() or platform.machine()
        record = {"date": f"{date.today()}", "hardware": hardware, "torch": torch.__version__, **facts, "rows": rows}
        Path(arguments.json).write_text(json.dumps(record, indent=2) + "\n")


if __name__ == "__main__":
    main()
