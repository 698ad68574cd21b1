from functools import partial

import pytest
import torch

import naive
from cacseg import functional
from cacseg.functional.distillation import DISTILLATION_FORMS
from reference_vectors import CASES, load

FORMS = {
    name: (partial(functional.distillation, form=name), dict(by_class=name.startswith("classwise")))
    for name in DISTILLATION_FORMS
}
vanilla, entropy, classwise, classwise_entropy = (
    FORMS[name][0] for name in ("vanilla", "entropy", "classwise", "classwise_entropy")
)


def draw(spatial=(3, 4), n=5, seed=0):
    generator = torch.Generator().manual_seed(seed)
    context, oracle, plain = (torch.randn(2, n, *spatial, generator=generator).double() * 3 for _ in range(3))
    labels = torch.randint(0, n - 1, (2, *spatial), generator=generator)
    labels.view(2, -1)[0, :2] = 255
    return context, oracle, plain, labels


@pytest.mark.parametrize("name", FORMS)
@pytest.mark.parametrize("scope", ["image", "batch"])
@pytest.mark.parametrize("soft", [1.0, 0.5])
@pytest.mark.parametrize("spatial", [(6,), (3, 4), (2, 3, 2)])
def test_each_form_equals_a_loop(name, scope, soft, spatial):
    context, oracle, plain, labels = draw(spatial)
    function, arguments = FORMS[name]
    sources = [None, plain, context] if "entropy" in name else [None]
    for source in sources:
        given = {} if source is None else {"entropy_logits": source}
        ours = function(context, oracle, labels, scope=scope, soft_target_weight=soft, **given)
        truth = naive.distillation(
            context,
            oracle,
            labels,
            entropy_logits=(oracle if source is None else source) if "entropy" in name else None,
            pool_batch=scope == "batch",
            soft_target_weight=soft,
            **arguments,
        )
        assert ours.item() == pytest.approx(truth, abs=1e-12)


@pytest.mark.parametrize("case", CASES)
def test_the_papers_vectors(case):
    v = load("paper", case)
    context, oracle, plain, labels = v["out_p_p"], v["out_p_y"], v["in_logits"], v["labels_lowres"]
    sources = {"oracle": oracle, "estimated": context, "original": plain}
    close = dict(rtol=0, atol=1e-9)
    every = torch.zeros_like(labels)  # one class: every pixel takes part
    torch.testing.assert_close(vanilla(context, oracle, every), v["kl_vanilla_allpix"], **close)
    torch.testing.assert_close(vanilla(context, oracle, labels), v["kl_vanilla"], **close)
    torch.testing.assert_close(classwise(context, oracle, labels), v["kl_classwise_over_present"], **close)
    for name, source in sources.items():
        torch.testing.assert_close(functional.entropy(source), v[f"out_H_{name}"], **close)
        ours = entropy(context, oracle, every, entropy_logits=source)
        torch.testing.assert_close(ours, v[f"kl_entropy_{name}_allpix"], **close)
        ours = entropy(context, oracle, labels, entropy_logits=source)
        torch.testing.assert_close(ours, v[f"kl_entropy_{name}"], **close)
        ours = classwise_entropy(context, oracle, v["in_labels"], entropy_logits=source)
        torch.testing.assert_close(ours, v[f"kl_classwise_entropy_{name}_over_present"], **close)


@pytest.mark.parametrize("name", FORMS)
def test_gradients_reach_the_context_alone(name):
    context, oracle, plain, labels = draw((2, 2))
    context, oracle, plain = context.requires_grad_(), oracle.requires_grad_(), plain.requires_grad_()
    given = {"entropy_logits": plain} if "entropy" in name else {}
    torch.autograd.gradcheck(lambda c: FORMS[name][0](c, oracle, labels, soft_target_weight=0.5, **given), context)
    FORMS[name][0](context, oracle, labels, **given).backward()
    assert context.grad.abs().sum() > 0
    assert oracle.grad is None
    assert plain.grad is None


def test_with_one_class_eq_11_is_eq_10():
    context, oracle, _, labels = draw()
    labels = torch.where(labels == 255, 255, 3)
    torch.testing.assert_close(
        classwise_entropy(context, oracle, labels),
        entropy(context, oracle, labels),
    )


