"""How sure a prediction is, by either runtime."""

import math

import numpy as np
import pytest
import torch

from cacseg.engine import backend
from cacseg.runtime import onnx_file


def exact(scores):
    """By the definitions, in float64."""
    probabilities = scores.double().softmax(0)
    entropy = torch.special.entr(probabilities).sum(0) / math.log(max(2, len(scores)))
    return probabilities.amax(0), entropy


@pytest.mark.parametrize("scale", [0.0, 1.0, 300.0])
@pytest.mark.parametrize("shape", [(1, 5, 7), (2, 1, 1), (19, 33, 600), (150, 40, 70)])
@pytest.mark.parametrize("band", [1, 2**14, 2**30])
def test_bands_change_nothing(monkeypatch, shape, band, scale):
    monkeypatch.setattr(backend, "BAND", band)
    monkeypatch.setattr(onnx_file, "BAND", band)
    scores = scale * torch.randn(shape, generator=torch.Generator().manual_seed(0))
    ours = backend.confidence_and_entropy(scores, are_logits=True)
    averaged = backend.confidence_and_entropy(scores.softmax(0), are_logits=False)
    without_torch = onnx_file.confidence_and_entropy(scores.numpy())
    for found in (ours, averaged, without_torch):
        for one, truth in zip(found, exact(scores), strict=True):
            assert one.dtype in (torch.float32, np.float32)
            assert np.abs(np.asarray(one, np.float64) - truth.numpy()).max() < 3e-6
            assert float(one.min()) >= -1e-6


def test_a_pixel_without_scores_has_no_certainty():
    scores = torch.zeros(3, 4, 5)
    scores[:, 1, 2] = torch.nan
    for found in (
        backend.confidence_and_entropy(scores, are_logits=True),
        onnx_file.confidence_and_entropy(scores.numpy()),
    ):
        for one in found:
            assert np.argwhere(np.isnan(np.asarray(one))).tolist() == [[1, 2]]


def test_a_class_that_a_model_rules_out_has_no_part():
    scores = torch.randn(4, 3, 5, generator=torch.Generator().manual_seed(0))
    scores[2] = -torch.inf
    truth = exact(torch.cat([scores[:2], scores[3:]]))
    ratio = math.log(3) / math.log(4)
    for found in (
        backend.confidence_and_entropy(scores, are_logits=True),
        backend.confidence_and_entropy(scores.softmax(0), are_logits=False),
        onnx_file.confidence_and_entropy(scores.numpy()),
    ):
        confidence, entropy = (np.asarray(one, np.float64) for one in found)
        assert np.abs(confidence - truth[0].numpy()).max() < 1e-6
        assert np.abs(entropy - ratio * truth[1].numpy()).max() < 1e-6
