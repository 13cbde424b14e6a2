"""The seccomp filter: allows the system calls that Python needs to compute and to use files.

Every other call fails with EPERM: processes and threads, programs, sockets, signals to other processes, tracing,
mounts, namespaces, shared memory, io_uring, ioctl, keys, setting clocks and limits.
"""

from __future__ import annotations

import errno
import os

# https://github.com/torvalds/linux: arch/x86/entry/syscalls/syscall_64.tbl and include/uapi/asm-generic/unistd.h
_X86_64 = {
    "read": 0, "write": 1, "open": 2, "close": 3, "stat": 4, "fstat": 5, "lstat": 6, "poll": 7, "lseek": 8, "mmap": 9,
    "mprotect": 10, "munmap": 11, "brk": 12, "rt_sigaction": 13, "rt_sigprocmask": 14, "rt_sigreturn": 15,
    "pread64": 17, "pwrite64": 18, "readv": 19, "writev": 20, "access": 21, "select": 23, "sched_yield": 24,
    "mremap": 25, "madvise": 28,
    "dup": 32, "dup2": 33, "nanosleep": 35, "getpid": 39, "exit": 60, "uname": 63, "fcntl": 72, "fsync": 74,
    "ftruncate": 77, "getcwd": 79, "chdir": 80, "rename": 82, "mkdir": 83, "rmdir": 84, "unlink": 87, "readlink": 89,
    "umask": 95, "gettimeofday": 96, "getrusage": 98, "times": 100, "getuid": 102, "getgid": 104, "geteuid": 107,
    "getegid": 108, "getppid": 110, "sigaltstack": 131, "gettid": 186, "time": 201, "futex": 202, "getdents64": 217,
    "restart_syscall": 219, "clock_gettime": 228, "clock_getres": 229, "clock_nanosleep": 230, "exit_group": 231,
    "openat": 257, "mkdirat": 258, "newfstatat": 262, "unlinkat": 263, "renameat": 264, "readlinkat": 267,
    "faccessat": 269, "pselect6": 270, "ppoll": 271, "set_robust_list": 273, "dup3": 292, "renameat2": 316,
    "getrandom": 318, "statx": 332, "rseq": 334, "close_range": 436, "faccessat2": 439,
}  # fmt: skip
_AARCH64 = {
    "getcwd": 17, "dup": 23, "dup3": 24, "fcntl": 25, "mkdirat": 34, "unlinkat": 35, "renameat": 38, "ftruncate": 46,
    "faccessat": 48, "chdir": 49, "openat": 56, "close": 57, "getdents64": 61, "lseek": 62, "read": 63, "write": 64,
    "readv": 65, "writev": 66, "pread64": 67, "pwrite64": 68, "pselect6": 72, "ppoll": 73, "readlinkat": 78,
    "newfstatat": 79, "fstat": 80, "fsync": 82, "exit": 93, "exit_group": 94, "futex": 98, "set_robust_list": 99,
    "nanosleep": 101, "clock_gettime": 113, "clock_getres": 114, "clock_nanosleep": 115, "sched_yield": 124,
    "restart_syscall": 128, "sigaltstack": 132, "rt_sigaction": 134, "rt_sigprocmask": 135, "rt_sigreturn": 139,
    "times": 153, "uname": 160, "getrusage": 165, "umask": 166, "gettimeofday": 169, "getpid": 172, "getppid": 173,
    "getuid": 174, "geteuid": 175, "getgid": 176, "getegid": 177, "gettid": 178, "brk": 214, "munmap": 215,
    "mremap": 216, "mmap": 222, "mprotect": 226, "madvise": 233, "renameat2": 276, "getrandom": 278, "statx": 291,
    "rseq": 293, "close_range": 436, "faccessat2": 439,
}  # fmt: skip
_MACHINES = {"x86_64": (0xC000003E, _X86_64), "aarch64": (0xC00000B7, _AARCH64)}
"""By machine: the kernel's number for it (AUDIT_ARCH_*), and the allowed calls."""

_LOAD, _JUMP_IF_EQUAL, _JUMP_IF_AT_LEAST, _RETURN = 0x20, 0x15, 0x35, 0x06
_ALLOW, _KILL_PROCESS, _ERRNO = 0x7FFF0000, 0x80000000, 0x00050000
_NUMBER_AT, _MACHINE_AT = 0, 4
_X32 = 0x40000000


class UnknownMachine(OSError):
    """There is no list of system calls for this processor."""


def program() -> list[tuple[int, int, int, int]]:
    """The filter as BPF instructions (code, jump if true, jump if false, operand).

    Raises:
        UnknownMachine: There is no list of system calls for this processor.
    """
    machine = os.uname().machine
    if machine not in _MACHINES:
        raise UnknownMachine(f"no list of system calls for {machine}; there are {', '.join(_MACHINES)}")
    audit, calls = _MACHINES[machine]
    numbers = sorted(calls.values())
    refuse = [(_RETURN, 0, 0, _ERRNO | errno.EPERM)]
    allow = [(_RETURN, 0, 0, _ALLOW)]
    # A comparison that is true jumps over the remaining comparisons and `refuse`, to `allow`.
    compared = [(_JUMP_IF_EQUAL, len(numbers) - index, 0, number) for index, number in enumerate(numbers)]
    return [
        (_LOAD, 0, 0, _MACHINE_AT),
        (_JUMP_IF_EQUAL, 1, 0, audit),
        # Another calling convention of the same processor numbers its calls differently.
        (_RETURN, 0, 0, _KILL_PROCESS),
        (_LOAD, 0, 0, _NUMBER_AT),
        # x32 has the processor's number, too, and this bit in each call's.
        (_JUMP_IF_AT_LEAST, len(numbers), 0, _X32),
        *compared,
        *refuse,
        *allow,
    ]
