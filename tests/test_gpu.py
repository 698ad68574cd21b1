"""What only a CUDA device can show. Run with `make gpu`."""

import copy
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import nn

import cacseg
from cacseg.engine.graph import Replayed
from projectors import wake

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
    # torch's own inductor, once a process
    pytest.mark.filterwarnings("ignore::UserWarning:torch"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]
D, N = 64, 19


def draw(b=2, size=(16, 24), ratio=4, dtype=torch.float32, seed=0):
    generator = torch.Generator().manual_seed(seed)
    features = torch.randn(b, D, *size, generator=generator).to(dtype)
    labels = torch.randint(0, N, (b, size[0] * ratio, size[1] * ratio), generator=generator)
    labels[:, :5] = 255
    return features, labels


def make(preset="released"):
    torch.manual_seed(0)
    return wake(cacseg.ContextAwareClassifier(D, N, preset=preset))


def step(classifier, loss, features, labels):
    features = features.detach().requires_grad_()
    classifier.zero_grad()
    losses = loss(classifier(features, labels), labels)
    losses["total"].backward()
    return losses, [features.grad, *(parameter.grad.clone() for parameter in classifier.parameters())]


@pytest.mark.parametrize("preset", ["tuned", "released", "paper"])
@pytest.mark.parametrize("precision", ["highest", "high"])
def test_values_and_gradients_equal_those_of_the_cpu(preset, precision):
    """In float32 whatever the user allows for the model's own products."""
    classifier, loss, (features, labels) = make(preset), cacseg.ContextLoss(), draw()
    truth, true_gradients = step(copy.deepcopy(classifier).double(), loss, features.double(), labels)
    torch.set_float32_matmul_precision(precision)
    try:
        losses, gradients = step(classifier.cuda(), loss, features.cuda(), labels.cuda())
        assert torch.get_float32_matmul_precision() == precision
    finally:
        torch.set_float32_matmul_precision("highest")
    for name, value in truth.items():
        assert losses[name].item() == pytest.approx(value.item(), rel=2e-5)
    for ours, theirs in zip(gradients, true_gradients, strict=True):
        assert (ours.cpu().double() - theirs).norm() <= 1e-4 * theirs.norm()


@pytest.mark.parametrize("preset", ["tuned", "released", "paper"])
def test_nothing_synchronises_with_the_host(preset):
    classifier, loss = make(preset).cuda(), cacseg.ContextLoss()
    features, labels = (tensor.cuda() for tensor in draw())
    rows = features.flatten(2).transpose(1, 2).flatten(0, 1).contiguous()
    row_labels, offsets = labels[:, ::4, ::4].flatten(), torch.tensor([0, 100, 768]).cuda()
    step(classifier, loss, features, labels)  # where labels of this size are read is worked out once
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        _, _ = step(classifier, loss, features, labels)
        classifier(features)
        loss(classifier(rows, row_labels, offsets), row_labels)["total"].backward()
    finally:
        torch.cuda.set_sync_debug_mode("default")


def test_a_recorded_step_computes_what_an_eager_one_does():
    features, labels = (tensor.cuda() for tensor in draw())
    classifier, loss = make("tuned").cuda(), cacseg.ContextLoss()

    def work():
        losses, gradients = step(classifier, loss, features, labels)
        return torch.stack([losses["total"].detach(), gradients[0].norm()])

    expected, recorded = work(), Replayed(work, features.device)
    for _ in range(5):
        torch.testing.assert_close(recorded(), expected, rtol=1e-6, atol=0.0)


def test_labels_out_of_range_count_as_ignored_and_harm_nothing():
    classifier, loss, (features, labels) = make().cuda(), cacseg.ContextLoss(), draw()
    wrong = labels.clone()
    wrong[:, 20:30] = torch.tensor([N, 254, -1, 2**40, -(2**40)])[torch.randint(0, 5, wrong[:, 20:30].shape)]
    ignored = torch.where((wrong < 0) | (wrong >= N), 255, wrong)
    truth, true_gradients = step(classifier, loss, features.cuda(), ignored.cuda())
    losses, gradients = step(classifier, loss, features.cuda(), wrong.cuda())
    torch.cuda.synchronize()
    for name, value in truth.items():
        torch.testing.assert_close(losses[name], value)
    torch.testing.assert_close(gradients, true_gradients)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("scale", [0.0, 1.0, 1e3])
