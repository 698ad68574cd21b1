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


def context_prototypes(features, logits, threshold=0.0):
    result = []
    for image, scores in zip(pixels(features), pixels(logits), strict=True):
        shares = [softmax(p.tolist()) for p in scores]
        kept = [i for i, share in enumerate(shares) if max(share) >= threshold] or list(range(len(shares)))
        rows = []
        for k in range(len(shares[0])):
            rows.append(sum(shares[i][k] * image[i] for i in kept) / sum(shares[i][k] for i in kept))
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
    if label is not None:
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
    over_all_classes=False,
    soft_target_weight=1.0,
):
    """Eqs. (7), (10), (11) and class-wise without entropy; labels at the size of the logits, None: all pixels."""
    n = context.shape[1]
    entries = []  # for each image: (label, weight, cost) of every labelled pixel
    lists = label_list(labels) if labels is not None else [[None] * context[0, 0].numel()] * len(context)
    for b, (image_context, image_oracle) in enumerate(zip(pixels(context), pixels(oracle), strict=True)):
        image_weights = pixels(entropy_logits)[b] if entropy_logits is not None else None
        image = []
        for i, (p, q) in enumerate(zip(image_context, image_oracle, strict=True)):
            label = lists[b][i]
            if label is not None and not 0 <= label < n:
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
        divisor = n if over_all_classes else len(present)
        values.append(sum(means) / divisor if present else 0.0)
    return sum(values) / len(values)


def relation_distillation(context, oracle, labels, ignore_index=255):
    """Squared differences of the correlations of every two classes of an image, over its labelled pixels."""
    values = []
    for b, image_labels in enumerate(label_list(labels)):
        kept = [i for i, label in enumerate(image_labels) if 0 <= label != ignore_index]
        present = sorted({image_labels[i] for i in kept})

        def correlation(scores, k, m, kept=kept, b=b):
            first, second = ([float(pixels(scores)[b][i][c]) for i in kept] for c in (k, m))
            mean_1, mean_2 = sum(first) / len(first), sum(second) / len(second)
            together = sum((x - mean_1) * (y - mean_2) for x, y in zip(first, second, strict=True))
            spread = sum((x - mean_1) ** 2 for x in first) * sum((y - mean_2) ** 2 for y in second)
            return together / math.sqrt(spread)

        squares = [
            (correlation(context, k, m) - correlation(oracle, k, m)) ** 2 for k in present for m in present if k != m
        ]
        if squares:
            values.append(sum(squares) / len(squares))
    return sum(values) / len(values) if values else 0.0


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
