"""Prototypes from parts, and carried from frame to frame."""

import pytest
import torch

from cacseg import functional
from cacseg.engine.backend import TorchBackend
from cacseg.engine.context import CarriedContext, Pool
from cacseg.engine.inference import Inference, Tiling
from cacseg.models import create_model
from distributed_evaluation import small_model


@pytest.mark.parametrize("epsilon", [0.0, 1e-12, 0.5])
@pytest.mark.parametrize("spread", [1.0, 300.0])
def test_prototypes_in_parts_are_those_of_the_whole(epsilon, spread):
    """Also of classes whose probability underflows everywhere."""
    torch.manual_seed(0)
    features, plain = torch.randn(1, 7, 40), torch.randn(1, 4, 40) * spread
    expected = functional.context_prototypes(features[..., None], plain[..., None], epsilon=epsilon)
    pool = Pool()
    for part in (slice(0, 11), slice(11, 12), slice(12, 40)):
        pool.add(features[0, :, part], plain[0, :, part], torch.ones(40)[part])
    pool.add(torch.randn(7, 5), torch.randn(4, 5), torch.zeros(5))
    assert torch.allclose(pool.prototypes(epsilon), expected, atol=1e-5)


@pytest.mark.parametrize("epsilon", [0.0, 0.5])
@pytest.mark.parametrize("carry", [0.0, 0.3, 1.0])
def test_sums_and_counts_decay(carry, epsilon):
    """Against the recurrence in plain sums."""
    torch.manual_seed(0)
    pool, sums, counts = Pool(), torch.zeros(4, 7), torch.zeros(4)
    for _ in range(5):
        features, plain = torch.randn(7, 40), torch.randn(4, 40)
        shares = plain.softmax(0)
        sums, counts = carry * sums + shares @ features.T, carry * counts + shares.sum(1)
        pool.decay(carry)
        pool.add(features, plain, torch.ones(40))
        assert torch.allclose(pool.prototypes(epsilon)[0], sums / (counts + epsilon)[:, None], atol=1e-5)


@pytest.fixture(scope="module")
def frames():
    return (
        torch.randn(4, 3, 70, 90, generator=torch.Generator().manual_seed(1)) + torch.arange(4.0)[:, None, None, None]
    )


@torch.no_grad()
def carried(model, frames, carry, batch=1):
    network = CarriedContext(model, carry)
    return torch.cat([next(network(one, None)) for one in frames.split(batch)])


MODELS = [("fcn", {"backbone": "test_resnet"}), ("upernet", {"backbone": "mobilenetv2_035", "padding": "same"})]


@pytest.mark.parametrize("preset", ["tuned", "released", "paper"])
@pytest.mark.parametrize(("name", "arguments"), MODELS)
def test_without_carry_each_frame_is_alone(frames, preset, name, arguments):
    torch.manual_seed(0)
    model = create_model(name, 4, head_channels=16, preset=preset, **arguments).eval()
    for parameter in model.classifier.context_projector.parameters():
        torch.nn.init.normal_(parameter, 0.0, 0.3)
    with torch.no_grad():
        alone = model(frames)
    found = torch.nn.functional.interpolate(carried(model, frames, 0.0), size=alone.shape[2:], mode="bilinear")
    assert (found - alone).abs().max() <= 1e-5 * alone.abs().max()
    kept = torch.nn.functional.interpolate(carried(model, frames, 0.9), size=alone.shape[2:], mode="bilinear")
    assert (kept[0] - alone[0]).abs().max() <= 1e-5 * alone.abs().max()
    assert (kept[3] - alone[3]).abs().max() > 1e-2 * alone.abs().max()


def test_batches_are_frames_in_order(frames):
    model = small_model()
    one, four = (carried(model, frames, 0.7, batch) for batch in (1, 4))
    assert torch.allclose(one, four, atol=1e-5)


def test_what_cannot_be_carried():
    plain = create_model("fcn", 3, backbone="test_resnet", head_channels=16, classifier="plain").eval()
    with pytest.raises(ValueError, match="context-aware"):
        CarriedContext(plain, 0.5)
    for carry in (-0.1, 1.1, float("nan")):
        with pytest.raises(ValueError, match="from 0"):
            CarriedContext(small_model(), carry)
    for inference in (Inference(flip=True), Inference((32, 32), (16, 16)), Inference(tiling=Tiling(64, 0))):
        with pytest.raises(ValueError, match="whole"):
            TorchBackend(small_model(list("abc")), inference=inference, device="cpu").carrying(0.5)
