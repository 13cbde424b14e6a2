"""Start a program that can change files below given directories only, and reach given addresses only.

Run as a script: `python -I -S confined.py PATHS ADDRESSES RECORD COMMAND ARGS...`. Linux refuses the command and its
descendants to write outside PATHS (directories and files, separated by `:`) and to signal processes outside (Landlock,
https://docs.kernel.org/userspace-api/landlock.html). What Landlock leaves open, this process decides for each system
call (seccomp_unotify(2)): connections and datagrams to other than ADDRESSES (`IP PORT` and paths of sockets, separated
by `,`; `any` alone is every address), and changes of modes, owners, times and attributes outside
PATHS. A refused address answers as one without a listener does, and is appended to the file RECORD, a line each: a
name or IP with its port, or a path. Reading is not restricted, nor is asking the system's name servers. Before Linux
6.12, signals are not restricted either.
"""

from __future__ import annotations

import _socket
import ctypes
import errno
import fcntl
import os
import select
import signal
import struct
import sys
from contextlib import suppress

_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446
_VERSION_FLAG, _PATH_BENEATH, _NET_PORT = 1, 1, 2
_PR_SET_PDEATHSIG, _PR_SET_NO_NEW_PRIVS = 1, 38
_WRITE = 0b1_1111_1111_0010
"""LANDLOCK_ACCESS_FS_WRITE_FILE, and those that remove or make files and directories."""
_WRITE_FILE = 1 << 1
_REFER, _TRUNCATE = 1 << 13, 1 << 14
_CONNECT_TCP = 1 << 1
_SCOPES = 0b11
"""Abstract Unix sockets and signals."""
ANY = "any"

# fmt: off
_MACHINES = {
    "x86_64": ((0xC000003E, 317, 42, 44, 46, 307), (76, 90, 92, 94, 132, 188, 189, 197, 198, 235), (91, 93, 190, 199),
               (260, 261, 268, 280, 452, 463, 466)),
    "aarch64": ((0xC00000B7, 277, 203, 206, 211, 269), (5, 6, 14, 15, 45), (7, 16, 52, 55),
                (53, 54, 88, 452, 463, 466)),
}
# fmt: on
"""By machine: AUDIT_ARCH_*, seccomp(2), connect(2), sendto(2), sendmsg(2), sendmmsg(2); and calls that change modes,
owners, times, attributes or the length of a file, with a path as the first argument, a descriptor, and a directory."""
_AT_WORKING_DIRECTORY = -100
_IO_URING_SETUP, _X32 = 425, 0x40000000
_LOAD, _EQUAL, _AT_LEAST, _RETURN = 0x20, 0x15, 0x35, 0x06
_ALLOW, _NOTIFY, _NO_SUCH_CALL = 0x7FFF0000, 0x7FC00000, 0x00050000 | errno.ENOSYS
_RECEIVE, _SEND = 0xC0502100, 0xC0182101
_SYSTEM = ("/run/nscd/", "/var/run/nscd/", "/run/systemd/", "/var/lib/sss/", "/dev/log")
"""Sockets of the system's name services and log: refused like others, and not worth a word, since files answer too."""


def abi() -> int:
    """The version of Landlock's interface; 0 where the kernel has none, or this processor's calls are not known."""
    if not sys.platform.startswith("linux") or os.uname().machine not in _MACHINES:
        return 0
    return max(ctypes.CDLL(None).syscall(_CREATE_RULESET, None, ctypes.c_size_t(0), _VERSION_FLAG), 0)


def main() -> None:
    paths, addresses, record, command = sys.argv[1].split(":"), sys.argv[2].split(","), sys.argv[3], sys.argv[4:]
    written = os.open(record, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
    ports = {int(port) for _, _, port in (each.partition(" ") for each in addresses) if port}
    _confine(paths, None if addresses == [ANY] else ports)
    listener = _filter()
    parent = os.getpid()
    if (child := os.fork()) == 0:
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(1)
        try:
            os.execvp(command[0], command)
        except OSError as error:
            sys.stderr.write(f"{command[0]}: {error.strerror}\n")
            os._exit(127)
    for name in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(name, signal.SIG_IGN)  # for the command, which has them too
    for descriptor in (0, 1, 2):
        os.close(descriptor)
    _Supervisor(paths, addresses, written).serve(listener, os.pidfd_open(child))
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if code < 0:
        signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)  # it ends as the command did
    os._exit(code)


