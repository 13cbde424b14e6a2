"""Start a program that can write only below given directories; run as a script in the child.

`python -I -S confined.py PATHS PORT COMMAND ARGS...` asks Linux (Landlock,
https://docs.kernel.org/userspace-api/landlock.html) to refuse the process and all its descendants writing outside PATHS
(directories and files, separated by `:`), TCP connections to ports other than PORT (`any` allows all), and signals to
processes outside, then replaces itself by the command. Reading is not restricted. Where the kernel is older, the
network (before 6.7) and signals (before 6.12) are not restricted either.
"""

from __future__ import annotations

import ctypes
import os
import struct
import sys

_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446
_VERSION_FLAG, _PATH_BENEATH, _NET_PORT = 1, 1, 2
_PR_SET_NO_NEW_PRIVS = 38
_WRITE = 0b1_1111_1111_0010
"""LANDLOCK_ACCESS_FS_WRITE_FILE, and those that remove or make files and directories."""
_WRITE_FILE = 1 << 1
_REFER, _TRUNCATE = 1 << 13, 1 << 14
_CONNECT_TCP = 1 << 1
_SCOPES = 0b11
"""Abstract Unix sockets and signals."""
ANY_PORT = "any"


def abi() -> int:
    """The version of Landlock's interface; 0 where the kernel has none."""
    if not sys.platform.startswith("linux"):
        return 0
    return max(ctypes.CDLL(None).syscall(_CREATE_RULESET, None, ctypes.c_size_t(0), _VERSION_FLAG), 0)


def main() -> None:
    paths, port, command = sys.argv[1].split(":"), sys.argv[2], sys.argv[3:]
    _confine(paths, None if port == ANY_PORT else int(port))
    try:
        os.execvp(command[0], command)
    except OSError as error:
        sys.stderr.write(f"{command[0]}: {error.strerror}\n")
        os._exit(127)


def _confine(paths: list[str], port: int | None) -> None:
    libc, version = ctypes.CDLL(None, use_errno=True), abi()
    write = _WRITE | (_REFER if version >= 2 else 0) | (_TRUNCATE if version >= 3 else 0)
    net = _CONNECT_TCP if version >= 4 and port is not None else 0
    handled = struct.pack("QQQ", write, net, _SCOPES if version >= 6 else 0)
    # Older kernels know a shorter structure.
    size = 24 if version >= 6 else 16 if version >= 4 else 8
    ruleset = _checked(libc.syscall(_CREATE_RULESET, handled, ctypes.c_size_t(size), 0))
    for path in paths:
        try:
            opened = os.open(path, os.O_PATH | os.O_CLOEXEC)
        except OSError:
            continue  # a cache that does not exist
        # For a file, Landlock refuses the rights of directories with EINVAL.
        allowed = write if os.path.isdir(path) else write & (_WRITE_FILE | _TRUNCATE)
        _checked(libc.syscall(_ADD_RULE, ruleset, _PATH_BENEATH, struct.pack("=Qi", allowed, opened), 0))
        os.close(opened)
    if net and port:
        _checked(libc.syscall(_ADD_RULE, ruleset, _NET_PORT, struct.pack("QQ", net, port), 0))
    # Landlock requires it, since a set-user-ID program would otherwise shed the rules.
    _checked(libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0))
    _checked(libc.syscall(_RESTRICT_SELF, ruleset, 0))
    os.close(ruleset)


def _checked(result: int) -> int:
    if result < 0:
        sys.stderr.write(f"the kernel refused to confine it: {os.strerror(ctypes.get_errno())}\n")
        os._exit(126)
    return result


if __name__ == "__main__":
    main()
