import numpy as np
import pytest
import torch
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

import cacseg
from cacseg import functional
from projectors import wake
from reference_vectors import CASES, load, make_classifier

TERMS = ("plain", "context", "oracle", "distillation")
DEFAULT_TERMS = (*TERMS, "overlap")
RELEASED = {"plain": "ce_p", "context": "ce_pp_main", "oracle": "ce_y", "distillation": "kl", "total": "total"}
PAPER = {
    "plain": "ce_fullres_p",
    "context": "ce_fullres_p_p",
    "oracle": "ce_fullres_p_y",
    "distillation": "kl_classwise_entropy_oracle_over_present",
    "total": "total_fullres_over_present",
}


def draw(seed=0, dtype=torch.float64, n=5):
    generator = torch.Generator().manual_seed(seed)
    features = torch.randn(2, 8, 4, 6, generator=generator).to(dtype).requires_grad_()
    labels = torch.randint(0, n, (2, 16, 24), generator=generator)
    labels[:, :3] = 255
    return features, labels


def make(dtype=torch.float64, n=5, preset="released", **arguments):
    torch.manual_seed(0)
    return cacseg.ContextAwareClassifier(8, n, preset=preset, **arguments).to(dtype)


@pytest.mark.parametrize("case", CASES)
def test_released_vectors(case):
    v = load("released", case)
    classifier, features = make_classifier(v, "released"), v["in_features"].requires_grad_()
    losses = cacseg.ContextLoss("released")(classifier(features, v["in_labels"]), v["in_labels"])
    close = dict(rtol=0, atol=1e-9)
    for ours, theirs in RELEASED.items():
        torch.testing.assert_close(losses[ours], v[f"loss_{theirs}"], **close)
        (gradient,) = torch.autograd.grad(losses[ours], features, retain_graph=True)
        torch.testing.assert_close(gradient, v[f"grad_features_{theirs}"], **close)
    losses["total"].backward()
    names = {"weight": "conv_seg_weight", "bias": "conv_seg_bias"}
    for ours, theirs in (("context_projector", "proj"), ("oracle_projector", "apd_proj")):
        names |= {f"{ours}.{leaf}": f"{theirs}_{leaf.replace('.', '_')}" for leaf in ("0.weight", "2.weight", "2.bias")}
    parameters = dict(classifier.named_parameters())
    assert set(names) == set(parameters)
    for ours, theirs in names.items():
        torch.testing.assert_close(parameters[ours].grad, v[f"grad_{theirs}_total"], **close)


@pytest.mark.parametrize("case", CASES)
def test_released_vectors_with_the_oracle_alone_as_target(case):
    v = load("released", case)
    classifier = make_classifier(v, "released")
    losses = cacseg.ContextLoss("released", soft_target_weight=1.0)(
        classifier(v["in_features"], v["in_labels"]), v["in_labels"]
    )
    torch.testing.assert_close(losses["distillation"], v["loss_kl_smoothness1"], rtol=0, atol=1e-9)


@pytest.mark.parametrize("case", CASES)
def test_paper_vectors(case):
    v = load("paper", case)
    classifier, features = make_classifier(v, "paper"), v["in_features"].requires_grad_()
    outputs = classifier(features, v["in_labels"])
    losses = cacseg.ContextLoss("paper")(outputs, v["in_labels"])
    close = dict(rtol=0, atol=1e-9)
    for ours, theirs in PAPER.items():
        torch.testing.assert_close(losses[ours], v[theirs], **close)
    forms = {
        "vanilla": "vanilla",
        "entropy": "entropy_oracle",
        "classwise": "classwise_over_present",
        "classwise_entropy": "classwise_entropy_oracle_over_present",
    }
    for form, theirs in forms.items():
        value = cacseg.ContextLoss("paper", distillation=form)(outputs, v["in_labels"])["distillation"]
        torch.testing.assert_close(value, v[f"kl_{theirs}"], **close)
        (gradient,) = torch.autograd.grad(value, features, retain_graph=True)
        torch.testing.assert_close(gradient, v[f"grad_features_kl_{theirs}"], **close)
    for source, theirs in (("context", "estimated"), ("plain", "original")):
        value = cacseg.ContextLoss("paper", entropy_source=source)(outputs, v["in_labels"])["distillation"]
        torch.testing.assert_close(value, v[f"kl_classwise_entropy_{theirs}_over_present"], **close)
    (gradient,) = torch.autograd.grad(losses["total"], features)
    torch.testing.assert_close(gradient, v["grad_features_total_fullres_over_present"], **close)


