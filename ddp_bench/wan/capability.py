"""Whether this process may make namespaces and TUN devices."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

NET_ADMIN, SYS_ADMIN = 12, 21  # bits of CapEff, linux/capability.h


def missing() -> str:
    """What is missing here for an emulated network, "" if nothing."""
    if not sys.platform.startswith("linux"):
        return f"network namespaces are Linux's, and this is {sys.platform}"
    if not shutil.which("ip"):
        return "the command `ip` (package iproute2) is not installed"
    if not os.access("/dev/net/tun", os.R_OK | os.W_OK):
        return "/dev/net/tun is not there or may not be opened"
    held = _effective()
    for bit, name in ((NET_ADMIN, "CAP_NET_ADMIN"), (SYS_ADMIN, "CAP_SYS_ADMIN")):
        if not held >> bit & 1:
            return f"the process lacks {name}"
    return ""


def _effective() -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("CapEff:"):
            return int(line.split()[1], 16)
    return 0
