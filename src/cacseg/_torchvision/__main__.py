"""python -m cacseg._torchvision [FOLDER]: lets torchvision import in this environment, in any order, if it cannot.

FOLDER, site-packages by default, is where the .pth file goes. Nothing is written where torchvision imports.
"""

from __future__ import annotations

import subprocess
import sys
import sysconfig
from pathlib import Path

import cacseg._torchvision as hook

NAME = "cacseg_torchvision"


def write_startup_file(folder: Path) -> Path:
    """A .pth file that installs the hook as Python starts; without effect once cacseg is gone."""
    run = f"exec(machinery.SourceFileLoader({NAME!r}, path).get_code({NAME!r}), names) or names['install_hook']()"
    line = (
        f"import importlib.machinery as machinery, os; path = {hook.__file__!r}; "
        f"names = {{'__name__': {NAME!r}}}; os.path.isfile(path) and ({run})\n"
    )
    file = folder / f"{NAME}.pth"
    file.write_text(line, encoding="utf-8")
    return file


def main() -> None:
    """Says in one line what was done."""
    # As if no hook were there: an earlier call may have left one.
    kept = f"[one for one in sys.meta_path if type(one).__name__ != {hook.TorchvisionFinder.__name__!r}]"
    code = f"import sys; sys.meta_path[:] = {kept}; import torchvision"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    if done.returncode == 0:
        print("torchvision imports: nothing to do")
    elif hook.ERROR in done.stderr:
        file = write_startup_file(Path(sys.argv[1] if len(sys.argv) > 1 else sysconfig.get_path("purelib")))
        print(f"torchvision's operators do not load beside this torch: {file} lets it import without them")
    else:
        reason = (done.stderr.strip().splitlines() or ["no reason given"])[-1]
        print(f"torchvision does not import, for another reason than missing operators ({reason}): nothing done")


if __name__ == "__main__":
    main()
