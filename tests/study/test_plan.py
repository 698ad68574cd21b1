"""From a study to jobs."""

from dataclasses import replace
from pathlib import Path

import pytest

from cacseg.presets import PRESETS
from cacseg.recipes.config import change
from cacseg.recipes.files import read_recipe
from cacseg.recipes.named import find_recipe
from cacseg.study.file import DataChoice, parse_study, read_study
from cacseg.study.plan import check_supported, digest_of, make_plan
from cacseg.study.results import write_record
from cacseg.study.splits import hold_out

STUDIES = Path(__file__).parents[2] / "studies"
SYNTHETIC = parse_study(
    {
        "name": "synthetic",
        "baseline": "plain",
        "seeds": [0, 1],
        "steps": [20],
        "settings": {"training.batch": 4, "schedule.warmup_steps": 2},
        "data": {
            "synthetic": {
                "recipe": "synthetic",
                "settings": {
                    "data.size": [64, 64],
                    "data.crop": [64, 64],
                    "data.length": 40,
                    "data.val_length": 16,
                    "data.max_share": 1.0,
                },
            }
        },
        "models": {
            "fcn": {"settings": {"model.name": "fcn", "model.backbone": "mobilenetv2_035", "model.auxiliary": False}}
        },
        "optimisers": {"adamw": {"settings": {"optimiser.name": "adamw", "optimiser.rate": 1e-3}}},
        "arms": {
            "plain": {"settings": {"model.classifier": "plain"}},
            "paper": {"settings": {"model.preset": "paper"}},
            "released": {"settings": {"model.preset": "released"}},
        },
    }
)


def of_photographs(**recipes):
    """SYNTHETIC with data sets that need a folder: recipes by the name of the data."""
    settings = {"data.crop": (64, 64), "data.max_share": 1.0}
    return replace(SYNTHETIC, data={name: DataChoice(recipe, None, settings) for name, recipe in recipes.items()})


def test_the_study_of_the_repository_can_be_planned():
    study = read_study(STUDIES / "yours.toml")
    jobs = make_plan(study, {"yours": "somewhere"})
    assert len({job.id for job in jobs}) == len(jobs) == 2 * 4 * 3
    assert {(job.config.data.name, job.config.data.root) for job in jobs} == {("folder", "somewhere")}
    found = {job.arm: (job.config.model.classifier, job.config.model.overlap_weight) for job in jobs}
    assert found == {
        "plain": ("plain", None),
        "plain_overlap": ("plain", 3.0),
        "tuned": ("context", None),
        "tuned_without_overlap": ("context", 0.0),
    }
    assert {job.config.model.preset for job in jobs if job.config.model.classifier == "context"} == {"tuned"}


def test_jobs_are_whole_configurations_in_an_order_that_keeps_pairs():
    jobs = make_plan(replace(SYNTHETIC, steps=(5, 20)), settings={"optimiser.rate": 0.5})
    assert [job.id for job in jobs[:4]] == [
        "synthetic.fcn.adamw.20.plain.0",
        "synthetic.fcn.adamw.20.paper.0",
        "synthetic.fcn.adamw.20.released.0",
        "synthetic.fcn.adamw.5.plain.0",
    ]
    assert [job.seed for job in jobs] == [0] * 6 + [1] * 6
    one = jobs[-1]
    assert (one.config.training.seed, one.config.schedule.steps, one.config.optimiser.rate) == (1, 5, 0.5)
    assert one.config.data.crop == (64, 64)
    assert one.describe()["config"]["model"]["preset"] == "released"


def test_a_part_of_the_grid():
    jobs = make_plan(SYNTHETIC, only={"arms": ["plain", "paper"], "seeds": ["1"]})
    assert [(job.arm, job.seed) for job in jobs] == [("plain", 1), ("paper", 1)]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"only": {"arms": ["papre"]}}, "there is no value of arms 'papre'. Did you mean 'paper'?"),
        ({"only": {"arm": ["paper"]}}, "there is no axis 'arm'. Did you mean 'arms'?"),
        ({"settings": {"model.clasifier": "plain"}}, "synthetic.fcn.adamw.20.plain: there is no setting"),
        ({"settings": {"optimiser.rate": -1}}, "optimiser.rate: input should be greater than 0"),
        ({"settings": {"schedule.steps": 3}}, "--set: schedule.steps is decided by the list `steps`"),
        ({"settings": {"data.max_share": 0.5}}, r"data.max_share must be 1\.0 \(crops are drawn before labels"),
        ({"settings": {"training.precision": "fp16"}}, "must be fp32, tf32 or bf16"),
        ({"settings": {"model.backbone_weights": "nowhere"}}, "there is no file of weights nowhere"),
        ({"roots": {"camvd": "x"}}, r"there is no data set \(of --root\) 'camvd'"),
    ],
)
def test_what_is_wrong_is_said_before_anything_runs(arguments, words):
    with pytest.raises(ValueError, match=words):
        make_plan(SYNTHETIC, **arguments)


