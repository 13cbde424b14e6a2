"""The child's file system: Python's standard library, read-only, and a small directory in memory."""

from __future__ import annotations

import os

from mcp_rollout.mcp_servers._jail import kernel

WORK = "/work"
_OLD = "/old"
_KEPT = {
    os.ST_NOEXEC: kernel.MS_NOEXEC,
    os.ST_NOATIME: kernel.MS_NOATIME,
    os.ST_NODIRATIME: kernel.MS_NODIRATIME,
    os.ST_RELATIME: kernel.MS_RELATIME,
}
"""Flags of a mount that an unprivileged process must keep when it remounts."""
_FOREIGN = ("site-packages", "dist-packages")
"""Directories inside the standard library's that hold other packages, possibly this one with all its tasks."""


def library_directories() -> list[str]:
    """Directories of the standard library's modules, as in `sys.path`."""
    import math

    found = [os.path.dirname(os.__file__)]
    dynload = os.path.dirname(getattr(math, "__file__", ""))
    if dynload and not dynload.startswith(found[0] + os.sep):
        found.append(dynload)
    return found


def enter(libraries: list[str], disk_mb: int) -> None:
    """Leaves the host's file system for good. The process must be alone in new mount and user namespaces.

    Args:
        libraries: Directories to show, read-only, at their own paths.
        disk_mb: Size of the writable directory.

    Raises:
        OSError: The kernel refused a step; the caller must not run the code then.
    """
    kernel.mount("none", "/", "", kernel.MS_REC | kernel.MS_PRIVATE)
    # Mounted over a directory that every system has. It becomes the root, which uncovers that directory again.
    kernel.mount("jail", "/tmp", "tmpfs", kernel.MS_NOSUID | kernel.MS_NODEV, "size=1m,nr_inodes=200,mode=0755")
    os.chdir("/tmp")
    os.mkdir("." + _OLD)
    # Not `chroot`, which can be left through a directory that was opened before: the old root is unmounted below.
    kernel.pivot_root(".", "." + _OLD)
    os.chdir("/")
    for library in libraries:
        _show(library)
    kernel.unmount(_OLD)
    os.rmdir(_OLD)
    os.mkdir(WORK)
    flags = kernel.MS_NOSUID | kernel.MS_NODEV | kernel.MS_NOEXEC
    kernel.mount("work", WORK, "tmpfs", flags, f"size={disk_mb}m,nr_inodes=500,mode=0777")
    _make_read_only("/")
    os.chdir(WORK)


def _show(library: str) -> None:
    """Mounts the directory at its path outside, without other packages."""
    os.makedirs(library)
    source = _OLD + os.path.realpath(_OLD + library).removeprefix(_OLD)
    kernel.mount(source, library, "", kernel.MS_BIND | kernel.MS_REC)
    for name in _FOREIGN:
        foreign = os.path.join(library, name)
        if os.path.isdir(foreign):
            kernel.mount("none", foreign, "tmpfs", kernel.MS_RDONLY | kernel.MS_NOSUID | kernel.MS_NODEV, "size=4k")
    _make_read_only(library)


def _make_read_only(target: str) -> None:
    present = os.statvfs(target).f_flag
    kept = sum(flag for known, flag in _KEPT.items() if present & known)
    # A bind mount ignores MS_RDONLY at first; only a remount sets it (mount(2)).
    flags = kernel.MS_REMOUNT | kernel.MS_BIND | kernel.MS_RDONLY | kernel.MS_NOSUID | kernel.MS_NODEV | kept
    kernel.mount("none", target, "", flags)
