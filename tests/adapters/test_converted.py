"""A converted model survives what models go through: compile, export, processes, precision, checkpoints, pickles."""

import copy
import dataclasses
from functools import partial

import pytest
import torch
from torch import multiprocessing, nn
from torch.export import Dim, export
from torch.utils.checkpoint import checkpoint
from transformers.modeling_outputs import SemanticSegmenterOutput

import cacseg
from adapters_worker import train_two_steps
from architectures import SMALL, TERMS, Tiny, build, draw, scores_of, tiny
from cacseg.adapters.calls import current_call


@pytest.mark.parametrize(
    ("kernel", "backend"),
    [(1, "aot_eager"), *(pytest.param(3, one, marks=pytest.mark.slow) for one in ("aot_eager", "inductor"))],
)
def test_training_and_inference_compile_whole(kernel, backend):
    model, (images, labels) = tiny(kernel), draw()
    compiled = torch.compile(model, fullgraph=True, backend=backend)
    results = []
    for one in (model, compiled):
        model.load_state_dict(copy.deepcopy(tiny(kernel).state_dict()))
        model.zero_grad()
        losses = one(images, labels)
        losses["total"].backward()
        results.append((losses, [parameter.grad.clone() for parameter in model.parameters()]))
    torch.testing.assert_close(results[1], results[0], rtol=1e-4, atol=1e-5)
    model.eval()
    with torch.no_grad():
        torch.testing.assert_close(compiled(images), model(images), rtol=1e-4, atol=1e-5)
        plain = torch.compile(model.plain, fullgraph=True, backend=backend)
        torch.testing.assert_close(plain(images), model.plain(images), rtol=1e-4, atol=1e-5)
    assert current_call() is None