def test_no_nan_under_autocast(dtype, scale):
    classifier, loss, (features, labels) = make().cuda(), cacseg.ContextLoss(), draw()
    features = (features * scale).to("cuda", dtype).requires_grad_()
    with torch.autocast("cuda", dtype=dtype):
        outputs = classifier(features, labels.cuda())
        losses = loss(outputs, labels.cuda())
    losses["total"].backward()
    assert outputs.context.dtype == dtype
    assert all(value.isfinite() for value in losses.values())
    assert features.grad.isfinite().all()
    assert all(parameter.grad.isfinite().all() for parameter in classifier.parameters())


def test_the_cross_entropy_is_deterministic():
    features, labels = draw(b=4, size=(64, 64))
    logits = features[:, :N].cuda()
    gradients = []
    for _ in range(5):
        leaf = logits.clone().requires_grad_()
        cacseg.upsampled_cross_entropy(leaf, labels.cuda()).backward()
        gradients.append(leaf.grad)
    assert all(torch.equal(gradient, gradients[0]) for gradient in gradients)


@pytest.mark.parametrize("preset", ["tuned", "released", "paper"])
def test_training_compiles_without_a_graph_break(preset):
    classifier, loss = make(preset).cuda(), cacseg.ContextLoss()
    features, labels = (tensor.cuda() for tensor in draw())
    truth, true_gradients = step(classifier, loss, features, labels)
    compiled = torch.compile(lambda f, y: loss(classifier(f, y), y), fullgraph=True)
    leaf = features.clone().requires_grad_()
    classifier.zero_grad()
    losses = compiled(leaf, labels)
    losses["total"].backward()
    torch.testing.assert_close(losses["total"], truth["total"], rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(leaf.grad, true_gradients[0], rtol=1e-3, atol=1e-6)


def test_a_map_of_more_than_two_to_the_31_scores():
    """b * n * H * W beyond what 32 bits can count: the loss of the whole is the mean of its parts."""
    torch.manual_seed(0)
    logits = torch.randn(2, 150, 64, 64, device="cuda", requires_grad=True)
    labels = torch.randint(0, 150, (2, 2752, 2752), device="cuda")
    assert logits.shape[0] * 150 * labels[0].numel() > 2**31
    whole = cacseg.upsampled_cross_entropy(logits, labels)
    whole.backward()
    parts = [cacseg.upsampled_cross_entropy(logits[i : i + 1].detach(), labels[i : i + 1]) for i in range(2)]
    torch.testing.assert_close(whole, torch.stack(parts).mean())
    assert logits.grad.isfinite().all()


@pytest.mark.parametrize("kernel", [1, 3])
def test_a_converted_head_computes_what_it_computes_on_the_cpu(kernel):
    """3x3: over patches that are never made."""
    torch.manual_seed(0)
    head = nn.Conv2d(16, N, kernel, padding=kernel // 2)
    model = wake(cacseg.convert(nn.Sequential(nn.Conv2d(8, 16, 3, padding=1), nn.ReLU(), head), seam="2"))
    images, labels = torch.randn(4, 8, 24, 32), torch.randint(0, N, (4, 24, 32))
    labels[:, :4] = 255

    def terms_and_gradients(model, images, labels):
        model.zero_grad()
        losses = model.loss(images, labels)
        losses["total"].backward()
        return losses, [value.grad for value in model.parameters()]

    truth, true_gradients = terms_and_gradients(copy.deepcopy(model).double(), images.double(), labels)
    model, images, labels = model.cuda(), images.cuda(), labels.cuda()
    with torch.backends.cudnn.flags(allow_tf32=False):
        losses, gradients = terms_and_gradients(model, images, labels)
        serial = [model.loss(one[None], label[None])["total"].item() for one, label in zip(images, labels, strict=True)]
        with ThreadPoolExecutor(4) as threads:
            at_once = threads.map(lambda i: model.loss(images[i : i + 1], labels[i : i + 1])["total"].item(), range(4))
            assert list(at_once) == pytest.approx(serial, rel=1e-5)
    for name, value in truth.items():
        assert losses[name].item() == pytest.approx(value.item(), rel=5e-5)
    for ours, theirs in zip(gradients, true_gradients, strict=True):
        assert (ours.cpu().double() - theirs).norm() <= 2e-4 * theirs.norm()
    with torch.autocast("cuda", dtype=torch.bfloat16):
        low, gradients = terms_and_gradients(model, images, labels)
    assert low["total"].item() == pytest.approx(truth["total"].item(), rel=0.05)
    assert all(gradient.isfinite().all() for gradient in gradients)
