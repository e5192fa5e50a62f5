"""Devices that a plan can be estimated for: peak rates as their makers state them. Imports no torch."""

from __future__ import annotations

from dataclasses import dataclass

from gatebench.errors import UserError, nearest


@dataclass(frozen=True)
class Device:
    """One accelerator, or one core of a CPU."""

    name: str
    description: str
    flops: float
    """FLOP/s: the peak of dense bf16 matrix products; of the CPU core what training reached."""
    memory: float | None
    """Bytes; None for a CPU."""
    source: str
    utilisation: float = 0.4
    """Assumed share of `flops` that training reaches (MFU). 0.38 to 0.46 is what large dense models report (Llama 3,
    arXiv 2407.21783; PaLM, arXiv 2204.02311); small ones, short contexts and experts reach less."""

    @property
    def is_gpu(self) -> bool:
        """Whether it has memory of its own."""
        return self.memory is not None

    def hours(self, flops: float, utilisation: float | None = None) -> float:
        """Return the hours that one such device takes for `flops`."""
        return flops / (self.flops * (utilisation or self.utilisation)) / 3600


DEVICES = {
    device.name: device
    for device in (
        Device("cpu_core", "one core", 1.3e11, None, "quick on an AMD EPYC core in bf16: docs/training.md", 1.0),
        Device("rtx4090", "NVIDIA RTX 4090", 165.2e12, 24e9, "NVIDIA Ada architecture paper, fp32 accumulation"),
        Device("a100", "NVIDIA A100 80 GB", 312e12, 80e9, "NVIDIA A100 data sheet"),
        Device("h100", "NVIDIA H100 SXM", 989.4e12, 80e9, "NVIDIA H100 data sheet, halved for dense"),
        Device("h200", "NVIDIA H200 SXM", 989.4e12, 141e9, "NVIDIA H200 data sheet, halved for dense"),
        Device("b200", "NVIDIA B200", 2250e12, 180e9, "NVIDIA DGX B200 data sheet, an eighth, halved for dense"),
        Device("mi300x", "AMD MI300X", 1307.4e12, 192e9, "AMD MI300X data sheet, dense"),
    )
}

LAPTOP_FLOPS = 1e15
"""Runs below this (two hours of one core) are estimated for a core, larger ones for an H100, unless told otherwise."""


def find_device(name: str | None, flops_a_run: float) -> Device:
    """Return the device of that name, or the one that suits runs of that size. Raises UserError for an unknown name."""
    if name is None:
        return DEVICES["cpu_core" if flops_a_run < LAPTOP_FLOPS else "h100"]
    if name.lower() not in DEVICES:
        raise UserError(f"--device {name}: unknown; {nearest(name.lower(), DEVICES)} (legal: {', '.join(DEVICES)})")
    return DEVICES[name.lower()]
