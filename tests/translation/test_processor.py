"""Name of the processor, with and without /proc/cpuinfo."""

import os

from relattn.translation import processor

LINUX = (
    "processor\t: 0\nvendor_id\t: {vendor}\nmodel name\t: A Fine One: 3 GHz\n\nprocessor\t: 1\nmodel name\t: Other\n"
)


def test_the_name_is_the_first_processor_s(tmp_path, monkeypatch):
    (tmp_path / "cpuinfo").write_text(LINUX.format(vendor="GenuineIntel"), encoding="utf-8")
    monkeypatch.setattr(processor, "CPUINFO", tmp_path / "cpuinfo")
    assert processor.describe() == f"A Fine One: 3 GHz, {os.cpu_count()} cores"
    assert not processor.is_amd()


def test_amd_is_recognized_by_the_vendor(tmp_path, monkeypatch):
    (tmp_path / "cpuinfo").write_text(LINUX.format(vendor="AuthenticAMD"), encoding="utf-8")
    monkeypatch.setattr(processor, "CPUINFO", tmp_path / "cpuinfo")
    assert processor.is_amd()


def test_where_there_is_no_list_the_platform_has_a_name(tmp_path, monkeypatch):
    monkeypatch.setattr(processor, "CPUINFO", tmp_path / "cpuinfo")
    monkeypatch.setattr(processor.platform, "processor", lambda: "")
    monkeypatch.setattr(processor.platform, "machine", lambda: "riscv64")
    assert processor.describe() == f"riscv64, {os.cpu_count()} cores"
    assert not processor.is_amd()
