"""How to install what is missing. cacseg is not on PyPI, so its extras come from a clone or a wheel."""

from __future__ import annotations

from cacseg._version import __version__


def with_extra(extra: str) -> str:
    """The command that installs cacseg with an extra, from either place."""
    return f"pip install -e '.[{extra}]' in its clone, or pip install 'cacseg-{__version__}-py3-none-any.whl[{extra}]'"
