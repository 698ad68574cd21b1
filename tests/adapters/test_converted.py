"""A converted model survives what models go through: compile, export, processes, precision, checkpoints, pickles."""

import copy
import io
import pickle

import pytest
import torch
from torch import multiprocessing, nn
from torch.export import Dim, export
from torch.utils.checkpoint import checkpoint

import cacseg
from adapters_worker import train_two_steps
from architectures import N, build, draw, scores_of

SMALL = ["smp Unet", "smp FPN", "torchvision deeplabv3_mobilenet_v3_large", "transformers Segformer"]


class Tiny(nn.Module):
    """A model of one's own, small enough to compile in a test."""

    def __init__(self, kernel=1, dropout=0.0):
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 16, 3, stride=2, padding=1), nn.BatchNorm2d(16), nn.ReLU())
        self.head = nn.Sequential(nn.Dropout2d(dropout), nn.Conv2d(16, N, kernel, padding=kernel // 2))

    def forward(self, images):
        return nn.functional.interpolate(self.head(self.stem(images)), size=images.shape[2:], mode="bilinear")


def tiny(kernel=1, **arguments):
    torch.manual_seed(0)
    return cacseg.convert(Tiny(kernel), seam="head.1", **arguments)


@pytest.mark.parametrize(
    ("kernel", "backend"), [(1, "aot_eager"), (3, "aot_eager"), pytest.param(3, "inductor", marks=pytest.mark.slow)]
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
    assert model.get_submodule("head.1").call is None


@pytest.mark.parametrize(
    "name",
    [
        "smp Unet",
        pytest.param("torchvision deeplabv3_mobilenet_v3_large", marks=pytest.mark.slow),
        "transformers Segformer",
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


def test_two_processes_stay_together(tmp_path):
    """DistributedDataParallel with find_unused_parameters=False: every parameter takes part in every step."""
    multiprocessing.spawn(train_two_steps, (str(tmp_path),), nprocs=2)
    first, second = (torch.load(tmp_path / f"{rank}.pt", weights_only=True) for rank in (0, 1))
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


@pytest.mark.parametrize("name", ["smp Unet", "transformers Segformer"])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision(name, dtype):
    model, (images, labels) = cacseg.convert(build(name)).to(dtype), draw(name)
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


def test_autocast():
    model, (images, labels) = cacseg.convert(build("smp Unet")).train(), draw()
    with torch.autocast("cpu", torch.bfloat16):
        model.loss(images, labels)["total"].backward()
    assert all(parameter.grad.isfinite().all() for parameter in model.parameters())


def test_gradient_checkpointing_of_a_transformer():
    model, (images, labels) = cacseg.convert(build("transformers Segformer")), draw()
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


def test_a_reentrant_checkpoint_around_the_classifier_is_refused():
    """It would cut the features from the loss without a word."""
    model, (images, labels) = tiny(), draw()
    run = model.head.forward
    model.head.forward = lambda x: checkpoint(run, x, use_reentrant=True)
    with pytest.raises(RuntimeError, match=r"inside torch\.no_grad or a reentrant checkpoint\. Checkpoint with"):
        model.loss(images, labels)
    assert model.get_submodule("head.1").call is None


def test_pickle():
    model, (images, _) = cacseg.convert(build("smp Unet")), draw()
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    for loaded in (pickle.loads(pickle.dumps(model)), torch.load(file, weights_only=False)):
        assert type(loaded) is type(model)
        assert torch.equal(loaded(images), model(images))
        assert torch.equal(cacseg.restore(loaded)(images), model.plain(images))


def test_data_parallel_replicas_know_their_own_labels():
    """What nn.DataParallel does to a module: shallow copies, each called with its part of the batch."""
    model, (images, labels) = tiny(), draw()
    replica = model._replicate_for_data_parallel()
    assert set(replica.loss(images, labels)) == {"plain", "context", "oracle", "distillation", "total"}


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


def test_a_classifier_that_runs_twice_has_no_one_loss():
    class Twice(Tiny):
        def forward(self, images):
            return super().forward(images) + super().forward(images.flip(-1)).flip(-1)

    model, (images, labels) = cacseg.convert(Twice(), seam="head.1"), draw()
    assert model(images).shape == (2, N, 64, 64)
    with pytest.raises(RuntimeError, match="it ran a second time"):
        model.loss(images, labels)


def test_a_classifier_that_does_not_run_has_no_loss():
    class Skips(Tiny):
        def forward(self, images):
            return self.stem(images)

    model, (images, labels) = cacseg.convert(Skips(), seam="head.1"), draw()
    with pytest.raises(RuntimeError, match="it did not run"):
        model.loss(images, labels)


def test_dropout_touches_the_plain_logits_alone():
    torch.manual_seed(0)
    model = cacseg.convert(Tiny(dropout=0.5), seam="head.1")
    assert model.conversion.dropout == "head.0"
    seen = []
    model.get_submodule("head.1").register_forward_pre_hook(lambda module, inputs: seen.append(inputs[0]))
    images, labels = draw()
    torch.manual_seed(1)
    plain = model.plain(images)
    assert not (seen[0].amax(dim=(2, 3)) == 0).any()  # no channel was dropped on the way
    original = cacseg.restore(model)
    torch.manual_seed(1)
    assert torch.equal(original(images), plain)
    assert isinstance(original.head[0], nn.Dropout2d)
    replaced = cacseg.convert(original, seam="head.1", dropout=0.25)
    assert replaced.head[1].plain_dropout is None
    assert replaced.head[1].dropout == 0.25
    assert replaced.loss(images, labels)["total"].isfinite()


def test_channels_are_dropped_before_patches_are_made():
    torch.manual_seed(0)
    model = cacseg.convert(Tiny(kernel=3, dropout=0.5), seam="head.1")
    seam, features = model.head[1], torch.randn(2, 16, 6, 7)
    torch.manual_seed(1)
    expected = seam.replaced_logits(features)
    torch.manual_seed(1)
    torch.testing.assert_close(seam._plain(seam.patches(features)), expected)


@pytest.mark.parametrize(
    "conv",
    [
        nn.Conv2d(4, 3, 3, padding=1),
        nn.Conv2d(4, 3, (3, 5), padding=(1, 0), stride=(2, 1), dilation=(1, 2)),
        nn.Conv2d(4, 3, 3, padding="same", dilation=2, bias=False),
        nn.Conv2d(4, 3, 1, stride=2),
        nn.Conv2d(4, 3, 2, padding="valid"),
    ],
)
def test_a_convolution_is_a_classifier_over_patches(conv):
    model = cacseg.convert(nn.Sequential(conv), seam="0")
    features = torch.randn(2, 4, 9, 11)
    patches = model[0].patches(features)
    assert patches.shape[1] == conv.weight[0].numel()
    torch.testing.assert_close(model[0].plain_logits(patches), conv(features))
    assert torch.equal(model.plain(features), conv(features))
    assert model(features).shape == conv(features).shape


@pytest.mark.parametrize(("conv", "shape"), [(nn.Conv1d(4, 3, 1), (9,)), (nn.Conv3d(4, 3, 1), (3, 4, 5))])
def test_lines_and_volumes(conv, shape):
    model = cacseg.convert(nn.Sequential(conv), seam="0")
    features, labels = torch.randn(2, 4, *shape), torch.randint(0, 3, (2, *shape))
    assert torch.equal(model.plain(features), conv(features))
    assert model.loss(features, labels)["total"].isfinite()


def test_an_optimiser_built_before_keeps_its_parameters():
    original = Tiny()
    optimiser = torch.optim.SGD(original.parameters(), lr=0.1)
    model, (images, labels) = cacseg.convert(original, seam="head.1"), draw()
    before = model.head[1].weight.clone()
    model.loss(images, labels)["total"].backward()
    optimiser.step()
    assert not torch.equal(model.head[1].weight, before)
    assert torch.equal(cacseg.restore(model).head[1].weight, original.head[1].weight)


def test_restore_follows_parameters_that_were_exchanged():
    model, other = tiny(), tiny()
    with torch.no_grad():
        other.head[1].weight.fill_(3.0)
    model.load_state_dict(other.state_dict(), assign=True)
    assert cacseg.restore(model).head[1].weight.unique().tolist() == [3.0]


def test_settings_reach_classifier_and_loss():
    seam = tiny(preset="paper", ignore_index=7, scale=10.0, loss_arguments={"kl_weight": 0.5}).head[1]
    assert (seam.oracle_scope, seam.scale, seam.ignore_index) == ("image", 10.0, 7)
    assert (seam.criterion.distillation_scope, seam.criterion.ignore_index) == ("image", 7)
    assert seam.criterion.weights["distillation"] == 0.5


def test_transformers_settings_come_from_the_config():
    original = build("transformers UperNet with ConvNeXt")
    original.config.loss_ignore_index, original.config.auxiliary_loss_weight = 9, 0.7
    model, (images, labels) = cacseg.convert(original), draw()
    labels = labels.where(labels != 255, 9)
    losses = model.loss(images, labels)
    assert model.conversion.auxiliary_weight == 0.7
    rest = sum(losses[term] for term in ("plain", "context", "oracle", "distillation"))
    torch.testing.assert_close(losses["total"], rest + 0.7 * losses["auxiliary"])
    positional = model(images, None, None, labels, True)
    torch.testing.assert_close(positional.loss, losses["total"])
    assert list(positional) == ["loss", "logits"]
    as_tuple = model(images, labels=labels, return_dict=False)
    torch.testing.assert_close(as_tuple[0], losses["total"])
    assert len(as_tuple) == 2


def test_a_saved_transformer_names_its_architecture(tmp_path):
    model, (images, _) = cacseg.convert(build("transformers Segformer")), draw()
    model.save_pretrained(tmp_path)
    assert model.config.architectures == ["SegformerForSemanticSegmentation"]
    plain = cacseg.restore(copy.deepcopy(model)).from_pretrained(tmp_path)
    assert torch.equal(plain.eval()(images).logits, model.plain(images).logits)


@pytest.mark.parametrize("name", SMALL)
def test_a_state_dict_of_the_original_loads_strictly(name):
    """A checkpoint from before the conversion: the projectors, which it knows nothing of, keep their values."""
    original, model = build(name), cacseg.convert(build(name))
    with torch.no_grad():
        for parameter in original.parameters():
            parameter.add_(0.01)
    model.load_state_dict(original.state_dict())
    images, _ = draw(name)
    with torch.no_grad():
        assert torch.equal(scores_of(model.eval().plain(images)), scores_of(original.eval()(images)))
