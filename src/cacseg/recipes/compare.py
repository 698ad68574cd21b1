"""Plans of comparisons: one recipe with several settings (arms), schedules and seeds, each an ordinary run.

DIR/comparison.json         the arms, and the name of the data and of the model
DIR/runs/ARM-STEPS-SEED     a folder of `cacseg train` for each run
"""

from __future__ import annotations

import json
import re
import sys
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from cacseg._files import write_file
from cacseg._text import parse, parse_json, shorten
from cacseg.engine.scores import read_scores
from cacseg.recipes.config import Config, change, flat, parse_setting, suggest
from cacseg.recipes.files import CONFIG, RESUMABLE_CHANGES, read_config

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

Settings = Mapping[str, Any]

RUNS, FILE, SCORES, FORMAT = "runs", "comparison.json", "scores.json", "cacseg comparison 1"
NAME = r"[\w.+-]+"  # of an arm
VALIDATIONS = 4  # of each run, the last at its end
CONTEXT = {"model.classifier": "context"}
ARMS: dict[str, Settings] = {
    "plain": {"model.classifier": "plain"},
    "overlap": {"model.classifier": "plain", "model.overlap_weight": 3.0},
    "tuned": {**CONTEXT, "model.preset": "tuned"},
    "released": {**CONTEXT, "model.preset": "released"},
    "paper": {**CONTEXT, "model.preset": "paper"},
    # One classifier for all images, trained with the losses of `tuned`.
    "unadapted": {**CONTEXT, "model.preset": "tuned", "model.classifier_arguments.context_design": "weight"},
}
# What the command decides, and by which option.
DECIDED = {
    "schedule.steps": "--steps",
    "training.seed": "--seeds",
    "training.devices": "--devices",
    "training.nodes": "--devices",
    "training.accelerator": "--devices",
}
_WEIGHTS = ("model.weights", "model.backbone_weights")
# Settings that runs of one arm need not share.
_FREE = (RESUMABLE_CHANGES - {*_WEIGHTS, "model.pretrained"}) | {"training.seed"}


class Run(NamedTuple):
    """One run. Those of one seed and as many steps see the same crops in the same order."""

    arm: str
    steps: int
    seed: int
    config: Config

    @property
    def name(self) -> str:
        """Of its folder."""
        return f"{self.arm}-{self.steps}-{self.seed}"


class Comparison(NamedTuple):
    """What comparison.json holds."""

    recipe: str
    data: str  # names in tables
    model: str
    arms: dict[str, dict[str, Any]]  # their settings; the first is the baseline


def choose_arms(names: str, more: Sequence[str] = ()) -> dict[str, Settings]:
    """Arms of "plain,tuned" or of a TOML file, and further ones of "NAME:KEY=VALUE,KEY=VALUE"."""
    if names.endswith(".toml"):
        found = _read_arms(Path(names))
    else:
        found = {name: _known_arm(name) for name in (part.strip() for part in names.split(",")) if name}
    for text in more:
        name, colon, settings = (part.strip() for part in text.partition(":"))
        if not colon or not settings or name in found:
            raise ValueError(
                f"--arm must be NAME:KEY=VALUE,KEY=VALUE with a new name; got {text!r}. "
                "Example: --arm slow:tuned,optimiser.rate=1e-4"
            )
        first, *rest = re.split(r",(?=[\w.]+=)", settings)  # a value may hold commas: data.crop=256,320
        start = dict([parse_setting(first)]) if "=" in first else _known_arm(first)
        found[name] = {**start, **dict(map(parse_setting, rest))}
    for name in found:
        if not re.fullmatch(NAME, name):
            raise ValueError(f"an arm's name is letters, digits and any of _ . + -; got {name!r}.")
    if not found:
        raise ValueError("a comparison needs an arm; got none. Example: --arms plain,tuned")
    return found


@contextmanager
def naming_file(names: str) -> Iterator[None]:
    """An error about arms names the TOML file that they are of."""
    try:
        yield
    except ValueError as error:
        if names.endswith(".toml") and names not in str(error):
            raise ValueError(f"{names}: {error}") from error
        raise


def _known_arm(name: str) -> Settings:
    if name not in ARMS:
        hint = suggest(name, ARMS, f"There are {', '.join(ARMS)}; --arm adds one.")
        raise ValueError(f"there is no arm {name!r}. {hint}")
    return ARMS[name]