def _confine(paths: list[str], ports: set[int] | None) -> None:
    libc, version = ctypes.CDLL(None, use_errno=True), abi()
    write = _WRITE | (_REFER if version >= 2 else 0) | (_TRUNCATE if version >= 3 else 0)
    net = _CONNECT_TCP if version >= 4 and ports is not None else 0
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
    for port in (ports or ()) if net else ():
        _checked(libc.syscall(_ADD_RULE, ruleset, _NET_PORT, struct.pack("QQ", net, port), 0))
    # Landlock requires it, since a set-user-ID program would otherwise shed the rules.
    _checked(libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0))
    _checked(libc.syscall(_RESTRICT_SELF, ruleset, 0))
    os.close(ruleset)


def _filter() -> int:
    """Send the system calls of `_MACHINES` to the descriptor that is returned, which answers them."""
    (audit, seccomp, connect, sendto, sendmsg, sendmmsg), *changes = _MACHINES[os.uname().machine]
    numbers = sorted({connect, sendto, sendmsg, sendmmsg, *(number for group in changes for number in group)})
    refuse, allow = [(_RETURN, 0, 0, _NO_SUCH_CALL)], [(_RETURN, 0, 0, _ALLOW)]
    program = [
        *((_LOAD, 0, 0, 4), (_EQUAL, 1, 0, audit), *refuse),  # another calling convention has other numbers
        *((_LOAD, 0, 0, 0), (_AT_LEAST, 0, 1, _X32), *refuse),
        *((_EQUAL, 0, 1, _IO_URING_SETUP), *refuse),  # its operations are no system calls; programs do without
        # Data for a connection names no address: `sendto` with its fifth argument 0.
        *((_EQUAL, 0, 3, sendto), (_LOAD, 0, 0, 48), (_EQUAL, 0, 1, 0), *allow, (_LOAD, 0, 0, 0)),
        *((_EQUAL, len(numbers) - index, 0, number) for index, number in enumerate(numbers)),
        *allow,
        (_RETURN, 0, 0, _NOTIFY),
    ]
    packed = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *each) for each in program))
    given = struct.pack("HxxxxxxQ", len(program), ctypes.addressof(packed))
    return _checked(ctypes.CDLL(None, use_errno=True).syscall(seccomp, 1, 8, given))


