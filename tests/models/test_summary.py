import pytest

from cacseg.models import MODELS
from cacseg.models.summary import summarise


def test_known_costs():
    """mmsegmentation counts 236 G multiply-adds for UPerNet Swin-T at 512x512; a FLOP is half of one."""
    plain, context = (summarise("upernet_swin_tiny", 150, kind) for kind in ("plain", "context"))
    assert plain.flops / 2e9 == pytest.approx(236, abs=1)
    assert f"{plain.parameters / 1e6:.2f}" == "59.94"
    assert f"{context.parameters / 1e6:.2f}" == "60.73"
    # One more projector and its two products with the features; nothing of the oracle.
    assert context.deployed_parameters - plain.deployed_parameters == 1024 * 256 + 256 * 512 + 512
    added = 2 * 2 * 128 * 128 * 512 * 150 + 2 * 150 * (1024 * 256 + 256 * 512)
    assert context.flops - plain.flops == added


@pytest.mark.parametrize("name", ["fcn_mobilenetv2", "ocrnet_hrnet_w18"])
def test_what_inference_does_not_read_is_not_deployed(name):
    assert name in MODELS
    summary = summarise(name, 19, "context", size=(64, 64))
    assert summary.deployed_parameters < summary.parameters
