import pytest

from cacseg.ops import interpolation


@pytest.fixture
def small_tiles(monkeypatch):
    """Many tiles on small maps: two rows and five columns at a time, of two images with six classes."""
    monkeypatch.setattr(interpolation, "CPU_TILE_ELEMENTS", 2 * 6 * 2 * 5)
    monkeypatch.setattr(interpolation, "TILE_COLUMNS", 5)
