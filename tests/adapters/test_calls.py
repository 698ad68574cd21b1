"""Labels are known for one call, in one thread, and again when a checkpoint computes that call a second time."""

import dataclasses
import gc
import threading
import weakref
from functools import partial

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

import cacseg
import mmseg_standin
from architectures import N, build, draw
from cacseg.adapters import calls


class Checkpointed(nn.Module):
    """The classifier, and what comes before and after it, inside a part that can be checkpointed."""

    def __init__(self, kernel=1):
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 8, 3, stride=2, padding=1), nn.ReLU())
        self.head = nn.Sequential(nn.Conv2d(8, 8, 1), nn.ReLU(), nn.Conv2d(8, N, kernel, padding=kernel // 2))
        self.use_reentrant = None  # no checkpoint

    def decode(self, features):
        return F.interpolate(self.head(features).sin(), scale_factor=2.0)

    def forward(self, images):
        features = self.stem(images)
        if self.use_reentrant is None:
            return self.decode(features)
        return checkpoint(self.decode, features, use_reentrant=self.use_reentrant)


def make(kernel=1, **arguments):
    torch.manual_seed(0)
    return cacseg.convert(Checkpointed(kernel), seam="head.2", **arguments)


def gradients(model, loss):
    model.zero_grad(set_to_none=True)
    loss().backward()
    return [parameter.grad.clone() for parameter in model.parameters() if parameter.grad is not None]


def objectives(model):
    """Sums of calls that one backward pass goes through, with labels and without."""
    (images, labels), (others, more) = draw(), draw(seed=1)
    return {
        "one": lambda: model.loss(images, labels)["total"],
        "two": lambda: model.loss(images, labels)["total"] + 2 * model.loss(others, more)["total"],
        "with and without labels": lambda: (
            model(others).square().mean() + model.loss(images, labels)["total"] + model(images).square().mean()
        ),
        "plain": lambda: model.loss(images, labels)["total"] + model.plain(others).square().mean(),
    }


@pytest.mark.parametrize("kernel", [1, 3])
@pytest.mark.parametrize("name", ["one", "two", "with and without labels", "plain"])
def test_a_checkpoint_around_the_classifier(kernel, name):
    model = make(kernel)
    loss = objectives(model)[name]
    expected = gradients(model, loss)
    model.use_reentrant = False
    ran = []
    model.head[0].register_forward_hook(lambda *_: ran.append(torch._C._current_graph_task_id() >= 0))
    assert all(torch.equal(a, b) for a, b in zip(gradients(model, loss), expected, strict=True))
    assert sum(ran) == len(ran) / 2 > 0  # half of the runs were in the backward pass
    assert calls.current_call() is None


def test_a_checkpoint_around_the_whole_model():
    model, (images, labels) = make(), draw()
    expected = gradients(model, lambda: model.loss(images, labels)["total"])
    found = gradients(model, lambda: checkpoint(model, images, labels, use_reentrant=False)["total"])
    assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))


def test_checkpoints_within_checkpoints():
    class Nested(Checkpointed):
        def decode(self, features):
            inner = self.head if self.use_reentrant is None else partial(checkpoint, self.head, use_reentrant=False)
            return F.interpolate(inner(features).sin(), scale_factor=2.0)

    torch.manual_seed(0)
    model = cacseg.convert(Nested(), seam="head.2")
    loss = objectives(model)["two"]
    expected = gradients(model, loss)
    model.use_reentrant = False
    assert all(torch.equal(a, b) for a, b in zip(gradients(model, loss), expected, strict=True))


def test_a_loss_on_the_output_of_a_call_with_labels():
    """transformers: the backward pass comes from the logits, not from the losses."""
    original, (images, labels) = build("transformers Segformer"), draw()
    run = original.decode_head.forward
    model = cacseg.convert(original)
    expected = gradients_of(model, model(images, labels=labels).logits.square().mean())
    model.decode_head.forward = lambda *states: checkpoint(run, *states, use_reentrant=False)
    found = gradients_of(model, model(images, labels=labels).logits.square().mean())
    assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))


def gradients_of(model, value):
    return [one for one in torch.autograd.grad(value, list(model.parameters()), allow_unused=True) if one is not None]


def test_auxiliary_heads_inside_a_checkpoint():
    class Segmentor(mmseg_standin.EncoderDecoder):
        is_checkpointed = False

        def _forward(self, inputs, data_samples=None):
            run = super()._forward
            return checkpoint(run, inputs, use_reentrant=False) if self.is_checkpointed else run(inputs)

    torch.manual_seed(0)
    heads = mmseg_standin.FCNHead(16, 1), mmseg_standin.FCNHead(8, 0)
    model, (images, labels) = cacseg.convert(Segmentor(*heads)).eval(), draw()
    expected = gradients(model, lambda: model.loss(images, labels)["total"])
    model.is_checkpointed = True
    found = gradients(model, lambda: model.loss(images, labels)["total"])
    assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))


