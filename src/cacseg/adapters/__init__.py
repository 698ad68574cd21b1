"""Models of other libraries with a context-aware classifier."""

from cacseg.adapters.supported import SUPPORTED
from cacseg.adapters.swap import convert, restore

__all__ = ["SUPPORTED", "convert", "restore"]
