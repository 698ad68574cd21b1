import pytest
import torch

from cacseg import variants
from cacseg.presets import PRESETS
from cacseg.variants import VARIANTS

TABLES = {
    "loss": "abcdefgh",
    "kl": "abcde12",
    "cosine": "abcde123",
    "design": ["baseline", *"abcd#efghi"],
}


def test_every_row_of_the_four_tables_is_listed():
    assert set(VARIANTS) == {f"{table}_{row}" for table, rows in TABLES.items() for row in rows}


# As the paper prints them, row by row.
PAPER_MIOU = {
    "loss": [44.51, 44.06, 45.14, 45.74, 45.23, 46.91, 45.88, 46.08],
    "kl": [45.74, 45.72, 45.99, 46.10, 46.91, 46.58, 46.22],
    "cosine": [44.51, 43.89, 45.42, 46.91, 46.39, 45.39, 46.78, 46.26],
    "design": [44.51, 44.08, 44.13, 46.21, 46.53, 46.91, 45.94, 46.01, 44.55, 45.69, 44.62],
}


@pytest.mark.parametrize("table", TABLES)
def test_the_figures_are_the_papers(table):
    assert [VARIANTS[f"{table}_{row}"].paper_miou for row in TABLES[table]] == PAPER_MIOU[table]


def test_the_method_is_one_row_of_each_table():
    rows = [name for name, variant in VARIANTS.items() if variant.paper_miou == 46.91]
    assert rows == ["loss_f", "kl_e", "cosine_d", "design_#"]
    assert all(not VARIANTS[name].classifier and not VARIANTS[name].loss for name in rows)


@pytest.mark.parametrize("name", VARIANTS)
@pytest.mark.parametrize("preset", ["paper", "released", "tuned"])
def test_every_row_trains_every_parameter(name, preset):
    """One step gives every trainable parameter a gradient: no row leaves one unused, as DDP demands."""
    torch.manual_seed(0)
    classifier, loss = variants.build(name, in_channels=8, num_classes=5, preset=preset)
    features, labels = torch.randn(2, 8, 4, 6), torch.randint(0, 5, (2, 16, 24))
    losses = loss(classifier(features, labels), labels)
    losses["total"].backward()
    assert losses["total"].isfinite()
    assert losses["total"] > 0
    for parameter_name, parameter in classifier.named_parameters():
        assert not parameter.requires_grad or parameter.grad is not None, parameter_name
    assert classifier(features).shape == (2, 5, 4, 6)


@pytest.mark.parametrize("name", ["loss_a", "cosine_a", "cosine_b", "design_baseline"])
@pytest.mark.parametrize("preset", PRESETS)
def test_a_fixed_classifier_has_no_loss_beside_its_own(name, preset):
    torch.manual_seed(0)
    classifier, loss = variants.build(name, in_channels=8, num_classes=5, preset=preset)
    features, labels = torch.randn(2, 8, 4, 6), torch.randint(0, 5, (2, 16, 24))
    losses = loss(classifier(features, labels), labels)
    assert losses["total"] == losses["plain"]
    assert "overlap" not in losses


@pytest.mark.parametrize("name", VARIANTS)
def test_a_row_differs_from_the_method_unless_it_is_the_method(name):
    """Same parameters, same batch: another loss, or another answer, or other parameters."""
    torch.manual_seed(0)
    features, labels = torch.randn(2, 8, 4, 6).double(), torch.randint(0, 5, (2, 16, 24))
    results = []
    for row in (name, "loss_f"):
        torch.manual_seed(1)
        classifier, loss = variants.build(row, in_channels=8, num_classes=5)
        classifier.double()
        generator = torch.Generator().manual_seed(2)
        with torch.no_grad():
            for _, parameter in sorted(classifier.named_parameters()):
                parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.3)
        results.append(loss(classifier(features, labels), labels)["total"].item())
    is_method = VARIANTS[name].paper_miou == 46.91
    assert (results[0] == results[1]) == is_method


def test_a_wrong_name_is_refused():
    with pytest.raises(ValueError, match=r"name must be one of 'loss_a', .*'design_i'; got 'loss_z'"):
        variants.build("loss_z", 8, 5)
