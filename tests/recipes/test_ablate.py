"""The paper's tables: every row is there, rows that are the same thing run once."""

import math

import pandas as pd
import pytest

from cacseg.models import SegmentationModel
from cacseg.recipes.ablate import TABLES, ablation_arms, first_alike, rows_of, scenes, with_paper
from cacseg.recipes.build import make_model
from cacseg.recipes.compare import make_plan
from cacseg.recipes.config import change
from cacseg.recipes.protocol import open_split
from cacseg.reports.comparison import ablation_table
from cacseg.reports.comparison_plots import ablation_figure
from cacseg.reports.pictures import saved
from cacseg.variants import VARIANTS


def test_every_row_is_in_one_table():
    assert [name for table in TABLES for name in rows_of(table)] == list(VARIANTS)
    with pytest.raises(ValueError, match="Did you mean 'loss'"):
        rows_of("los")


def test_rows_that_are_the_same_thing_run_once():
    arms = ablation_arms(list(TABLES), "paper")
    different = {repr((row.classifier, row.loss)) for row in VARIANTS.values()}
    assert len(arms) == len(different) == len(VARIANTS) - 6
    assert first_alike("design_#") == first_alike("kl_e") == first_alike("cosine_d") == "loss_f"
    assert set(ablation_arms(["design"], "paper")) <= set(arms)
    plan = make_plan(scenes(), arms, [0, 1])
    assert len(plan) == 2 * len(arms)
    assert {run.config.model.variant for run in plan} == set(arms)
    assert {run.config.model.preset for run in plan} == {"paper"}


@pytest.mark.parametrize("name", ["loss_a", "kl_1", "cosine_e", "design_d"])
def test_a_row_is_the_variant(name):
    config = change(scenes(), {"model.variant": name, "model.preset": "paper", "model.loss_arguments.kl_weight": 0.5})
    model = make_model(config.model, open_split(config.data, "train"), lambda text: None)
    assert isinstance(model, SegmentationModel)
    assert model.arguments["classifier_arguments"] == VARIANTS[name].classifier
    assert model.arguments["loss_arguments"] == {**VARIANTS[name].loss, "kl_weight": 0.5}


def test_the_paper_beside_ours():
    scores = {"loss_d": [10.0, 14.0], "kl_b": [11.0, 17.0], "loss_f": [12.0, 14.0]}
    rows = [
        {"arm": arm, "seed": k, "mean_iou": value} for arm, values in scores.items() for k, value in enumerate(values)
    ]
    lines = with_paper("distillation", pd.DataFrame(rows))
    assert list(lines["variant"]) == ["kl_a", "kl_b", "kl_e"]  # those that were run
    assert list(lines["paper"]) == [45.74, 45.72, 46.91]
    assert list(lines["paper_difference"]) == [0.0, -0.02, 1.17]
    assert list(lines["mean_iou"]) == [12.0, 14.0, 13.0]
    assert list(lines["difference"]) == [0.0, 2.0, 1.0]
    assert lines["difference_error"][1] == pytest.approx(1.0)  # of 1 and 3
    assert lines["error"][0] == pytest.approx(math.sqrt(8.0 / 2.0))
    table = ablation_table(lines, "title")
    assert table.rows[1][:1] + table.rows[1][2:] == ["kl_b", "45.72", "-0.02", "2", "14.0 ± 3.0", "+2.0 ± 1.0"]
    assert saved(ablation_figure(lines, "title"), "png").startswith(b"\x89PNG")
