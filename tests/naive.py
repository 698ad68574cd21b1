"""The paper's equations as loops over images, classes and pixels: slow, obvious, float64."""

import math
from itertools import chain

import torch


def softmax(values):
    largest = max(values)
    powers = [math.exp(value - largest) for value in values]
    return [power / sum(powers) for power in powers]


def pixels(tensor):
    """[b, c, *spatial] -> for each image a list of pixel vectors."""
    return [list(image.flatten(1).T.double()) for image in tensor.detach()]


def label_list(labels):
    return [[int(label) for label in image.flatten()] for image in labels]


def oracle_prototypes(features, labels, weight, pool_batch=False, ignore_index=255):
    images, lists = pixels(features), label_list(labels)
    if pool_batch:
        images, lists = [list(chain(*images))], [list(chain(*lists))]
    result = []
    for image, image_labels in zip(images, lists, strict=True):
        rows = []
        for k in range(len(weight)):
            mine = [f for f, y in zip(image, image_labels, strict=True) if y == k != ignore_index]
            rows.append(torch.stack(mine).mean(0) if mine else weight[k].double())
        result.append(torch.stack(rows))
    return torch.stack(result)


def context_prototypes(features, logits, epsilon=0.0):
    result = []
    for image, scores in zip(pixels(features), pixels(logits), strict=True):
        shares = [softmax(p.tolist()) for p in scores]
        rows = []
        for k in range(len(shares[0])):
            total = sum(share[k] for share in shares) + epsilon
            rows.append(sum(share[k] * f for share, f in zip(shares, image, strict=True)) / total)
        result.append(torch.stack(rows))
    return torch.stack(result)


def cosine_logits(features, classifier, scale):
    result = torch.zeros(features.shape[0], classifier.shape[1], *features.shape[2:], dtype=torch.float64).flatten(2)
    for b, image in enumerate(pixels(features)):
        for i, f in enumerate(image):
            for k, row in enumerate(classifier[b].detach().double()):
                result[b, k, i] = scale * (f @ row) / (f.norm() * row.norm())
    return result.view(features.shape[0], classifier.shape[1], *features.shape[2:])


def entropy(scores):
    return -sum(p * math.log(p) for p in softmax(scores) if p > 0)


def cost(context, oracle, label, soft_target_weight=1.0):
    target = [soft_target_weight * p for p in softmax(oracle)]
    target[label] += 1.0 - soft_target_weight
    return -sum(t * math.log(p) for t, p in zip(target, softmax(context), strict=True))


def distillation(
    context,
    oracle,
    labels,
    *,
    by_class,
    entropy_logits=None,
    pool_batch=False,
    soft_target_weight=1.0,
):
    """Eqs. (7), (10), (11) and class-wise without entropy; labels at the size of the logits."""
    n = context.shape[1]
    entries = []  # for each image: (label, weight, cost) of every labelled pixel
    lists = label_list(labels)
    for b, (image_context, image_oracle) in enumerate(zip(pixels(context), pixels(oracle), strict=True)):
        image_weights = pixels(entropy_logits)[b] if entropy_logits is not None else None
        image = []
        for i, (p, q) in enumerate(zip(image_context, image_oracle, strict=True)):
            label = lists[b][i]
            if not 0 <= label < n:
                continue
            weight = entropy(image_weights[i].tolist()) if image_weights is not None else 1.0
            image.append((label, weight, cost(p.tolist(), q.tolist(), label, soft_target_weight)))
        entries.append(image)
    if pool_batch:
        entries = [list(chain(*entries))]

    def mean(rows):
        total = sum(weight for _, weight, _ in rows)
        return sum(weight * c for _, weight, c in rows) / total if total else 0.0

    values = []
    for image in entries:
        if not by_class:
            values.append(mean(image))
            continue
        present = sorted({label for label, _, _ in image})
        means = [mean([row for row in image if row[0] == k]) for k in present]
        values.append(sum(means) / len(present) if present else 0.0)
    return sum(values) / len(values)


def overlap_loss(logits, labels, ignore_index=255):
    """One minus intersection over union of each class that is there, with probabilities for the answer."""
    shared, union, present = {}, {}, set()
    for b, image_labels in enumerate(label_list(labels)):
        for i, label in enumerate(image_labels):
            if label < 0 or label == ignore_index:
                continue
            present.add(label)
            scores = [math.exp(float(one)) for one in pixels(logits)[b][i]]
            for k, score in enumerate(scores):
                chance = score / sum(scores)
                shared[k] = shared.get(k, 0.0) + (chance if k == label else 0.0)
                union[k] = union.get(k, 0.0) + (1.0 if k == label else chance)
    return sum(1.0 - shared[k] / union[k] for k in present) / len(present) if present else 0.0
