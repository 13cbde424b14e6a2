"""Show a directory under another path to one program, run as a script in the child: siblings then have one path.

`python -I -S same_home.py DIRECTORY PATH COMMAND ARGS...` mounts DIRECTORY at PATH in a mount namespace of the child's
own, enters it and replaces itself by the command. Programs put their working directory into the prompt, and siblings
of a group have to have the same prompt. Without root it takes a user namespace; it exits with 126 where neither is
allowed.
"""

from __future__ import annotations

import ctypes
import os
import sys
from pathlib import Path

_NEW_MOUNTS, _NEW_USERS = 0x00020000, 0x10000000
_BIND, _PRIVATE = 0x1000, 0x4000 | 0x40000
"""The second one for all mounts below: what is mounted here is to be seen nowhere else."""
UNABLE = 126


def main() -> None:
    directory, shown, command = sys.argv[1], sys.argv[2], sys.argv[3:]
    libc, uid, gid = ctypes.CDLL(None, use_errno=True), os.getuid(), os.getgid()
    if libc.unshare(_NEW_MOUNTS):
        if libc.unshare(_NEW_MOUNTS | _NEW_USERS):
            sys.exit(UNABLE)
        Path("/proc/self/setgroups").write_text("deny")
        Path("/proc/self/uid_map").write_text(f"{uid} {uid} 1")
        Path("/proc/self/gid_map").write_text(f"{gid} {gid} 1")
    if libc.mount(b"none", b"/", None, _PRIVATE, None) or libc.mount(
        os.fsencode(directory), os.fsencode(shown), None, _BIND, None
    ):
        sys.exit(UNABLE)
    os.chdir(shown)
    os.execvp(command[0], command)


if __name__ == "__main__":
    main()
