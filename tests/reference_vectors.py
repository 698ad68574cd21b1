"""Float64 pairs: `released_*` from the authors' code, `paper_*` from two naive readings of the paper."""

from pathlib import Path

import numpy as np
import torch

import cacseg

FOLDER = Path(__file__).parent / "vectors"
CASES = ("n7_h12", "n7_b1", "n7_h12_image1_ignored")


def load(kind, case):
    return {key: torch.from_numpy(value) for key, value in np.load(FOLDER / f"{kind}_{case}.npz").items()}


def make_classifier(vectors, preset, **arguments):
    """The classifier with the vectors' parameters."""
    num_classes, channels = vectors["in_conv_seg_weight"].shape
    classifier = cacseg.ContextAwareClassifier(channels, num_classes, preset=preset, **arguments).double()
    state = {"weight": vectors["in_conv_seg_weight"], "bias": vectors["in_conv_seg_bias"]}
    for ours, theirs in (("context_projector", "proj"), ("oracle_projector", "apd_proj")):
        for ours_leaf, theirs_leaf in (("0.weight", "0_weight"), ("2.weight", "2_weight"), ("2.bias", "2_bias")):
            state[f"{ours}.{ours_leaf}"] = vectors[f"in_{theirs}_{theirs_leaf}"]
    classifier.load_state_dict(state)
    return classifier