def test_with_constant_entropy_eq_10_is_eq_7_and_eq_11_is_classwise():
    context, oracle, _, labels = draw()
    flat = torch.zeros_like(oracle)
    torch.testing.assert_close(
        entropy(context, oracle, labels, entropy_logits=flat),
        vanilla(context, oracle, labels),
    )
    torch.testing.assert_close(
        classwise_entropy(context, oracle, labels, entropy_logits=flat),
        classwise(context, oracle, labels),
    )


def test_vanilla_is_torchs_cross_entropy_with_soft_targets():
    context, oracle, _, labels = draw()
    truth = torch.nn.functional.cross_entropy(context, oracle.softmax(1))
    torch.testing.assert_close(vanilla(context, oracle, torch.zeros_like(labels), scope="batch"), truth)


@pytest.mark.parametrize("name", FORMS)
def test_permuting_classes_changes_nothing(name):
    context, oracle, _, labels = draw()
    order = torch.randperm(5, generator=torch.Generator().manual_seed(1))
    renamed = torch.where(labels == 255, 255, order.argsort()[labels.clamp_max(4)])
    function = FORMS[name][0]
    torch.testing.assert_close(
        function(context[:, order], oracle[:, order], renamed, soft_target_weight=0.5),
        function(context, oracle, labels, soft_target_weight=0.5),
    )


@pytest.mark.parametrize("name", FORMS)
@pytest.mark.parametrize("scope", ["image", "batch"])
def test_an_image_without_labels_counts_zero(name, scope):
    context, oracle, _, labels = draw()
    function = FORMS[name][0]
    labels[1] = 255
    alone = function(context[:1], oracle[:1], labels[:1], scope=scope)
    both = function(context, oracle, labels, scope=scope)
    torch.testing.assert_close(both, alone / 2 if scope == "image" else alone)
    context.requires_grad_()
    nothing = function(context, oracle, torch.full_like(labels, 255), scope=scope)
    nothing.backward()
    assert nothing.item() == 0.0
    assert (context.grad == 0).all()


@pytest.mark.parametrize("name", FORMS)
def test_a_fully_confident_oracle_gives_no_nan(name):
    context, _, _, labels = draw()
    context = context.float().requires_grad_()
    oracle = 1e5 * functional.class_masks(labels, 5)
    loss = FORMS[name][0](context, oracle, labels)
    loss.backward()
    assert loss.isfinite()
    assert context.grad.isfinite().all()


def test_uniform_and_certain_entropy():
    uniform = torch.zeros(1, 8, 2).double()
    torch.testing.assert_close(functional.entropy(uniform), torch.full((1, 2), 8.0).double().log())
    certain = torch.tensor([1e5, 0.0, 0.0])[None, :, None]
    assert functional.entropy(certain).item() == 0.0


@pytest.mark.parametrize("name", FORMS)
def test_more_than_255_classes(name):
    """Class 255 is a class when the ignore index is another."""
    context, oracle = torch.randn(1, 300, 4).double(), torch.randn(1, 300, 4).double()
    labels = torch.tensor([[255, 299, 0, -1]])
    given = dict(ignore_index=-1, soft_target_weight=0.5)
    weight = oracle if "entropy" in name else None
    truth = naive.distillation(context, oracle, labels, entropy_logits=weight, soft_target_weight=0.5, **FORMS[name][1])
    assert FORMS[name][0](context, oracle, labels, **given).item() == pytest.approx(truth, abs=1e-12)


def test_mixing_labels_in_needs_labels():
    context, oracle, _, _ = draw()
    with pytest.raises(ValueError, match=r"soft_target_weight = 0.5 mixes the labels in: pass them"):
        functional.soft_cross_entropy(context, oracle, None, 0.5)


def test_a_form_that_there_is_not_is_refused():
    context, oracle, _, labels = draw()
    with pytest.raises(ValueError, match=r"form must be one of 'classwise_entropy', .*; got 'kl'"):
        functional.distillation(context, oracle, labels, "kl")


def test_logits_of_different_shapes_are_refused():
    context, oracle, plain, labels = draw()
    message = r"must have one shape; got \(2, 5, 3, 4\) and \(2, 1, 3, 4\)"
    with pytest.raises(ValueError, match=message):
        classwise_entropy(context, oracle[:, :1], labels)
    with pytest.raises(ValueError, match=message):
        entropy(context, oracle, labels, entropy_logits=plain[:, :1])