@pytest.mark.parametrize("preset", ["tuned", "released", "paper"])
def test_gradcheck_through_classifier_and_loss(preset):
    classifier, loss = make(preset=preset), cacseg.ContextLoss(preset)
    features, _ = draw()
    features = features.detach()[..., :2, :3].requires_grad_()
    # Every class in every image: an absent one takes the weight without gradient, as no numerical derivative does.
    small = torch.tensor([[[0, 1, 2], [3, 4, 255]], [[4, 4, 2], [3, 1, 0]]])
    labels = small.repeat_interleave(3, dim=1).repeat_interleave(3, dim=2)
    names, values = zip(*classifier.named_parameters(), strict=True)

    def total(features, *values):
        outputs = torch.func.functional_call(classifier, dict(zip(names, values, strict=True)), (features, labels))
        # The distillation's target is constant by definition, a numerical derivative would move it.
        return cacseg.ContextLoss(preset, kl_weight=0.0)(outputs, labels)["total"]

    torch.autograd.gradcheck(total, (features, *values), atol=1e-6)
    context = classifier(features, labels)
    detached = [context.context.detach().requires_grad_()]

    def distillation(logits):
        return loss(context._replace(context=logits), labels)["distillation"]

    torch.autograd.gradcheck(distillation, detached, atol=1e-6)


def test_the_total_is_the_weighted_sum():
    classifier, (features, labels) = make(preset="tuned"), draw()
    outputs = classifier(features, labels)
    weights = dict(plain_weight=0.5, context_weight=2.0, oracle_weight=3.0, kl_weight=0.1, overlap_weight=0.7)
    losses = cacseg.ContextLoss(**weights)(outputs, labels)
    plain = cacseg.ContextLoss()(outputs, labels)
    for name in DEFAULT_TERMS:
        torch.testing.assert_close(losses[name], plain[name])
    total = sum(weight * plain[name] for weight, name in zip(weights.values(), DEFAULT_TERMS, strict=True))
    torch.testing.assert_close(losses["total"], total)
    assert set(losses) == {*DEFAULT_TERMS, "total"}


def test_a_term_of_weight_zero_is_left_out():
    classifier, (features, labels) = make(), draw()
    losses = cacseg.ContextLoss(oracle_weight=0.0, kl_weight=0.0)(classifier(features, labels), labels)
    assert losses["oracle"] == losses["distillation"] == 0.0
    losses["total"].backward()
    assert all(parameter.grad is None for parameter in classifier.oracle_projector.parameters())