def test_a_reentrant_checkpoint_without_labels():
    model = make()
    images, _ = draw()
    loss = lambda: model(images).square().mean() + model.plain(images).square().mean()  # noqa: E731
    expected = gradients(model, loss)
    model.use_reentrant = True
    torch.testing.assert_close(gradients(model, loss), expected)  # summed in another order


def test_a_reentrant_checkpoint_around_the_classifier_is_refused():
    """It would cut the features from the loss without a word."""
    model, (images, labels) = make(), draw()
    model.use_reentrant = True
    with pytest.raises(RuntimeError, match=r"a reentrant checkpoint, whose second run would not reach the losses\. "):
        model.loss(images, labels)
    assert calls.current_call() is None


def test_a_failed_backward_pass_leaves_nothing_behind():
    model, (images, labels) = make(), draw()
    model.use_reentrant = False
    clean = gradients(model, lambda: model(images).square().mean())

    def fail(gradient):
        raise ZeroDivisionError

    losses = model.loss(images, labels)
    model.head[2].weight.register_hook(fail)
    with pytest.raises(ZeroDivisionError):
        losses["total"].backward()
    model.head[2].weight._backward_hooks.clear()
    found = gradients(model, lambda: model(images).square().mean())
    assert all(torch.equal(a, b) for a, b in zip(found, clean, strict=True))


@pytest.mark.parametrize("use_reentrant", [None, False])
def test_labels_are_freed_with_the_graph(use_reentrant):
    model, (images, labels) = make(), draw()
    model.use_reentrant = use_reentrant
    before = len(calls._in_backward)
    gc.disable()  # no cycle keeps them
    try:
        reference = weakref.ref(labels)
        model.loss(images, labels)["total"].backward()
        del labels
        assert reference() is None
    finally:
        gc.enable()
    assert len(calls._in_backward) == before


def test_threads_do_not_see_each_other():
    """Each with its own labels, or none, through one model at the same time."""
    model = make().eval()
    batches = [draw(seed=seed) for seed in range(3)]
    truth = [model.loss(*batch)["total"] for batch in batches]
    clean = model(batches[0][0])
    together, failures = threading.Barrier(4), []

    def meet(*_):  # when every call is in the middle of its run
        together.wait(timeout=60)

    model.stem.register_forward_hook(meet)

    def check(work, expected):
        with torch.no_grad():
            for _ in range(3):
                if not torch.equal(work(), expected):
                    failures.append(expected)

    works = [
        (lambda batch=batch: model.loss(*batch)["total"], total) for batch, total in zip(batches, truth, strict=True)
    ]
    threads = [threading.Thread(target=check, args=one) for one in [*works, (lambda: model(batches[0][0]), clean)]]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert together.n_waiting == 0
    assert not together.broken


def test_a_converted_model_inside_another_keeps_to_itself():
    class Student(Checkpointed):
        def forward(self, images):
            self.taught = self.teacher[0](images).detach()
            return super().forward(images) + self.teacher[0].head(self.teacher[0].stem(images)).mean() * 0

    torch.manual_seed(0)
    student, (images, labels) = cacseg.convert(Student(), seam="head.2"), draw()
    teacher = make().eval()
    student.teacher = (teacher,)
    losses = student.loss(images, labels)
    torch.testing.assert_close(student.taught, teacher(images))
    torch.testing.assert_close(losses, make().loss(images, labels))


def test_a_checkpoint_in_a_model_that_answers_with_a_dataclass():
    @dataclasses.dataclass
    class Answer:
        logits: torch.Tensor

    class Answers(Checkpointed):
        def forward(self, images):
            return Answer(super().forward(images))

    torch.manual_seed(0)
    model, (images, _) = cacseg.convert(Answers(), seam="head.2"), draw()
    expected = gradients(model, lambda: model.plain(images).logits.square().mean())
    model.use_reentrant = False
    found = gradients(model, lambda: model.plain(images).logits.square().mean())
    assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))


def test_an_auxiliary_classifier_after_the_seam_inside_a_checkpoint():
    """The backward pass reaches it first."""

    class Later(Checkpointed):
        def __init__(self):
            super().__init__()
            self.second = nn.Conv2d(8, N, 1)

        def decode(self, features):
            return super().decode(features), self.second(features.sin())

        def forward(self, images):
            return super().forward(images)[0]

    torch.manual_seed(0)
    model, (images, labels) = cacseg.convert(Later(), seam="head.2", auxiliaries=["second"]), draw()
    expected = gradients(model, lambda: model.loss(images, labels)["total"])
    model.use_reentrant = False
    found = gradients(model, lambda: model.loss(images, labels)["total"])
    assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))
