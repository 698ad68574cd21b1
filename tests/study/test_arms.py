"""What an arm of the studies is said to be, it is."""

import re
from pathlib import Path

import pytest
import torch
from torch.nn import functional as F

from cacseg import ContextAwareClassifier, ContextLoss, functional
from cacseg.study.file import read_study
from cacseg.study.plan import make_plan

STUDIES = Path(__file__).parents[2] / "studies"
FILES = {"camvid", "msrc21", "folder"}  # the others are generated


def arguments_of(study, arm):
    """Of the classifier and of the loss."""
    plan = read_study(STUDIES / f"{study}.toml")
    used = {choice.recipe for choice in plan.data.values()}
    jobs = make_plan(plan, dict.fromkeys(used & FILES, "somewhere"), only={"arms": [arm]})
    model, *others = (job.config.model for job in jobs)
    of_classifier, of_loss = model.classifier_arguments, model.loss_arguments
    assert all((other.classifier_arguments, other.loss_arguments) == (of_classifier, of_loss) for other in others)
    return {"preset": model.preset} | of_classifier, {"preset": model.preset} | of_loss


def with_arm(arm):
    return [path.stem for path in sorted(STUDIES.glob("*.toml")) if arm in read_study(path).arms]


def test_evened_is_one_arm_in_all_studies():
    for arm, least in (("evened", 8), ("two_evened", 3)):
        first, *others = (arguments_of(study, arm) for study in with_arm(arm))
        assert len(others) >= least - 1
        assert all(other == first for other in others)
    spelt = [str(arguments_of("rest", arm)) for arm in ("evened", "two_evened", "centred")]
    assert len(set(spelt)) == 3


def upsampled(logits, labels):
    """The cost of each pixel."""
    logits = F.interpolate(logits, labels.shape[1:], mode="bilinear")
    return F.cross_entropy(logits, labels, ignore_index=255, reduction="none")


@pytest.mark.parametrize("dropout", [0.0, 0.1])
@pytest.mark.parametrize("arm", ["evened", "two_evened"])
def test_evened_knows_labels_and_no_oracle(arm, dropout):
    """A cross-entropy of each answer, and one, without dropout, in which every class that is there counts alike."""
    torch.manual_seed(0)
    features = torch.randn(3, 16, 6, 6, dtype=torch.float64, requires_grad=True)
    labels = torch.randint(0, 4, (3, 48, 48))  # of five classes, the last is not there
    labels[:, :8] = 255
    of_classifier, of_loss = arguments_of("rest", arm)
    classifier = ContextAwareClassifier(16, 5, dropout=dropout, **of_classifier).double()
    outputs = classifier(features, labels)
    total = ContextLoss(**of_loss)(outputs, labels)["total"]

    whole = F.conv2d(features, classifier.weight, classifier.bias)
    cosine = 15.0 * F.conv2d(F.normalize(features, dim=1), F.normalize(classifier.weight, dim=1))
    last, plain = whole if arm == "evened" else cosine, outputs.plain
    torch.testing.assert_close(outputs.context, last)
    assert torch.allclose(plain, whole) == (dropout == 0.0)
    probability = plain.detach().softmax(dim=1)
    hardness = -(probability * probability.log()).sum(dim=1)
    at_centres = labels[:, 4::8, 4::8]
    cost = F.cross_entropy(last, at_centres, ignore_index=255, reduction="none")
    alike = [(hardness * cost)[at_centres == k].sum() / hardness[at_centres == k].sum() for k in range(4)]
    expected = torch.stack(alike).mean() + upsampled(plain, labels).sum() / (labels != 255).sum()
    if arm == "two_evened":
        expected = expected + upsampled(cosine, labels).mean()  # as released: the mean over all pixels
    torch.testing.assert_close(total.double(), expected, rtol=1e-6, atol=0.0)


def test_the_loss_in_which_classes_count_alike_on_the_page():
    """For any logits: what docs/results-centred.md shows is the term of `evened`."""
    page = (STUDIES / "../docs/results-centred.md").read_text()
    (text,) = re.findall(r"<!-- classes alike -->\n+```python\n(.*?)```", page, re.DOTALL)
    torch.manual_seed(0)
    features, labels = torch.randn(2, 16, 6, 6), torch.randint(0, 5, (2, 48, 48))
    labels[:, :8] = 255
    of_classifier, of_loss = arguments_of("rest", "evened")
    classifier = ContextAwareClassifier(16, 5, **of_classifier)
    names = {"logits": classifier.plain_logits(features), "labels": labels}
    exec(text, names)
    torch.testing.assert_close(names["loss"], ContextLoss(**of_loss)(classifier(features, labels), labels)["total"])


def test_the_arms_of_overlap():
    """`plain_overlap` is a cross-entropy and three times the overlap, `tuned` is `centred` and as much of it.

    Those named fine have it at the size of the labels, and nothing else that differs.
    """
    for arm, fine in (("tuned", "overlap_fine"), ("plain_overlap", "plain_overlap_fine")):
        of_classifier, of_loss = arguments_of("unscaled", arm)
        assert {
            arguments_of(study, fine) == (of_classifier, of_loss | {"overlap_at": "labels"}) for study in with_arm(fine)
        } == {True}
        first, *others = (arguments_of(study, arm) for study in with_arm(arm))
        assert len(others) >= 7
        assert all(other == first for other in others)
    torch.manual_seed(0)
    features, labels = torch.randn(3, 16, 6, 6, dtype=torch.float64), torch.randint(0, 4, (3, 48, 48))
    labels[:, :8] = 255
    at_features = labels[:, 4::8, 4::8]
    losses = []
    for arm in ("plain_overlap", "centred", "tuned"):
        of_classifier, of_loss = arguments_of("unscaled", arm)
        torch.manual_seed(0)
        outputs = ContextAwareClassifier(16, 5, **of_classifier).double()(features, labels)
        losses.append(ContextLoss(**of_loss)(outputs, labels)["total"])
        overlap = functional.overlap_loss(outputs.context, at_features)
        if arm == "plain_overlap":
            torch.testing.assert_close(outputs.context, outputs.plain)
            plain = upsampled(outputs.plain, labels)[labels != 255].mean()
            torch.testing.assert_close(losses[0], plain + 3.0 * overlap)
            page = (STUDIES.parent / "docs" / "results.md").read_text()
            (text,) = re.findall(r"<!-- overlap -->\n+```python\n(.*?)```", page, re.DOTALL)
            given = {"logits": outputs.plain, "labels": labels}
            exec(text, given)
            torch.testing.assert_close(given["loss"], losses[0])
    torch.testing.assert_close(losses[2], losses[1] + 3.0 * overlap)