@pytest.mark.parametrize("preset", ["tuned", "released", "paper"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_all_ignored_gives_zero_loss_and_zero_gradients(preset, dtype):
    classifier, (features, labels) = make(dtype, preset=preset), draw(dtype=dtype)
    labels = torch.full_like(labels, 255)
    losses = cacseg.ContextLoss(preset, label_smoothing=0.1)(classifier(features, labels), labels)
    losses["total"].backward()
    assert all(value == 0.0 for value in losses.values())
    for gradient in (features.grad, *(parameter.grad for parameter in classifier.parameters())):
        assert (gradient == 0).all()


def test_an_ignored_image_changes_no_labelled_mean():
    """Under the paper's preset, an ignored image halves the image average of the distillation and nothing else."""
    classifier, (features, labels) = make(preset="paper"), draw()
    labels[1] = 255
    loss = cacseg.ContextLoss("paper")
    both = loss(classifier(features, labels), labels)
    alone = loss(classifier(features[:1], labels[:1]), labels[:1])
    for name in ("plain", "context", "oracle"):
        torch.testing.assert_close(both[name], alone[name])
    torch.testing.assert_close(both["distillation"], alone["distillation"] / 2)


@pytest.mark.parametrize("ignore_index", [0, -1, -100, 254])
def test_the_ignore_index_is_free(ignore_index):
    classifier = make(n=6, ignore_index=ignore_index)
    features, labels = draw()
    labels = torch.where(labels == 255, ignore_index, labels + 1)
    loss = cacseg.ContextLoss(ignore_index=ignore_index)
    losses = loss(classifier(features, labels), labels)
    usual = make(n=6)
    usual_labels = torch.where(labels == ignore_index, 255, labels)
    truth = cacseg.ContextLoss()(usual(features, usual_labels), usual_labels)
    for name, value in truth.items():
        torch.testing.assert_close(losses[name], value)


def test_class_weights_and_label_smoothing_enter_the_cross_entropies_alone():
    classifier, (features, labels) = make(preset="paper"), draw()
    outputs = classifier(features, labels)
    weights = [0.1, 2.0, 1.0, 0.5, 3.0]
    losses = cacseg.ContextLoss("paper", class_weights=weights, label_smoothing=0.2).double()(outputs, labels)
    for name in ("plain", "context", "oracle"):
        scores = F.interpolate(getattr(outputs, name), size=labels.shape[1:], mode="bilinear")
        truth = F.cross_entropy(scores, labels, torch.tensor(weights).double(), ignore_index=255, label_smoothing=0.2)
        torch.testing.assert_close(losses[name], truth)
    plain = cacseg.ContextLoss("paper")(outputs, labels)
    torch.testing.assert_close(losses["distillation"], plain["distillation"])


def test_class_weights_do_not_enter_the_state_dict():
    """A checkpoint of a run with class weights loads into one without."""
    assert cacseg.ContextLoss(class_weights=[1.0, 2.0]).state_dict() == {}


@pytest.mark.parametrize("preset", ["tuned", "released", "paper"])
def test_packed_batches(preset):
    classifier, (features, labels) = make(preset=preset), draw()
    labels = labels[:, ::4, ::4].contiguous()
    loss = cacseg.ContextLoss(preset)
    dense = loss(classifier(features, labels), labels)
    rows = features.flatten(2).transpose(1, 2).flatten(0, 1)
    packed = loss(classifier(rows, labels.flatten(), offsets=torch.tensor([0, 24, 48])), labels.flatten())
    for name, value in dense.items():
        torch.testing.assert_close(packed[name], value)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (dict(preset="none"), "preset must be one of 'tuned', 'released', 'paper'; got 'none'"),
        (dict(kl_weight=-1.0), "weight of the distillation term must be finite and not negative; got -1.0"),
        (dict(overlap_weight=-1.0), "overlap_weight must be finite and not negative; got -1.0"),
        (dict(distillation="kl"), "distillation must be one of 'classwise_entropy'.*got 'kl'"),
        (dict(entropy_source="p"), "entropy_source must be one of 'oracle', 'context', 'plain'; got 'p'"),
        (dict(distillation_scope="pixel"), "distillation_scope must be one of"),
        (dict(soft_target_weight=1.5), r"soft_target_weight must be in \[0, 1\]; got 1.5"),
        (dict(label_smoothing=-0.1), r"label_smoothing must be in \[0, 1\]; got -0.1"),
        (dict(class_weights=[1.0, float("nan")]), "class_weights must be finite and not negative"),
        (dict(class_weights=[[1.0]]), r"one number for each class; got shape \(1, 1\)"),
    ],
)
def test_wrong_arguments_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        cacseg.ContextLoss(**arguments)


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        *(
            (name, value, f"^{name} must be True or False; got {value!r}")
            for name in ("align_corners", "context_align_corners")
            for value in ("maybe", 1)
        ),
        *(
            (name, value, rf"^{name} must be a number in \[0, 1\]; got {value!r}")
            for name in ("soft_target_weight", "label_smoothing")
            for value in ("abc", True)
        ),
        ("kl_weight", True, "the weight of the distillation term must be a number; got True"),
        ("overlap_weight", "3", "overlap_weight must be a number; got '3'"),
        ("ignore_index", 0.5, "ignore_index must be an integer; got 0.5"),
    ],
)
def test_arguments_of_a_wrong_type_are_refused(name, value, message):
    with pytest.raises(TypeError, match=message):
        cacseg.ContextLoss(**{name: value})


