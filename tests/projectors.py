"""Projectors that matter from the start: those of the default preset begin by giving 0, which would hide mistakes."""

import pytest

from cacseg import designs


@pytest.fixture(scope="module", autouse=True)
def awake():
    """In all tests of the folder whose conftest imports this."""
    make_projectors = designs.make_projectors

    def made(*arguments, zero_start, **named):
        return make_projectors(*arguments, zero_start=False, **named)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("cacseg.classifier.make_projectors", made)
        yield
