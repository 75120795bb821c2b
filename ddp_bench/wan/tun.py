"""TUN devices: what a namespace sends comes out of a file, and what is written goes in.

The kernel hands over TCP data in large packets and a header that says how it would have cut them
(segmentation offload). The same header goes in at the other end. So a packet costs Python once per
64 kB, while TCP counts segments, windows and losses as on a network of the device's MTU.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

CLONE_NEWNET = 0x40000000
TUNSETIFF, TUNSETOFFLOAD, TUNSETVNETHDRSZ = 0x400454CA, 0x400454D0, 0x400454D8
IFF_TUN, IFF_NO_PI, IFF_VNET_HDR = 0x0001, 0x1000, 0x4000
OFFLOAD_CHECKSUM, OFFLOAD_TSO4 = 0x01, 0x02
HEADER = (
    10  # [B] struct virtio_net_hdr: flags, gso_type, hdr_len, gso_size, csum_start, csum_offset
)
LARGEST = HEADER + 65536  # [B] of one read
DEVICE = "wan0"
NETNS = Path("/run/netns")  # where `ip netns` keeps names


@contextmanager
def inside(namespace: str) -> Iterator[None]:
    """Within this block, this thread is in a network namespace. Raises OSError."""
    libc = ctypes.CDLL(None, use_errno=True)

    def enter(fd: int) -> None:
        if libc.setns(fd, CLONE_NEWNET):
            code = ctypes.get_errno()
            raise OSError(code, os.strerror(code), str(NETNS / namespace))

    home = os.open("/proc/thread-self/ns/net", os.O_RDONLY)
    try:
        there = os.open(NETNS / namespace, os.O_RDONLY)
        try:
            enter(there)
        finally:
            os.close(there)
        try:
            yield
        finally:
            enter(home)
    finally:
        os.close(home)


def open_tun(namespace: str) -> int:
    """Make the device in `namespace`; the file through which its packets pass. The device lives as
    long as the file is open. Raises OSError."""
    with inside(namespace):
        fd = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            flags = IFF_TUN | IFF_NO_PI | IFF_VNET_HDR
            fcntl.ioctl(fd, TUNSETIFF, struct.pack("16sH22x", DEVICE.encode(), flags))
            fcntl.ioctl(fd, TUNSETVNETHDRSZ, struct.pack("i", HEADER))
        except OSError:
            os.close(fd)
            raise
    return fd


def set_offload(fd: int, on: bool) -> None:
    """Whether the kernel may hand over more than one segment at once."""
    fcntl.ioctl(fd, TUNSETOFFLOAD, OFFLOAD_CHECKSUM | OFFLOAD_TSO4 if on else 0)


def wire_bytes(packet: bytes) -> int:
    """[B] that a packet read from a device takes on the wire: its IP packets, each with headers."""
    size = len(packet) - HEADER
    segment = packet[4] | packet[5] << 8  # gso_size, little-endian as the machines it runs on
    if not packet[1] or not segment:
        return size
    ip = (packet[HEADER] & 15) * 4
    headers = ip + (packet[HEADER + ip + 12] >> 4) * 4  # offloaded packets are TCP over IPv4
    return size + max(-(-(size - headers) // segment) - 1, 0) * headers


def destination(packet: bytes) -> int:
    """The number of the domain that a packet goes to, by `address`; -1 for what is not IPv4."""
    if len(packet) < HEADER + 20 or packet[HEADER] >> 4 != 4:
        return -1
    return packet[HEADER + 18] - 1


def address(domain: int) -> str:
    """The IPv4 address of a domain. The prefix is shared by nothing outside the namespaces."""
    return f"10.77.{domain + 1}.1"