def _read_arms(path: Path) -> dict[str, Settings]:
    """Tables [NAME] of settings, "model.preset" = "paper" or model.preset = "paper"; an empty one is a known arm."""
    try:
        content = parse(tomllib.loads, path.read_bytes().decode("utf-8-sig"))
    except FileNotFoundError:
        raise FileNotFoundError(f"there is no file of arms {path}.") from None
    except ValueError as error:
        raise ValueError(f"{path} is no TOML ({error}).") from error
    for name, table in content.items():
        if not isinstance(table, dict):
            raise ValueError(f"{path} must hold a table of settings for each arm, [NAME]; got {name} = {table!r}.")
    return {name: _flattened(table) if table else _known_arm(name) for name, table in content.items()}


def _flattened(table: Settings, above: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in table.items():
        found |= _flattened(value, f"{above}{key}.") if isinstance(value, dict) else {f"{above}{key}": value}
    return found


def make_plan(
    base: Config,
    arms: Mapping[str, Settings],
    seeds: Sequence[int],
    steps: Sequence[int] = (),
    settings: Settings | None = None,
    validations: int = VALIDATIONS,
) -> list[Run]:
    """The runs in the order in which they start: seed by seed, so that what is finished is paired; long ones first.

    `settings` hold for all runs, and win over what a schedule sets by default (`at_steps`).
    """
    settings = settings or {}
    for key in settings:
        setters = [name for name, of_arm in arms.items() if _field(key) in map(_field, of_arm)]
        if key in DECIDED:
            raise ValueError(f"{key} is not for --set in a comparison: use {DECIDED[key]}.")
        if setters:
            raise ValueError(f"--set {key} would change what arms differ in ({', '.join(setters)}). Use --arm for it.")
    base = change(base, settings)
    plan: list[Run] = []
    for seed in seeds:
        for count in sorted(steps or (base.schedule.steps,), reverse=True):
            for arm, of_arm in arms.items():
                try:
                    shared = at_steps(base, count, {*settings, *of_arm}, validations)
                    config = change(shared, {**of_arm, "training.seed": seed})
                except ValueError as error:
                    raise ValueError(f"arm {arm}: {error}") from error
                plan.append(Run(arm, count, seed, config))
    first = [run for run in plan if run.seed == seeds[0]]
    for run in first:
        same = [other.arm for other in first if settings_of(other.config) == settings_of(run.config)]
        if len(same) > 1:
            raise ValueError(f"the arms {' and '.join(same)} are the same. Leave one out.")
    return plan


def at_steps(config: Config, steps: int, given: Iterable[str] = (), validations: int = VALIDATIONS) -> Config:
    """A run of so many steps on one device; unless `given`, its warm-up is at most a tenth of it."""
    defaults: dict[str, Any] = {
        "schedule.warmup_steps": min(config.schedule.warmup_steps, steps // 10),
        "training.validate_every": -(-steps // validations),
        "training.loggers": ("csv",),
    }
    chosen = {key: value for key, value in defaults.items() if key not in given}
    return change(config, {"schedule.steps": steps, "training.devices": 1, "training.nodes": 1, **chosen})


def describe(recipe: str, base: Config, arms: Mapping[str, Settings]) -> Comparison:
    """A data set of one's own is named after its folder."""
    data, model = base.data, base.model
    name = Path(data.root).stem if data.name == "folder" and data.root else data.name
    label = model.name if model.backbone is None else f"{model.name} on {model.backbone}"
    return Comparison(recipe, name, label, {arm: dict(settings) for arm, settings in arms.items()})


def write_comparison(folder: Path, comparison: Comparison) -> None:
    write_file(folder / FILE, json.dumps({"format": FORMAT, **comparison._asdict()}, indent=2) + "\n")


def read_comparison(folder: Path) -> Comparison:
    path = folder / FILE
    try:
        content = parse_json(path.read_bytes())
        if not isinstance(content, dict) or content.pop("format", None) != FORMAT:
            raise ValueError(f"its format is not {FORMAT!r}")
        found = Comparison(**content)
        for name, value in found._asdict().items():
            if not isinstance(value, dict if name == "arms" else str):
                raise ValueError(f"its {name} is {shorten(value)}")
        for name, settings in found.arms.items():
            if not isinstance(settings, dict) or not re.fullmatch(NAME, name):
                raise ValueError(f"its arm {shorten(name)} is {shorten(settings)}")
        for name in (found.recipe, found.data, found.model):
            name.encode()  # or it can be written nowhere
        return found
    except FileNotFoundError:
        raise FileNotFoundError(f"{folder} is no folder of a comparison: there is no {path}.") from None
    except (ValueError, TypeError) as error:
        raise ValueError(
            f"{path} cannot be read ({error}). The same `cacseg compare` with -o DIR anew mends it."
        ) from error


def join_plan(folder: Path, comparison: Comparison, plan: Sequence[Run]) -> Comparison:
    """The comparison beside what the folder holds already; other settings than those are an error, never mixed."""
    if not (folder / FILE).exists():
        return comparison
    before = read_comparison(folder)
    for field in ("data", "model"):
        if getattr(before, field) != getattr(comparison, field):
            was, now = getattr(before, field), getattr(comparison, field)
            raise ValueError(f"{folder} compares on the {field} {was!r}; got {now!r}. Choose another folder: -o DIR.")
    arms = {**comparison.arms, **{name: one for name, one in before.arms.items() if name not in comparison.arms}}
    there = [(folder / RUNS / run.name, run) for run in runs_of(folder)]
    check_alike([*there, *((folder / RUNS / run.name, run) for run in plan)], arms)
    return comparison._replace(arms=arms)


def runs_of(folder: Path) -> list[Run]:
    """The runs that a folder holds, begun or finished."""
    found = []
    for path in sorted((folder / RUNS).glob(f"*-*-*/{CONFIG}")):
        arm, steps, seed = path.parent.name.rsplit("-", 2)
        if steps.isdigit() and seed.isdigit():
            found.append(Run(arm, int(steps), int(seed), read_config(path).config))
    return found


def check_alike(runs: Iterable[tuple[Path, Run]], arms: Mapping[str, Settings]) -> None:
    """Runs of as many steps share all settings but those that arms set; runs of one arm share those too."""
    free = {_field(key) for settings in arms.values() for key in settings}
    seen: dict[tuple[str, int], tuple[Path, dict[str, Any]]] = {}
    for path, run in runs:
        settings = settings_of(run.config)
        shared = {key: value for key, value in settings.items() if key not in free}
        for key, now in (((run.arm, run.steps), settings), (("", run.steps), shared)):
            first, before = seen.setdefault(key, (path, now))
            changed = [
                f"{key} was {value!r}, now {now[key]!r}"
                for key, value in before.items()
                if now[key] != value and "auto" not in (value, now[key])  # which a run decides for itself
            ]
            if changed:
                raise ValueError(
                    f"{first} and {path} differ in the settings of config.json ({'; '.join(changed)}) and cannot be "
                    "compared. Choose another folder: -o DIR."
                )


def settings_of(config: Config) -> dict[str, Any]:
    """All that runs of one arm must share; files of weights count by their names."""
    found = {key: value for key, value in flat(config) if key not in _FREE}
    return {key: Path(value).name if key in _WEIGHTS and value else value for key, value in found.items()}


def _field(key: str) -> str:
    """ "model.loss_arguments" of "model.loss_arguments.kl_weight"."""
    return ".".join(key.split(".")[:2])


def is_finished(folder: Path) -> bool:
    try:
        found = read_scores(folder / SCORES)
    except (OSError, ValueError):  # `cacseg train --resume` writes them anew
        return False
    return found is not None and bool(found["finished"])


def check_runs(plan: Sequence[Run]) -> None:
    """Before the first run starts: data can be opened, crops fit, and every model can be made."""
    from cacseg.data import SegmentationData
    from cacseg.engine.preflight import check_crop, check_data, check_foreground
    from cacseg.recipes.build import make_model
    from cacseg.recipes.protocol import open_split

    opened: dict[str, SegmentationData] = {}
    made = set()
    shares_data = len({run.config.data.model_dump_json() for run in plan}) == 1
    for run in plan:
        data, model = (part.model_dump_json() for part in (run.config.data, run.config.model))
        where = "" if shares_data else f"arm {run.arm}: "
        try:
            if data not in opened:
                opened[data] = open_split(run.config.data, "train")
                check_crop(run.config.data.crop, run.config.data.scale, run.config.data.ratios, opened[data])
                check_data(opened[data], open_split(run.config.data, "val"))
                check_foreground(opened[data])
            where = f"arm {run.arm}: "
            if (data, model) not in made:
                made.add((data, model))
                with warnings.catch_warnings():  # the runs will tell
                    warnings.simplefilter("ignore")
                    known = {} if run.config.model.class_weights != "frequency" else {"class_weights": None}
                    make_model(run.config.model.model_copy(update=known), opened[data], lambda text: None)
        except (ValueError, TypeError, OSError) as error:
            raise ValueError(f"{where}{error}") from error
