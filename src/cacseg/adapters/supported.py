"""The one table of architectures; docs/convert.md shows it."""

from __future__ import annotations

from torch import nn

from cacseg.adapters import mmseg
from cacseg.adapters.rows import SMP_ROWS, TORCHVISION_ROWS, TRANSFORMERS_ROWS, Parts, Row, read_row

SUPPORTED: dict[tuple[str, str], Row] = {
    (row.package, row.architecture): row for row in (*SMP_ROWS, *TORCHVISION_ROWS, *TRANSFORMERS_ROWS, *mmseg.ROWS)
}


def find_row(model: nn.Module) -> Row | None:
    """What is known of the model's class, or of the nearest class it inherits from."""
    for kind in type(model).__mro__:
        row = SUPPORTED.get((kind.__module__.split(".")[0], kind.__name__))
        if row is not None:
            return row
    return None


def known_parts(model: nn.Module) -> Parts:
    """What the row of the model's class says of this very model; nothing where there is no row."""
    row = find_row(model)
    if row is None:
        return Parts()
    return mmseg.read_model(row, model) if row.package == mmseg.PACKAGE else read_row(row, model)


def known_parts_inside(model: nn.Module) -> Parts:
    """What is known of the one model of a library that another module wraps, under its names in the whole.

    Nothing where there is none, or several. Nor of mmsegmentation's: its auxiliary heads run by a method of the model.
    """
    found = {name: module for name, module in model.named_modules() if name and find_row(module) is not None}
    outermost = [name for name in found if not any(name.startswith(f"{other}.") for other in found)]
    if len(outermost) != 1:
        return Parts()
    (prefix,) = outermost
    known, row = known_parts(found[prefix]), find_row(found[prefix])
    if row is None or row.package == mmseg.PACKAGE or known.refusal:
        return Parts()
    return known._replace(
        seam=f"{prefix}.{known.seam}",
        dropout=f"{prefix}.{known.dropout}" if known.dropout else "",
        auxiliaries={f"{prefix}.{name}": weight for name, weight in known.auxiliaries.items()},
        aligned=frozenset(f"{prefix}.{name}" for name in known.aligned),
    )


def as_markdown() -> str:
    """The table of the documentation; architectures of which the same is to say share a row."""
    shared: dict[tuple[str, str, str], list[str]] = {}
    for row in SUPPORTED.values():
        remarks = [one for one in (row.refusal, row.remark) if one]
        if row.auxiliary:
            remarks.append(f"auxiliary `{row.auxiliary}`")
        seam = f"`{row.seam}`" if row.seam else "refused"
        shared.setdefault((row.package, seam, "; ".join(remarks)), []).append(f"`{row.architecture}`")
    lines = ["| library | architecture | seam | remarks |", "|---|---|---|---|"]
    for (package, seam, remark), architectures in shared.items():
        lines.append(f"| {package} | {', '.join(architectures)} | {seam} | {remark} |")
    return "\n".join(lines)