def test_data_need_their_folder():
    with pytest.raises(ValueError, match="'msrc21' needs its folder: --root msrc21=PATH; --root has camvid"):
        make_plan(of_photographs(camvid="camvid", msrc21="msrc21"), {"camvid": "x"})


def test_two_folders_of_ones_own_in_one_study():
    study = of_photographs(mine="camvid", yours="camvid")
    jobs = make_plan(study, {"mine": "here", "yours": "there"})
    assert {(job.data, job.config.data.root) for job in jobs} == {("mine", "here"), ("yours", "there")}
    jobs = make_plan(study, {"mine": "here", "camvid": "there"})
    assert {(job.data, job.config.data.root) for job in jobs} == {("mine", "here"), ("yours", "there")}
    with pytest.raises(
        ValueError, match=r"'yours' needs its folder: --root yours=PATH \(or camvid=PATH\); --root has mine"
    ):
        make_plan(study, {"mine": "here"})


def test_arms_must_differ():
    with pytest.raises(ValueError, match=r"the arms 'plain' and 'paper' are the same in synthetic\.fcn\.adamw"):
        make_plan(SYNTHETIC, settings={"model.classifier": "plain"})
    for first, second in zip(*[iter(make_plan(SYNTHETIC))] * 2, strict=True):
        assert first.shared == second.shared  # without what arms set
    changed = make_plan(SYNTHETIC, settings={"training.batch": 3})
    assert changed[0].shared != make_plan(SYNTHETIC)[0].shared


def test_digests_tell_settings_apart_and_nothing_else(tmp_path):
    config = make_plan(SYNTHETIC)[0].config
    digest = digest_of(config, None)
    assert len({job.digest for job in make_plan(SYNTHETIC)}) == 3  # arms, not seeds
    assert digest_of(change(config, {"training.workers": 7, "training.seed": 5}), None) == digest
    assert digest_of(change(config, {"optimiser.rate": 0.5}), None) != digest
    assert digest_of(config, 0.2) != digest
    assert digest_of(change(config, {"model.dilations": (6, 12, 18)}), None) != digest
    here, there, other = (tmp_path / name for name in ("here", "there", "other"))
    here.write_bytes(b"weights")
    there.write_bytes(b"weights")
    other.write_bytes(b"others")
    of = [digest_of(change(config, {"model.backbone_weights": str(path)}), None) for path in (here, there, other)]
    assert of[0] == of[1] != of[2]


def test_what_a_job_would_leave_out_is_refused():
    config = make_plan(SYNTHETIC)[0].config
    for setting in ({"training.accumulate": 2}, {"training.compile": True}, {"data.val_scale": (64, 64)}):
        (key,) = setting
        with pytest.raises(ValueError, match=f"in a study {key} must be"):
            check_supported(change(config, setting))
    for setting in ({"data.window": (64, 64)}, {"data.window": (64, 64), "data.stride": (65, 64)}):
        with pytest.raises(ValueError, match="stride"):
            check_supported(change(config, setting))


def test_the_last_of_each_block_are_held_out():
    train, held_out = hold_out(120, 0.2)
    assert held_out == [*range(40, 50), *range(90, 100), *range(116, 120)]
    assert sorted(train + held_out) == list(range(120))
    assert [len(part) for part in hold_out(367, 0.2)] == [294, 73]  # CamVid
    with pytest.raises(ValueError, match="leaves 2 to train on and holds out 0"):
        hold_out(2, 0.2)


def test_a_digest_sees_what_a_preset_fills_in_and_only_where_one_does(monkeypatch):
    released = change(find_recipe("synthetic"), {"model.preset": "released"})
    plain = change(released, {"model.classifier": "plain"})
    before = digest_of(released, None)
    of_plain = {name: digest_of(change(plain, {"model.preset": name}), None) for name in PRESETS}
    assert of_plain["tuned"] == of_plain["paper"]
    assert len({of_plain["tuned"], of_plain["released"], before}) == 3  # released averages its auxiliary head otherwise
    monkeypatch.setitem(PRESETS, "released", PRESETS["paper"])
    assert digest_of(released, None) != before


def test_a_job_can_be_trained_by_itself(tmp_path):
    job = make_plan(SYNTHETIC)[1]
    write_record(tmp_path, {**job.describe(), "status": "done"})
    assert read_recipe(tmp_path / "jobs" / f"{job.id}.json") == (job.id, job.config)
