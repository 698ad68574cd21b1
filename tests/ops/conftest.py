import pytest

from cacseg.ops import interpolation


@pytest.fixture
def small_tiles(monkeypatch):
    """Many tiles on small maps: five columns at a time and, of twelve maps (b * n), two rows."""
    monkeypatch.setattr(interpolation, "CPU_TILE_ELEMENTS", 2 * 6 * 2 * 5)
    monkeypatch.setattr(interpolation, "TILE_COLUMNS", 5)
