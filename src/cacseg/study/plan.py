"""From a study to its jobs: each a whole configuration that `cacseg train` would take, checked before anything runs."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import lru_cache
from itertools import product
from pathlib import Path
from typing import Any

from cacseg.engine.inference import Inference
from cacseg.presets import fill_preset
from cacseg.recipes.config import Config, change, flat
from cacseg.recipes.files import JOB_FORMAT, RESUMABLE_CHANGES
from cacseg.recipes.named import find_recipe
from cacseg.study.file import Settings, Study, check_known, check_undecided
from cacseg.study.results import AXES, Cell

WEIGHTS = ("model.weights", "model.backbone_weights")
# Not part of a digest: the seed, which is part of the id, and what changes nothing that is learnt.
_UNSEEN = (RESUMABLE_CHANGES - {*WEIGHTS, "model.pretrained"}) | {"training.seed"}
# What a job cannot do, with the value that it needs and why.
_NEEDED: dict[str, tuple[Any, str]] = {
    "data.max_share": (1.0, "crops are drawn before labels are seen"),
    "data.val_scale": (None, "answers are compared at the images' own size"),
    "training.accumulate": (1, "a step is one batch"),
    "training.compile": (False, "compiling costs more than a short job"),
    "training.deterministic": (False, "jobs use the quickest algorithms"),
}


@dataclass(frozen=True)
class Job:
    """One run of a study. Jobs that differ in the arm alone see the same crops in the same order."""

    study: str
    baseline: str
    data: str
    model: str
    optimiser: str
    steps: int
    arm: str
    seed: int
    held_out: float | None
    config: Config
    digest: str  # of every setting that matters, but the seed, and of the weights that it starts from
    shared: str  # the same without what the arm sets

    @property
    def id(self) -> str:
        """Unique in a study, and a file's name."""
        return f"{self.data}.{self.model}.{self.optimiser}.{self.steps}.{self.arm}.{self.seed}"

    @property
    def cell(self) -> Cell:
        return Cell(self.data, self.model, self.optimiser, self.steps)

    def describe(self) -> dict[str, Any]:
        """What is known of it before it runs, as JSON takes it."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return {"format": JOB_FORMAT, "id": self.id, **values, "config": self.config.model_dump(mode="json")}


def make_plan(
    study: Study,
    roots: Mapping[str, str] | None = None,
    settings: Settings | None = None,
    only: Mapping[str, Sequence[str]] | None = None,
) -> list[Job]:
    """The jobs in the order in which they start: seed by seed, so that what is finished is paired; long ones first.

    `roots` are the folders of data sets by their names ("camvid"); `settings` hold for every job, whatever the study
    says; `only` keeps a part of the grid, {"arms": ["plain", "tuned"], "seeds": ["0"]}.
    """
    roots, settings = dict(roots or {}), dict(settings or {})
    check_undecided(settings, "--set")
    chosen = _chosen(study, only or {})
    jobs = []
    for seed, data, model, optimiser, steps, arm in product(
        *(chosen[axis] for axis in ("seeds", "data", "models", "optimisers", "steps", "arms"))
    ):
        choice = study.data[data]
        layers = (study.settings, choice.settings, study.models[model], study.optimisers[optimiser], study.arms[arm])
        decided = {"schedule.steps": int(steps), "training.seed": int(seed), **settings}
        where = f"{data}.{model}.{optimiser}.{steps}.{arm}"
        try:
            config = _with_root(change(find_recipe(choice.recipe), _merged(*layers, decided)), data, roots)
            check_supported(config)
            digest = digest_of(config, choice.held_out)
            beside = change(find_recipe(choice.recipe), _merged(*layers[:-1], decided))
            shared = digest_of(beside, choice.held_out)
        except (ValueError, OSError) as error:
            raise ValueError(f"{where}: {error}") from error
        jobs.append(
            Job(
                study=study.name,
                baseline=study.baseline,
                data=data,
                model=model,
                optimiser=optimiser,
                steps=config.schedule.steps,
                arm=arm,
                seed=config.training.seed,
                held_out=choice.held_out,
                config=config,
                digest=digest,
                shared=shared,
            )
        )
    used = {find_recipe(choice.recipe).data.name for choice in study.data.values()} | set(study.data)
    used |= {job.config.data.name for job in jobs}
    check_known("data set (of --root)", roots, sorted(used))
    _check_different(jobs)
    return sorted(jobs, key=lambda job: (study.seeds.index(job.seed), -job.steps))


def _merged(*layers: Settings) -> dict[str, Any]:
    """Later ones win."""
    return {key: value for layer in layers for key, value in layer.items()}


def _check_different(jobs: Iterable[Job]) -> None:
    """No two arms of a cell are the same run."""
    seen: dict[tuple[Any, ...], Job] = {}
    for job in jobs:
        other = seen.setdefault((job.cell, job.seed, job.digest), job)
        if other.arm != job.arm:
            raise ValueError(
                f"the arms {other.arm!r} and {job.arm!r} are the same in {job.data}.{job.model}.{job.optimiser}. Does "
                "--set undo what they set?"
            )


def check_supported(config: Config) -> None:
    """Nothing in the configuration that a job would have to leave out."""
    values = dict(flat(config))
    for key, (needed, reason) in _NEEDED.items():
        if values[key] != needed:
            raise ValueError(f"in a study {key} must be {json.dumps(needed)} ({reason}); got {values[key]!r}.")
    Inference(window=config.data.window, stride=config.data.stride)  # or an error
    if config.training.precision == "fp16":
        raise ValueError("in a study training.precision must be fp32, tf32 or bf16; got 'fp16'. Use bf16.")


def digest_of(config: Config, held_out: float | None) -> str:
    """Sixteen hexadecimal digits, equal for equal settings; weights count by their content, the seed not at all."""
    seen: dict[str, Any] = {key: value for key, value in flat(config) if key not in _UNSEEN}
    seen |= {key: _content(seen[key]) for key in WEIGHTS if seen[key] is not None}
    seen["held_out"] = held_out
    # What a preset fills in today, not its name; a plain classifier has of it the average of its auxiliary head.
    filled = fill_preset(config.model.preset)._asdict()
    if config.model.classifier == "plain":
        filled = {"auxiliary_average": filled["auxiliary_average"]}
    seen["model.preset"] = filled
    return hashlib.sha256(json.dumps(seen, sort_keys=True).encode()).hexdigest()[:16]


@lru_cache
def _content(path: str) -> str:
    if not Path(path).is_file():
        raise FileNotFoundError(f"there is no file of weights {path}.")
    return hashlib.sha256(Path(path).read_bytes()).hexdigest()


def _with_root(config: Config, choice: str, roots: Mapping[str, str]) -> Config:
    """The configuration with the folder of its data set, by the study's name of it or by its own."""
    name = config.data.name
    if name == "synthetic":
        return config
    root = roots.get(choice, roots.get(name))
    if root is None:
        given = f"; --root has {', '.join(roots)}" if roots else ""
        names = f"{choice}=PATH (or {name}=PATH)" if choice != name else f"{name}=PATH"
        raise ValueError(f"the data set {choice!r} needs its folder: --root {names}{given}.")
    return change(config, {"data.root": root})


def _chosen(study: Study, only: Mapping[str, Sequence[str]]) -> dict[str, list[str]]:
    """Of each axis the values to run, in the study's order."""
    check_known("axis", only, AXES)
    chosen: dict[str, list[str]] = {}
    for axis in AXES:
        there: Iterable[Any] = getattr(study, axis)
        known = [str(value) for value in there]
        if axis in only:
            check_known(f"value of {axis}", only[axis], known)
        chosen[axis] = [value for value in known if axis not in only or value in only[axis]]
        if not chosen[axis]:
            raise ValueError(f"nothing is left of {axis}: --only {axis}= names none of {', '.join(known)}.")
    return chosen
