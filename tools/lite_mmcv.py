"""Runs cacseg beside mmsegmentation without mmcv's compiled operators: python tools/lite_mmcv.py bench train ...

Imported, it puts empty modules in place of what mmsegmentation imports and its transforms and models never use. The
environment has cacseg and

    pip install torch==2.13.0 mmengine==0.10.7 mmcv-lite==2.1.0 scipy prettytable packaging matplotlib 'setuptools<81'
    pip install --no-deps mmsegmentation==1.2.2
"""

import sys
import types
import warnings
from importlib.machinery import ModuleSpec
from importlib.util import find_spec


def _empty_module(name: str) -> types.ModuleType:
    """Importable; every attribute is a class that cannot be made."""
    module = types.ModuleType(name)
    module.__spec__ = ModuleSpec(name, None)  # `find_spec` looks at it

    def attribute(wanted: str) -> type:
        if wanted.startswith("__"):
            raise AttributeError(wanted)

        def fail(self: object, *_: object, **__: object) -> None:
            raise RuntimeError(f"{name}.{wanted} is not installed")

        setattr(module, wanted, type(wanted, (), {"__init__": fail}))
        return getattr(module, wanted)

    vars(module).update({"__getattr__": attribute, "compile": lambda *_: None, "IGNORECASE": 0})
    return module


warnings.filterwarnings("ignore")
for _name in ("mmcv._ext", "mmcv.ops", *(one for one in ("ftfy", "regex") if find_spec(one) is None)):
    sys.modules[_name] = _empty_module(_name)

if __name__ == "__main__":
    from cacseg.cli import main

    sys.argv[0] = "cacseg"
    main()