@pytest.mark.parametrize("name", ["soft_target_weight", "label_smoothing"])
@pytest.mark.parametrize("value", [np.float32(0.25), torch.tensor(0.25)])
def test_scalars_of_numpy_and_torch_are_numbers(name, value):
    features, labels = draw()
    outputs = make()(features, labels)
    found, expected = (cacseg.ContextLoss(**{name: one})(outputs, labels) for one in (value, 0.25))
    torch.testing.assert_close(found, expected)


def test_wrong_input_is_refused():
    classifier, (features, labels) = make(), draw()
    outputs = classifier(features, labels)
    loss = cacseg.ContextLoss()
    with pytest.raises(TypeError, match=r"must be ContextLogits; got Tensor.*classifier\(features, labels\)"):
        loss(classifier(features), labels)
    with pytest.raises(ValueError, match="same batch size; got 1 label maps"):
        loss(outputs, labels[:1])
    with pytest.raises(ValueError, match=r"one number for each of the 5 classes; got shape \(3,\)"):
        cacseg.ContextLoss(class_weights=[1.0, 1.0, 1.0])(outputs, labels)
    with pytest.raises(ValueError, match=r"oracle term has weight 1.0, but the classifier has no oracle"):
        loss(make(oracle_design="none")(features, labels), labels)
    with pytest.raises(ValueError, match=r"the classifier ignores 255, the loss 0. Give both the same ignore_index"):
        cacseg.ContextLoss(ignore_index=0)(outputs, labels)
    wrong = labels.clone()
    wrong[0, 0, 0] = 99
    with pytest.raises(ValueError, match=r"in \[0, 5\) or the ignore index 255; got the values 99 in 1 of 768"):
        loss(outputs, wrong)


@pytest.mark.parametrize(
    ("preset", "sampling", "aligned", "symmetric"),
    [
        ("tuned", None, None, True),
        ("tuned", "aligned", True, True),
        ("tuned", "nearest", True, False),
        ("tuned", "nearest", None, False),
        ("released", None, None, False),
        ("paper", None, None, False),
    ],
)
def test_left_and_right_are_alike_where_a_feature_has_one_place(preset, sampling, aligned, symmetric):
    """A feature at the corner of its cell in one term and in the middle in another knows left from right."""
    generator = torch.Generator().manual_seed(0)
    features = torch.randn(2, 8, 4, 6, generator=generator).double()
    cells = torch.randint(0, 5, (2, 4, 6 * 3), generator=generator)  # columns of 2, 4 and 2 pixels, in cells of 8
    labels = cells.repeat_interleave(torch.tensor([2, 4, 2] * 6), dim=2).repeat_interleave(8, dim=1)
    classifier = make(preset=preset, label_sampling=sampling)
    criterion = cacseg.ContextLoss(preset, align_corners=aligned, context_align_corners=aligned)
    torch.nn.init.normal_(classifier.context_projector[2].weight)
    there, mirrored = (
        criterion(classifier(seen, true), true)["total"]
        for seen, true in ((features, labels), (features.flip(3), labels.flip(2)))
    )
    assert torch.isclose(there, mirrored, rtol=1e-9, atol=0) == symmetric


