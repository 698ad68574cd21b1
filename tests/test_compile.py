"""Classifier and loss go through torch.compile and torch.export whole: no graph break, no host synchronisation."""

import pytest
import torch
from torch.export import Dim, export

import cacseg
from projectors import wake

B, D, N = 2, 16, 5


def draw(b=B, spatial=(6, 7), full=(24, 28), seed=0):
    generator = torch.Generator().manual_seed(seed)
    features = torch.randn(b, D, *spatial, generator=generator).requires_grad_()
    labels = torch.randint(0, N, (b, *full), generator=generator)
    labels[:, :2] = 255
    return features, labels


SLOW = [(preset, dynamic, "inductor") for preset, dynamic in [("tuned", True), ("tuned", False), ("released", True)]]


@pytest.mark.parametrize(
    ("preset", "dynamic", "backend"),
    [("tuned", True, "aot_eager"), *(pytest.param(*one, marks=pytest.mark.slow) for one in SLOW)],
)
def test_training_compiles_without_a_graph_break(preset, dynamic, backend):
    torch.manual_seed(0)
    classifier, loss = wake(cacseg.ContextAwareClassifier(D, N, preset=preset)), cacseg.ContextLoss(preset)

    def step(features, labels):
        return loss(classifier(features, labels), labels)

    compiled = torch.compile(step, fullgraph=True, dynamic=dynamic, backend=backend)
    for b, spatial, full in ((2, (6, 7), (24, 28)), (3, (5, 9), (20, 36)))[: 1 + dynamic]:
        features, labels = draw(b, spatial, full)
        results = []
        for function in (step, compiled):
            classifier.zero_grad()
            features.grad = None
            losses = function(features, labels)
            losses["total"].backward()
            results.append((losses, [tensor.grad.clone() for tensor in (features, *classifier.parameters())]))
        torch.testing.assert_close(results[1], results[0], rtol=1e-4, atol=1e-5)
    wrong = labels.clone()
    wrong[0, 0, 0] = 77
    with pytest.raises(ValueError, match="got the values 77 in 1 of"):
        compiled(features, wrong)


@pytest.mark.parametrize("case", ["uint8", "autocast", "packed", pytest.param("overlap", marks=pytest.mark.slow)])
def test_other_inputs_compile_without_a_graph_break(case):
    torch.manual_seed(0)
    classifier = cacseg.ContextAwareClassifier(D, N, preset="released")
    loss = cacseg.ContextLoss(**(dict(overlap_weight=1.0) if case == "overlap" else {}))
    features, labels = draw()
    offsets = None
    if case == "uint8":
        labels = labels.to(torch.uint8)
    if case == "packed":
        features, labels = torch.randn(50, D, requires_grad=True), torch.randint(0, N, (50,))
        offsets = torch.tensor([0, 20, 20, 50])

    def step(features, labels):
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=case == "autocast"):
            return loss(classifier(features, labels, offsets), labels)["total"]

    compiled = torch.compile(step, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(features, labels), step(features, labels), rtol=1e-4, atol=1e-4)
    compiled(features, labels).backward()
    assert features.grad.isfinite().all()


def test_nothing_reads_a_value():
    """Tensors without values: whatever would wait for one (item, unique, nonzero, a branch) raises here."""
    with torch.device("meta"):
        classifier = cacseg.ContextAwareClassifier(D, N, preset="released")
        loss = cacseg.ContextLoss(overlap_weight=1.0, class_weights=[1.0] * N, label_smoothing=0.1)
        features = torch.empty(2, D, 6, 7, requires_grad=True)
        labels = torch.empty(2, 24, 28, dtype=torch.long)
        losses = loss(classifier(features, labels), labels)
        losses["total"].backward()
        assert features.grad.shape == features.shape
        assert classifier.oracle_logits(features, labels).shape == (2, N, 6, 7)
        rows, row_labels, offsets = torch.empty(50, D), torch.empty(50).long(), torch.empty(4).long()
        losses = loss(classifier(rows, row_labels, offsets), row_labels)
        assert losses["total"].shape == ()


@pytest.mark.parametrize(("preset", "classes"), [("released", N), ("tuned", N), ("tuned", 1)])
def test_inference_exports_with_dynamic_batch_height_and_width(preset, classes):
    torch.manual_seed(0)
    classifier = wake(cacseg.ContextAwareClassifier(D, classes, preset=preset)).eval().drop_oracle()
    dynamic = ({0: Dim("batch"), 2: Dim("height"), 3: Dim("width")},)
    program = export(classifier, (torch.randn(2, D, 6, 7),), dynamic_shapes=dynamic)
    assert not any("oracle" in name for name in program.state_dict)
    module = program.module()
    for shape in ((1, D, 9, 5), (3, D, 17, 33), (2, D, 6, 7)):
        features = torch.randn(shape)
        torch.testing.assert_close(module(features), classifier(features))