class _Supervisor:
    """Decides about the system calls of `_MACHINES`.

    What it lets through, the kernel reads again: a program that changes its memory meanwhile is not held by this. It
    keeps ordinary programs from the user's data, and Landlock keeps all of them from writing and from other TCP ports.
    """

    def __init__(self, paths: list[str], addresses: list[str], record: int) -> None:
        self._paths, self._addresses, self._record = [os.path.realpath(path) for path in paths], addresses, record
        self._seen: set[str] = set()
        self._looked_up = ""
        """The last name that a name server was asked for."""
        self._name_servers = {"127.0.0.1"}
        with suppress(OSError), open("/etc/resolv.conf") as file:
            self._name_servers |= {line.split()[1] for line in file if line.startswith("nameserver ")}

    def serve(self, listener: int, process: int) -> None:
        """Answer until the process of this pidfd has ended."""
        poll = select.poll()
        poll.register(listener, select.POLLIN)
        poll.register(process, select.POLLIN)
        while process not in (ready := dict(poll.poll())):
            if not ready[listener] & select.POLLIN:
                return
            notice = bytearray(80)
            with suppress(OSError):  # the caller was killed meanwhile
                fcntl.ioctl(listener, _RECEIVE, notice)
                at, pid, _, number, _, _, *arguments = struct.unpack("QIIiIQ6Q", notice)
                try:
                    allowed = self._allows(pid, number, arguments)
                except OSError:
                    allowed = False  # its memory or its descriptors cannot be read
                refusal = errno.ECONNREFUSED if number in _MACHINES[os.uname().machine][0] else errno.EACCES
                answer = struct.pack("QqiI", at, 0, *((0, 1) if allowed else (-refusal, 0)))
                fcntl.ioctl(listener, _SEND, answer)

    def _allows(self, pid: int, number: int, given: list[int]) -> bool:
        (_, _, connect, sendto, sendmsg, sendmmsg), by_path, by_descriptor, _ = _MACHINES[os.uname().machine]
        with open(f"/proc/{pid}/mem", "rb", buffering=0) as memory:

            def read(at: int, size: int) -> bytes:
                return os.pread(memory.fileno(), size, at)

            if number in (connect, sendto):
                address, size = given[1:3] if number == connect else given[4:6]
                return self._reaches(pid, read(address, min(size, 128)))
            if number in (sendmsg, sendmmsg):
                most = min(given[2], 1024) if number == sendmmsg else 1
                headers = [struct.unpack("QIxxxxQ", read(given[1] + 64 * index, 24)) for index in range(most)]
                for address, _, parts in headers:
                    if not address and number == sendmmsg:
                        self._look(read(*struct.unpack("QQ", read(parts, 16))))
                return all(self._reaches(pid, read(address, min(size, 128))) for address, size, _ in headers if address)
            directory, path = (_AT_WORKING_DIRECTORY, given[0]) if number in by_path else given[:2]
            named = path and number not in by_descriptor
            return self._is_ours(pid, directory, os.fsdecode(read(path, 4096).split(b"\0")[0]) if named else "")

    def _is_ours(self, pid: int, directory: int, path: str) -> bool:
        """Whether a path, or the descriptor if it is empty, is below `paths`, or not a file at all."""
        number = ctypes.c_int(directory).value
        place = os.readlink(f"/proc/{pid}/cwd" if number == _AT_WORKING_DIRECTORY else f"/proc/{pid}/fd/{number}")
        if not path and not place.startswith("/"):
            return True  # a pipe or a socket
        real = os.path.realpath(os.path.join(place, path))
        return not os.path.lexists(real) or any(real == each or real.startswith(f"{each}/") for each in self._paths)

    def _reaches(self, pid: int, address: bytes) -> bool:
        family = int.from_bytes(address[:2], sys.byteorder)
        if family in (_socket.AF_UNSPEC, _socket.AF_NETLINK) or self._addresses == [ANY]:
            return True
        if family == _socket.AF_UNIX:
            if not (path := os.fsdecode(address[2:].split(b"\0")[0])):
                return abi() >= 6 or self._refuse("an abstract socket")  # Landlock decides, or cannot
            real = os.path.realpath(os.path.join(os.readlink(f"/proc/{pid}/cwd"), path))
            if self._is_ours(pid, _AT_WORKING_DIRECTORY, path) or real in self._addresses:
                return True
            return self._refuse("" if real.startswith(_SYSTEM) else real)
        if family not in (_socket.AF_INET, _socket.AF_INET6):
            return self._refuse(f"a socket of the family {family}")
        port = int.from_bytes(address[2:4], "big")
        packed = address[4:8] if family == _socket.AF_INET else address[8:24]
        host = _socket.inet_ntop(family, packed).removeprefix("::ffff:")
        if f"{host} {port}" in self._addresses or (port == 53 and host in self._name_servers):
            return True
        # Libraries connect to port 0 to find the address of this machine that leads there; nothing is sent.
        return self._refuse(f"{self._looked_up or f'[{host}]'.strip('[]' * (':' not in host))}:{port}" if port else "")

    def _look(self, query: bytes) -> None:
        """Remember the name in a query to a name server."""
        if query[2:3] + query[4:10] == b"\1\0\1\0\0\0\0":  # one question, and nothing else
            labels, rest = list[str](), query[12:]
            while rest and rest[0]:
                labels.append(rest[1 : rest[0] + 1].decode(errors="replace"))
                rest = rest[rest[0] + 1 :]
            self._looked_up = ".".join(labels)

    def _refuse(self, address: str) -> bool:
        if address and address not in self._seen:
            self._seen.add(address)
            os.write(self._record, f"{address}\n".encode(errors="surrogateescape"))
        return False


def _checked(result: int) -> int:
    if result < 0:
        sys.stderr.write(f"the kernel refused to confine it: {os.strerror(ctypes.get_errno())}\n")
        os._exit(126)
    return result


if __name__ == "__main__":
    main()
