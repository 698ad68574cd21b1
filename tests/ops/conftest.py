import pytest

from cacseg.ops import tiled_cross_entropy


@pytest.fixture
def small_tiles(monkeypatch):
    """Many tiles on small maps: five columns at a time and, of twelve maps (b * n), two rows."""
    monkeypatch.setattr(tiled_cross_entropy, "CPU_TILE_ELEMENTS", 2 * 6 * 2 * 5)
    monkeypatch.setattr(tiled_cross_entropy, "TILE_COLUMNS", 5)