def test_overlap_is_a_term_where_it_has_a_weight():
    classifier, (features, labels) = make(), draw()
    outputs = classifier(features, labels)
    truth = cacseg.ContextLoss()(outputs, labels)
    assert list(truth) == [*TERMS, "total"]
    losses = cacseg.ContextLoss(overlap_weight=2.0)(outputs, labels)
    assert list(losses) == [*DEFAULT_TERMS, "total"]
    overlap = functional.overlap_loss(outputs.context, outputs.labels, ignore_index=-1)
    assert 0.0 < overlap < 1.0
    torch.testing.assert_close(losses["overlap"], overlap)
    torch.testing.assert_close(losses["total"], truth["total"] + 2.0 * overlap)
    alone = dict(oracle_weight=0.0, kl_weight=0.0, overlap_weight=2.0)  # it needs no oracle
    without = make(oracle_design="none")(features, labels)
    expected = functional.overlap_loss(without.context, without.labels, ignore_index=-1)
    torch.testing.assert_close(cacseg.ContextLoss(**alone)(without, labels)["overlap"], expected)
    rows, row_labels = features.flatten(2).transpose(1, 2).flatten(0, 1), labels[:, ::4, ::4].flatten()
    packed = make()(rows, row_labels, offsets=torch.tensor([0, 24, 48]))
    expected = functional.overlap_loss(packed.context, row_labels)
    torch.testing.assert_close(cacseg.ContextLoss(overlap_weight=1.0)(packed, row_labels)["overlap"], expected)


@pytest.mark.parametrize("drops", [False, True])
def test_the_default_without_an_oracle(drops):
    features, labels = draw()
    classifier = make(preset="tuned").drop_oracle() if drops else make(preset="tuned", oracle_design="none")
    outputs = wake(classifier)(features, labels)
    losses = cacseg.ContextLoss(oracle_weight=0.0, kl_weight=0.0)(outputs, labels)
    assert list(losses) == [*DEFAULT_TERMS, "total"]
    assert losses["oracle"] == losses["distillation"] == 0.0
    torch.testing.assert_close(losses["total"], losses["plain"] + losses["context"] + 3.0 * losses["overlap"])
    losses["total"].backward()
    assert all(parameter.grad.abs().sum() > 0 for parameter in classifier.parameters())


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("size", [(7,), (4, 6), (2, 3, 4)])
def test_the_default_on_maps_of_any_dimension(size, dtype):
    """In half precision by autocast; losses are then of float32."""
    generator, halves = torch.Generator().manual_seed(0), dtype != torch.float64
    features = torch.randn(2, 8, *size, generator=generator).to(torch.float32 if halves else dtype).requires_grad_()
    labels = torch.randint(0, 5, (2, *(4 * one for one in size)), generator=generator)
    labels[:, :1] = 255
    classifier = wake(make(features.dtype, preset="tuned"))
    with torch.autocast("cpu", dtype=dtype if halves else torch.bfloat16, enabled=halves):
        outputs = classifier(features, labels)
        losses = cacseg.ContextLoss()(outputs, labels)
    assert list(losses) == [*DEFAULT_TERMS, "total"]
    assert outputs.context.dtype == dtype
    truth = functional.overlap_loss(outputs.context.double(), outputs.labels, ignore_index=-1)
    torch.testing.assert_close(losses["overlap"], truth.to(losses["overlap"].dtype))
    assert losses["overlap"].dtype == features.dtype
    terms = sum(losses[name] for name in TERMS)
    torch.testing.assert_close(losses["total"], terms + 3.0 * losses["overlap"])
    losses["total"].backward()
    assert all(one.grad.isfinite().all() and one.grad.abs().sum() > 0 for one in (features, *classifier.parameters()))


OTHER_WAYS = {
    "compiled": lambda step: torch.compile(step, backend="aot_eager", fullgraph=True),
    "checkpoint": lambda step: lambda seen: checkpoint(step, seen, use_reentrant=False),
    "reentrant checkpoint": lambda step: lambda seen: checkpoint(step, seen, use_reentrant=True),
}
