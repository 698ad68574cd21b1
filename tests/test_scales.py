import pytest
import torch
from torch.utils.checkpoint import checkpoint

import cacseg
from cacseg.scales import AnnealedScale

D, N = 8, 5


def draw(dtype=torch.float64):
    generator = torch.Generator().manual_seed(0)
    labels = torch.randint(0, N, (2, 4, 6), generator=generator)
    return torch.randn(2, D, 4, 6, generator=generator).to(dtype), labels


def make(dtype=torch.float64, **arguments):
    torch.manual_seed(0)
    return cacseg.ContextAwareClassifier(D, N, preset="released", **arguments).to(dtype)


def test_the_factor_goes_in_a_line_and_stays():
    scale = AnnealedScale(15.0, (5.0, 4))
    found = [15.0 * scale(counted=True).item() for _ in range(7)]
    assert found == pytest.approx([5.0, 7.5, 10.0, 12.5, 15.0, 15.0, 15.0])
    assert scale().item() == 1.0
    assert scale.calls_taken == 7
    falling = AnnealedScale(10.0, [30, 2])
    assert [falling(counted=True).item() for _ in range(3)] == pytest.approx([3.0, 2.0, 1.0])


def test_the_context_and_the_oracle_logits_have_the_scale_of_their_call():
    features, labels = draw()
    classifier, usual = make(annealed_scale=(5.0, 2)), make()(features, labels)
    for scale in (5.0, 10.0, 15.0, 15.0):
        found = classifier(features, labels)
        torch.testing.assert_close(found.context, usual.context * scale / 15.0, rtol=1e-6, atol=1e-6)
        torch.testing.assert_close(found.oracle, usual.oracle * scale / 15.0, rtol=1e-6, atol=1e-6)
        torch.testing.assert_close(found.plain, usual.plain)


def test_only_training_calls_with_labels_count():
    features, labels = draw()
    classifier, usual = make(annealed_scale=(5.0, 4)), make()
    classifier(features, labels)
    classifier.oracle_logits(features, labels)
    now = classifier(features)
    torch.testing.assert_close(now, usual(features) * 7.5 / 15.0, rtol=1e-6, atol=1e-6)
    classifier.eval()
    torch.testing.assert_close(classifier(features, labels).context, now)
    torch.testing.assert_close(classifier.both_logits(features)[1], now)
    assert classifier.annealed_scale.calls_taken == 1
    rows, offsets = features.flatten(2).movedim(1, 2).flatten(0, 1), torch.tensor([0, 24, 48])
    torch.testing.assert_close(classifier(rows, offsets=offsets), now.flatten(2).movedim(1, 2).flatten(0, 1))


def test_the_state_dict_knows_where_it_was():
    features, labels = draw()
    classifier = make(annealed_scale=(5.0, 4))
    added = classifier.state_dict().keys() - make().state_dict().keys()
    assert added == {"annealed_scale.calls_taken"}
    for _ in range(3):
        classifier(features, labels)
    again = make(annealed_scale=(5.0, 4))
    again.load_state_dict(classifier.state_dict())
    torch.testing.assert_close(again(features), classifier(features))
    assert again.bfloat16().annealed_scale.calls_taken.dtype == torch.int64  # bfloat16 cannot count beyond 256
    conv = torch.nn.Conv2d(D, N, 1)
    again.load_state_dict(conv.state_dict())  # which says nothing of it
    assert again.annealed_scale.calls_taken == 3


@pytest.mark.parametrize("use_reentrant", [False, True])
def test_a_checkpoint_counts_once_and_sends_back_what_it_gave(use_reentrant):
    features, labels = draw()
    found = []
    for checkpointed in (False, True):
        classifier = make(annealed_scale=(5.0, 4))
        for _ in range(3):
            seen = features.clone().requires_grad_()
            if checkpointed:
                logits = checkpoint(lambda x, run=classifier: run(x, labels).context, seen, use_reentrant=use_reentrant)
            else:
                logits = classifier(seen, labels).context
            classifier.zero_grad()
            logits.square().sum().backward()
        found.append((seen.grad, classifier.weight.grad, classifier.annealed_scale.calls_taken))
    torch.testing.assert_close(found[1], found[0])
    assert found[1][2] == 3


def test_a_compiled_step_counts_and_sends_back_what_it_gave():
    features, labels = draw()
    found = []
    for compiled in (False, True):
        classifier, criterion = make(annealed_scale=(5.0, 3)), cacseg.ContextLoss(relation_weight=1.0)

        def step(seen, classifier=classifier, criterion=criterion):
            return criterion(classifier(seen, labels), labels)["total"]

        run = torch.compile(step, backend="aot_eager", fullgraph=True) if compiled else step
        for _ in range(3):
            seen = features.clone().requires_grad_()
            run(seen).backward()
        found.append((seen.grad, classifier.annealed_scale.calls_taken))
    torch.testing.assert_close(*found)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        (dict(annealed_scale=5.0), ValueError, "must be two numbers, the scale at the start and the training calls"),
        (dict(annealed_scale=(5.0,)), ValueError, r"must be two numbers.*got \(5.0,\)"),
        (dict(annealed_scale=(5.0, 8.5)), TypeError, "calls of annealed_scale must be an integer; got 8.5"),
        (dict(annealed_scale=(5.0, 0)), ValueError, "calls of annealed_scale must be at least 1; got 0"),
        (dict(annealed_scale=("5", 8)), TypeError, "start of annealed_scale must be a number; got '5'"),
        (dict(annealed_scale=(0.0, 8)), ValueError, "start of annealed_scale must be positive and finite; got 0.0"),
        (dict(annealed_scale=(5.0, 8), learnable_scale=True), ValueError, "annealed_scale and learnable_scale both"),
        (dict(annealed_scale=(5.0, 8), context_similarity="dot"), ValueError, "needs context_similarity='cosine'"),
    ],
)
def test_wrong_arguments_are_refused(arguments, error, message):
    with pytest.raises(error, match=message):
        make(**arguments)
