"""Devices that a run may be planned for: speed, memory and links, as their makers give them.

Rates are dense: without the factor of 2 that data sheets give for sparsity. Bandwidths of links are those of
one direction.
"""

from dataclasses import dataclass, replace

from pretrain.common.errors import UserError


@dataclass(frozen=True)
class Device:
    """One device of a run.

    peak: FLOP/s of bfloat16 products. memory: bytes. bandwidth: bytes/s of its memory. link: bytes/s, to the
    other devices of its node. network: bytes/s, its share of the node's network. per_node: devices in a node.
    """

    peak: float
    memory: float
    bandwidth: float
    link: float
    network: float
    per_node: int

    def speed_between(self, ranks: int) -> float:
        """Return the bytes/s of the slowest link of a ring over so many ranks.

        >>> DEVICES["h200"].speed_between(8) / 1e9, DEVICES["h200"].speed_between(16) / 1e9
        (450.0, 50.0)
        """
        return self.link if ranks <= self.per_node else min(self.link, self.network)


DEVICES = {
    # NVIDIA H200 data sheet, SXM: 1,979 TFLOPS bfloat16 with sparsity, 141 GB, 4.8 TB/s, NVLink 900 GB/s both
    # ways. DGX H200: 8 GPUs, a ConnectX-7 of 400 Gb/s for each.
    "h200": Device(989.5e12, 141e9, 4.8e12, 450e9, 50e9, 8),
    # NVIDIA H100 data sheet, SXM5: 1,979 TFLOPS with sparsity, 80 GB, 3.35 TB/s, NVLink 900 GB/s both ways.
    # DGX H100: 8 GPUs, a ConnectX-7 of 400 Gb/s for each.
    "h100": Device(989.5e12, 80e9, 3.35e12, 450e9, 50e9, 8),
    # NVIDIA A100 data sheet, SXM4 80 GB: 312 TFLOPS, 2,039 GB/s, NVLink 600 GB/s both ways. DGX A100: 8 GPUs,
    # a ConnectX-6 of 200 Gb/s for each.
    "a100-80": Device(312e12, 80e9, 2.039e12, 300e9, 25e9, 8),
    # The same, SXM4 40 GB: 1,555 GB/s.
    "a100-40": Device(312e12, 40e9, 1.555e12, 300e9, 25e9, 8),
    # NVIDIA L40S data sheet: 362.05 TFLOPS, 48 GB, 864 GB/s, PCIe 4.0 x16 with 64 GB/s both ways, no NVLink.
    # Assumed: 4 in a node, 100 Gb/s for each.
    "l40s": Device(362.05e12, 48e9, 0.864e12, 32e9, 12.5e9, 4),
}
"""GPUs by the names that --gpu takes."""

CPU = "cpu"
"""The name of this machine's own cores, whose peak and memory are measured (`pretrain.estimate.machine`)."""


def device_named(name: str, peak: float | None, memory: float | None, network: float | None) -> Device:
    """Return a GPU of the table, with what the user knows better.

    Args:
        peak: TFLOP/s. memory: GB. network: Gb/s; of one GPU. None: the table's.

    Raises:
        UserError: there is no such device.
    """
    if name not in DEVICES:
        raise UserError(f"--gpu {name}: give one of {', '.join([*DEVICES, CPU])}")
    return overridden(DEVICES[name], peak, memory, network)


def overridden(device: Device, peak: float | None, memory: float | None, network: float | None) -> Device:
    """Return the device with what is given: peak in TFLOP/s, memory in GB, network in Gb/s."""
    if peak is not None:
        device = replace(device, peak=peak * 1e12)
    if memory is not None:
        device = replace(device, memory=memory * 1e9)
    if network is not None:
        device = replace(device, network=network * 1e9 / 8)
    return device
