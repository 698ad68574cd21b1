"""Features, rows and answers of single images, against the classifier's own equations."""

import math

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from cacseg import ContextAwareClassifier, functional
from cacseg.data.sample import read_sample
from cacseg.engine.evaluate import evaluate
from cacseg.engine.features import KEPT, image_answers, image_rows, plain_rows
from cacseg.engine.inference import collate, view_image
from distributed_evaluation import small_data, small_model

CPU = torch.device("cpu")


def test_rows_are_those_that_make_the_context_logits():
    model, data = small_model(), small_data()
    (found,) = image_rows(model, data, [1], device=CPU)
    sample = read_sample(data, 1)
    (shown,) = collate([view_image(sample.image, None, (1.0,))], model, CPU)
    with torch.no_grad():
        features = model.features(shown)
        context = model.classifier(features)
    rows = torch.from_numpy(found.rows)
    logits = model.classifier.scale * torch.einsum("bdhw,nd->bnhw", F.normalize(features, dim=1), F.normalize(rows))
    torch.testing.assert_close(logits, context, rtol=1e-4, atol=1e-4)
    plain = torch.from_numpy(plain_rows(model))
    cosines = (F.normalize(plain) * F.normalize(rows)).sum(-1)
    np.testing.assert_allclose(found.moves, (1 - cosines).numpy(), atol=1e-5)
    assert found.moves.max() > 0.01


def test_features_are_sorted_by_their_labels():
    model, data = small_model(), small_data()
    (found,) = image_rows(model, data, [2], device=CPU)
    sample = read_sample(data, 2)
    (shown,) = collate([view_image(sample.image, None, (1.0,))], model, CPU)
    with torch.no_grad():
        features = model.features(shown)[0].flatten(1).T
    labels = functional.fit_labels(
        torch.from_numpy(sample.labels)[None], model.features(shown).shape[2:], 3, 255, model.classifier.label_sampling
    ).flatten()
    for k in range(3):
        assert found.counts[k] == (labels == k).sum()
        if found.counts[k]:
            assert len(found.features[k]) == min(KEPT, found.counts[k])
            torch.testing.assert_close(torch.from_numpy(found.features[k]), features[labels == k][:KEPT])
        else:
            assert k not in found.features


def test_answers_are_those_that_are_scored():
    model, data = small_model(), small_data()
    scored = evaluate(model, data)
    for output in ("plain", "context"):
        hits = 0
        for one in image_answers(model, data, range(len(data)), ["plain", "context"], device=CPU):
            answer, labels = one.answers[output], one.sample.labels
            hits += ((answer.classes == labels) & (labels != 255)).sum()
            assert answer.entropy.shape == labels.shape
            assert 0.0 <= answer.entropy.min() <= answer.entropy.max() <= 1.0 + 1e-5
        assert hits == scored.counts[output].diagonal().sum()


def test_entropy_is_that_of_the_probabilities():
    model, data = small_model(), small_data()
    (found,) = image_answers(model, data, [0], ["context"], device=CPU)
    (shown,) = collate([view_image(found.sample.image, None, (1.0,))], model, CPU)
    with torch.no_grad():
        probabilities = model(shown)[0].double().softmax(0)
    expected = -(probabilities * probabilities.log()).sum(0) / math.log(3)
    np.testing.assert_allclose(found.answers["context"].entropy, expected.numpy(), atol=1e-4)


def test_weights_of_binary_and_packed_and_of_no_branch():
    features = torch.randn(2, 8, 3, 3)
    plain, own = ContextAwareClassifier(8, 1).both_weights(features)
    assert (plain.shape, own.shape) == ((2, 8), (2, 2, 8))
    classifier = ContextAwareClassifier(8, 4, preset="paper").eval()
    packed, offsets = torch.randn(7, 8), torch.tensor([0, 3, 7])
    own = classifier.both_weights(packed, offsets)[1]
    assert own.shape == (2, 4, 8)
    alone = classifier.both_weights(packed[:3].T[None])[1]
    torch.testing.assert_close(own[:1], alone)
    with pytest.raises(ValueError, match="no context branch"):
        ContextAwareClassifier(8, 4, context_design="none").both_weights(features)
