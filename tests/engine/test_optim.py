"""Learning rates against numbers, parameter groups against the model's own modules."""

import pytest
import torch
from torch import nn
from torch.optim.lr_scheduler import LambdaLR, PolynomialLR

from cacseg.engine.optim import make_optimiser, parameter_groups, rate_at
from cacseg.engine.options import OptimiserOptions, ScheduleOptions
from cacseg.models import create_model


def sgd_of(rate, **options):
    return OptimiserOptions(name="sgd", rate=rate, **options)


def test_the_polynomial_of_the_convolutional_models():
    """SGD 0.01, power 0.9, down to 1e-4 in 160k steps: (0.01 - 1e-4) (1 - t)^0.9 + 1e-4."""
    sgd, schedule = sgd_of(0.01), ScheduleOptions(steps=160_000, power=0.9, minimum=1e-4)
    for step, rate in ((0, 0.01), (80_000, 0.00540527864), (159_999, 1.0020507e-4), (160_000, 1e-4), (200_000, 1e-4)):
        assert 0.01 * rate_at(sgd, schedule, step) == pytest.approx(rate, rel=1e-6)


def test_the_warm_up_of_swin():
    """6e-5, linear from a millionth of it over 1500 steps, times a line down to 0."""
    schedule = ScheduleOptions(steps=160_000, power=1.0, warmup_steps=1500, warmup_ratio=1e-6)
    for step, rate in ((0, 6e-11), (750, 2.985940e-5), (1499, 5.939825e-5), (1500, 5.94375e-5), (160_000, 0.0)):
        found = 6e-5 * rate_at(sgd_of(6e-5), schedule, step)
        assert found == pytest.approx(rate, rel=1e-5, abs=1e-20)


def test_without_minimum_and_warm_up_it_is_torch_s():
    optimisers = [torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=0.3) for _ in range(2)]
    ours = LambdaLR(optimisers[0], lambda step: rate_at(sgd_of(0.3), ScheduleOptions(steps=7), step))
    theirs = PolynomialLR(optimisers[1], total_iters=7, power=0.9)
    for _ in range(9):
        assert ours.get_last_lr()[0] == pytest.approx(theirs.get_last_lr()[0], rel=1e-12, abs=1e-15)
        for optimiser, schedule in zip(optimisers, (ours, theirs), strict=True):
            optimiser.step()
            schedule.step()


def names_in(model, groups, decay):
    wanted = {id(one) for group in groups if group["weight_decay"] == decay for one in group["params"]}
    return {name for name, one in model.named_parameters() if id(one) in wanted}


def test_swin_spares_norms_positions_and_relative_biases():
    with torch.device("meta"):
        model = create_model("upernet_swin_tiny", 19)
    groups = parameter_groups(sgd_of(6e-5, weight_decay=0.01, decay_normalisation=False), model)
    spared, decayed = names_in(model, groups, 0.0), names_in(model, groups, 0.01)
    assert spared | decayed == {name for name, _ in model.named_parameters()}
    assert not spared & decayed
    assert sum("relative_position_bias_table" in name for name in spared) == 12
    assert not any("relative_position_bias_table" in name for name in decayed)
    norms = {
        f"{name}.{leaf}"
        for name, module in model.named_modules()
        if isinstance(module, nn.LayerNorm | nn.BatchNorm2d)
        for leaf in ("weight", "bias")
    }
    assert norms
    assert spared == norms | {name for name in spared if name.endswith("relative_position_bias_table")}
    assert "backbone.net.layers.0.blocks.0.mlp.fc1.bias" in decayed  # a bias alone is no reason


def test_sgd_decays_everything_in_one_group():
    with torch.device("meta"):
        model = create_model("fcn_mobilenetv2", 19)
    groups = parameter_groups(sgd_of(0.01, weight_decay=5e-4), model)
    assert len(groups) == 1
    optimiser = make_optimiser(sgd_of(0.01, weight_decay=5e-4), model)
    group = optimiser.param_groups[0]
    assert (group["lr"], group["momentum"], group["weight_decay"]) == (0.01, 0.9, 5e-4)


def test_multipliers_scale_a_part():
    with torch.device("meta"):
        model = create_model("fcn_mobilenetv2", 19)
    groups = parameter_groups(sgd_of(0.01, multipliers={"backbone": 0.1, "classifier": 10.0}), model)
    rates = {id(one): group["lr"] for group in groups for one in group["params"]}
    for name, one in model.named_parameters():
        factor = {"backbone": 0.1, "classifier": 10.0}.get(name.split(".")[0], 1.0)
        assert rates[id(one)] == pytest.approx(0.01 * factor)
    with pytest.raises(ValueError, match="backbone, head, classifier, auxiliary, projectors; got 'neck'"):
        parameter_groups(sgd_of(0.01, multipliers={"neck": 1.0}), model)


def test_frozen_parameters_are_left_out():
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    model[0].requires_grad_(False)
    (group,) = parameter_groups(sgd_of(0.1), model)
    assert len(group["params"]) == 2


def test_adamw_gets_its_betas():
    optimiser = make_optimiser(OptimiserOptions(name="adamw", rate=6e-5, betas=(0.8, 0.99)), nn.Linear(2, 2))
    assert isinstance(optimiser, torch.optim.AdamW)
    assert optimiser.param_groups[0]["betas"] == (0.8, 0.99)