@pytest.mark.parametrize(
    "name",
    [
        pytest.param("smp Unet", marks=pytest.mark.slow),
        pytest.param("torchvision deeplabv3_mobilenet_v3_large", marks=pytest.mark.slow),
        pytest.param("transformers Segformer", marks=pytest.mark.slow),
    ],
)
def test_models_of_the_libraries_compile(name):
    model, (images, labels) = cacseg.convert(build(name)), draw(name)
    compiled = torch.compile(model, backend="eager", fullgraph=name.startswith(("smp", "torchvision")))
    with torch.no_grad():
        torch.testing.assert_close(scores_of(compiled(images)), scores_of(model(images)), rtol=1e-4, atol=1e-4)
        given = compiled(images, labels=labels)
    total = given.loss if name.startswith("transformers") else given["total"]
    torch.testing.assert_close(total, model.loss(images, labels)["total"], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", SMALL)
def test_inference_exports(name):
    model, (images, _) = cacseg.convert(build(name)).drop_oracle(), draw(name)
    program = export(model, (images,))
    assert not any("oracle" in key for key in program.state_dict)
    other = draw(name, seed=3)[0]
    torch.testing.assert_close(scores_of(program.module()(other)), scores_of(model(other)), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("kernel", [1, 3])
def test_inference_exports_with_dynamic_shapes(kernel):
    model = tiny(kernel).eval().drop_oracle()
    dynamic = {"images": {0: Dim.DYNAMIC, 2: Dim.DYNAMIC, 3: Dim.DYNAMIC}}
    program = export(model, (torch.randn(2, 3, 32, 40),), dynamic_shapes=dynamic)
    for shape in ((1, 3, 24, 56), (3, 3, 64, 64)):
        other = torch.randn(shape)
        torch.testing.assert_close(program.module()(other), model(other), rtol=1e-4, atol=1e-5)


@pytest.mark.slow
def test_two_processes_stay_together(tmp_path):
    """DistributedDataParallel with find_unused_parameters=False: every parameter takes part in every step."""
    multiprocessing.spawn(train_two_steps, (str(tmp_path),), nprocs=2)
    first, second = (torch.load(tmp_path / f"{rank}.pt", weights_only=True) for rank in (0, 1))
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


@pytest.mark.parametrize("name", ["smp Unet", "transformers Segformer"])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision(name, dtype):
    """On the smallest images: where a processor has no such arithmetic, a convolution takes long."""
    model = cacseg.convert(build(name)).to(dtype)
    images, labels = (one[..., :32, :32] for one in draw(name))
    assert {value.dtype for value in model.parameters()} == {dtype}
    with torch.no_grad():
        scores = scores_of(model(images.to(dtype)))
        losses = model.loss(images.to(dtype), labels)
    assert scores.dtype == dtype
    assert scores.isfinite().all()
    assert all(value.dtype == torch.float32 and value.isfinite() for value in losses.values())


@pytest.mark.parametrize("kernel", [1, 3])
def test_training_in_half_precision(kernel):
    model, (images, labels) = tiny(kernel).bfloat16(), draw()
    model.loss(images.bfloat16(), labels)["total"].backward()
    assert all(parameter.grad.isfinite().all() for parameter in model.parameters())


@pytest.mark.parametrize("make", [tiny, partial(tiny, 3), lambda: cacseg.convert(build("transformers Segformer"))])
def test_autocast(make):
    model, (images, labels) = make().train(), draw()
    with torch.autocast("cpu", torch.bfloat16):
        model.loss(images, labels)["total"].backward()
    assert all(parameter.grad.isfinite().all() for parameter in model.parameters())


def test_gradient_checkpointing_of_a_transformer():
    model, (images, labels) = cacseg.convert(build("transformers Segformer")), draw()
    if not model.supports_gradient_checkpointing:
        pytest.skip("this version of transformers has none for Segformer")
    plain = model.loss(images, labels)["total"]
    model.train()
    model.gradient_checkpointing_enable()
    for module in model.modules():
        if isinstance(module, nn.Dropout | nn.Dropout2d | nn.BatchNorm2d):
            module.eval()
    total = model(pixel_values=images, labels=labels).loss
    torch.testing.assert_close(total, plain)
    total.backward()
    assert all(parameter.grad is not None for parameter in model.parameters())


def test_gradient_checkpointing_around_the_features():
    model, (images, labels) = tiny().eval(), draw()
    model.loss(images, labels)["total"].backward()
    expected = model.stem[0].weight.grad.clone()
    run, model.stem.forward = model.stem.forward, lambda x: checkpoint(run, x, use_reentrant=False)
    model.zero_grad()
    model.loss(images, labels)["total"].backward()
    torch.testing.assert_close(model.stem[0].weight.grad, expected)


def test_data_parallel_replicas_know_their_own_labels():
    """What nn.DataParallel does to a module: shallow copies, each called with its part of the batch."""
    model, (images, labels) = tiny(), draw()
    replica = model._replicate_for_data_parallel()
    assert set(replica.loss(images, labels)) == {*TERMS, "total"}


def test_a_call_within_a_call_does_not_see_the_labels():
    class Teacher(Tiny):
        def forward(self, images, teach=True):
            if teach:
                self.seen = self(images, teach=False).detach()
            return super().forward(images)

    torch.manual_seed(0)
    model, (images, labels) = cacseg.convert(Teacher(), seam="head.1").eval(), draw()
    losses = model.loss(images, labels)
    torch.testing.assert_close(model.seen, model(images, teach=False))
    torch.testing.assert_close(losses, model.loss(images, labels, teach=False))


@dataclasses.dataclass
class Answer:
    logits: torch.Tensor
    loss: torch.Tensor | None = None


class WithLabels(Tiny):
    """A forward that has labels of its own, as those of transformers."""

    made_by = staticmethod(lambda logits: logits)

    def forward(self, images, labels=None):
        assert labels is None  # the original's own loss has no part
        return self.made_by(super().forward(images))


@pytest.mark.parametrize("kind", ["dict", "tuple", "dataclass", "ModelOutput", "tensor", "list"])
def test_outputs_that_hold_a_loss(kind):
    makers = {
        "dict": lambda logits: {"logits": logits},
        "tuple": lambda logits: (logits,),
        "dataclass": Answer,
        "ModelOutput": lambda logits: SemanticSegmenterOutput(logits=logits),
        "tensor": lambda logits: logits,
        "list": lambda logits: [logits],
    }
    torch.manual_seed(0)
    original, (images, labels) = WithLabels().eval(), draw()
    original.made_by = makers[kind]
    model = cacseg.convert(original, seam="head.1")
    total = model.loss(images, labels)["total"]
    if kind == "list":
        with pytest.raises(
            TypeError, match=r"a tuple, a dict or a dataclass with a field loss; got list\. model\.loss"
        ):
            model(images, labels)
        return
    given = model(images, labels)
    assert type(given) is (dict if kind == "tensor" else type(model(images)))
    loss = {"dataclass": lambda: given.loss, "tuple": lambda: given[0], "tensor": lambda: given["total"]}
    torch.testing.assert_close(loss.get(kind, lambda: given["loss"])(), total)


def test_labels_do_not_change_the_answer():
    torch.manual_seed(0)
    original, (images, labels) = WithLabels().eval(), draw()
    original.made_by = lambda logits: (logits,)
    model = cacseg.convert(original, seam="head.1")
    torch.testing.assert_close(model(images, labels)[1], model(images)[0])


class TwoTasks(Tiny):
    """Class scores and depth from one pass."""

    def __init__(self):
        super().__init__()
        self.depth = nn.Conv2d(16, 1, 1)

    def forward(self, images):
        return {"classes": super().forward(images), "depth": self.depth(self.stem(images))}


def test_losses_and_outputs_from_one_pass():
    torch.manual_seed(0)
    model, (images, labels) = cacseg.convert(TwoTasks(), seam="head.1"), draw()
    runs = []
    model.register_forward_hook(lambda *_: runs.append(1))
    output, losses = model.loss(images, labels, return_output=True)
    assert len(runs) == 1
    (losses["total"] + output["depth"].square().mean()).backward()
    assert all(parameter.grad is not None for parameter in model.parameters())
    model.eval()
    for given in (
        model.loss(images, labels, return_output=True),
        model.loss(images=images, labels=labels, return_output=True),
        model(images, labels, return_output=True),  # as under DistributedDataParallel
    ):
        torch.testing.assert_close(given[0], model(images))
        torch.testing.assert_close(given[1], model.loss(images, labels))
    with pytest.raises(TypeError, match="return_output"):
        model(images, return_output=True)  # of the original, which knows no such argument


def test_the_output_of_a_model_with_labels_of_its_own():
    torch.manual_seed(0)
    original, (images, labels) = WithLabels().eval(), draw()
    original.made_by = lambda logits: {"logits": logits}
    model = cacseg.convert(original, seam="head.1")
    output, losses = model.loss(images, labels, return_output=True)
    assert list(output) == ["logits"]
    torch.testing.assert_close(model(images, labels)["loss"], losses["total"])


def test_a_forward_that_requires_labels_is_refused():
    class Required(Tiny):
        def forward(self, images, labels):
            return super().forward(images)

    model = Required()
    with pytest.raises(TypeError, match=r"forward of Required requires labels.*Give the argument the default None"):
        cacseg.convert(model, seam="head.1")
    assert type(model) is Required
    assert type(model.head[1]) is nn.Conv2d


def test_a_method_that_was_bound_before_restore():
    """Mixed precision of accelerate, and so the Trainer's, keeps the forward of the converted model."""
    model, (images, _) = tiny().eval(), draw()
    plain = model.plain(images)
    run = model.forward
    model.forward = lambda *inputs, **named: run(*inputs, **named)
    assert not torch.allclose(model(images), plain)
    restored = cacseg.restore(model)
    assert torch.equal(restored(images), plain)


def test_another_instance_of_a_converted_models_class():
    """As `type(model).from_pretrained(folder)` makes one."""
    model, (images, labels) = tiny(), draw()
    other = type(model)()
    for ask in (lambda: other.loss(images, labels), lambda: other.plain(images)):
        with pytest.raises(TypeError, match=r"this Tiny was built from the class of one\. Convert it too"):
            ask()
    with pytest.raises(TypeError, match=r"restore needs a model that cacseg\.convert returned; got Tiny"):
        cacseg.restore(other)
    assert cacseg.convert(other, seam="head.1").loss(images, labels)["total"].isfinite()
    assert type(cacseg.restore(other)) is Tiny
