import pytest
import torch

from projectors import awake  # noqa: F401


@pytest.fixture(autouse=True)
def forget_compiled():
    """Converted models share one forward, and torch compiles a function only so many times for other models."""
    yield
    torch._dynamo.reset()
