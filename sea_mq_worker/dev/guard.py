"""Become a server: drop root, ask the kernel for a signal at the parent's death, then exec.

This module runs as a separate script, because the same steps between fork and exec (``preexec_fn``) are
unsafe in a process with threads. Arguments: the parent's pid, the signal to receive when the parent dies,
uid, gid, command. The exec keeps the pid, so the parent's process handle is the server's.
"""

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1


def main(parent: int, death_signal: int, uid: int, gid: int, command: list[str]) -> None:
    """Never return: the process becomes the command, or exits with the reason on stderr."""
    if uid != os.geteuid():
        os.setgroups([])
        os.setgid(gid)
        os.setuid(uid)
    if sys.platform == "linux":  # after the change of user, which clears it
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, death_signal)
    if os.getppid() != parent:
        sys.exit("the process that started this server has ended")
    for ignored_by_python in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(ignored_by_python, signal.SIG_DFL)
    try:
        os.execv(command[0], command)  # noqa: S606 - no shell is needed
    except OSError as error:
        sys.exit(f"cannot run {command[0]}: {error.strerror}")


if __name__ == "__main__":
    parent, death_signal, uid, gid = map(int, sys.argv[1:5])
    main(parent, death_signal, uid, gid, command=sys.argv[5:])
