"""The name of the machine that a measurement was made on."""

import os
import platform

import pytest

from cacseg.bench.machine import processor_name

INTEL = "processor\t: 0\nmodel\t\t: 207\nmodel name\t: Intel(R) Xeon(R) Processor @ 2.10GHz\n\n"
ARM = "processor\t: 0\nBogoMIPS\t: 50.00\nCPU part\t: 0xd0c\n\n"


@pytest.mark.parametrize(
    ("content", "name"), [(INTEL * 2, "Intel(R) Xeon(R) Processor @ 2.10GHz"), (ARM, None), (None, None)]
)
def test_a_processor_has_a_name_and_cores(content, name, tmp_path, monkeypatch):
    file = tmp_path / "cpuinfo"
    if content is not None:
        file.write_text(content)
    monkeypatch.setattr("cacseg.bench.machine.PROCESSORS", file)
    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    assert processor_name() == f"{name or platform.processor() or platform.machine()}, 2 cores"
