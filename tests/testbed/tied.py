"""Run a command that ends when the process that started it ends, however that happens (Linux).

    python tied.py PARENT COMMAND [ARGUMENT …]

On Linux the kernel interrupts the command when the process PARENT is gone, `kill -9` included. Elsewhere it
is merely run. The parent has to wait in the very thread that started this one: that is what is watched.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1


def tie(death_signal: int) -> None:
    """Ask the kernel for *death_signal* when the parent dies; kept across exec."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, death_signal, 0, 0, 0)


if __name__ == "__main__":
    tie(signal.SIGINT)
    if os.getppid() != int(sys.argv[1]):  # it died before the kernel was asked
        sys.exit(1)
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # shells let their background jobs ignore it
    os.execvp(sys.argv[2], sys.argv[2:])
