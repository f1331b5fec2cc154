"""Name of the processor, with and without /proc/cpuinfo."""

import os

import pytest

from relattn.translation import processor

CPUINFO = "processor\t: 0\nvendor_id\t: {}\nmodel name\t: A Fine One: 3 GHz\n\nprocessor\t: 1\nmodel name\t: Other\n"


@pytest.mark.parametrize("vendor", ["GenuineIntel", "AuthenticAMD", None])
def test_processor(tmp_path, monkeypatch, vendor):
    """The first processor that Linux lists; without a list, what Python knows."""
    if vendor:
        (tmp_path / "cpuinfo").write_text(CPUINFO.format(vendor), encoding="utf-8")
    monkeypatch.setattr(processor, "CPUINFO", tmp_path / "cpuinfo")
    monkeypatch.setattr(processor.platform, "processor", lambda: "")
    monkeypatch.setattr(processor.platform, "machine", lambda: "riscv64")
    name = "A Fine One: 3 GHz" if vendor else "riscv64"
    assert processor.describe() == f"{name}, {os.cpu_count()} cores"
    assert processor.is_amd() == (vendor == "AuthenticAMD")
    assert 1 <= processor.cores() <= os.cpu_count()
