# SPDX-License-Identifier: Apache-2.0
"""The running kernel takes the program and answers with its errnos, and differently without it."""

import ctypes
import errno
import mmap
import os
import resource
import signal
import socket
import struct
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from tests.filter.core import Core
from tests.filter.policy import NAMESPACED, NET_NONE

LIBC = ctypes.CDLL(None, use_errno=True)
PR_SET_DUMPABLE, PR_SET_NO_NEW_PRIVS = 4, 38
SYS_SECCOMP, SECCOMP_SET_MODE_FILTER = 317, 1
NOWHERE = -1 & (1 << 64) - 1  # a descriptor that is not open

Errnos = list[int]


class _Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_uint16), ("instructions", ctypes.c_char_p))


def system_call(nr: int, *args: int) -> int:
    """0 or a positive errno; every argument is passed as the 64 bits it is."""
    ctypes.set_errno(0)
    registers = [ctypes.c_uint64(value) for value in args]
    return 0 if LIBC.syscall(ctypes.c_long(nr), *registers) != -1 else ctypes.get_errno()


def attach(raw: bytes) -> None:
    """Puts the calling process under the filter for good."""
    if LIBC.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "PR_SET_NO_NEW_PRIVS")
    program = _Program(len(raw) // 8, raw)
    if LIBC.syscall(SYS_SECCOMP, SECCOMP_SET_MODE_FILTER, 0, ctypes.byref(program)):
        raise OSError(ctypes.get_errno(), "SECCOMP_SET_MODE_FILTER")


def in_child(raw: bytes | None, body: Callable[[], Errnos]) -> Errnos | signal.Signals:
    """What `body` returned in a forked child under the filter, or the signal that ended it."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            if raw is not None:
                attach(raw)
            os.write(writer, struct.pack("=64i", *(body() + [-1] * 64)[:64]))
            status = 0
        finally:
            os._exit(status)
    os.close(writer)
    with os.fdopen(reader, "rb") as pipe:
        reply = pipe.read()
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    if status < 0:
        return signal.Signals(-status)
    assert status == 0
    return [value for value in struct.unpack("=64i", reply) if value != -1]


def in_both(raw: bytes, calls: Sequence[Sequence[int]]) -> tuple[Errnos, Errnos]:
    """The errnos of the calls, under the filter and without it."""

    def body() -> Errnos:
        return [system_call(*call) for call in calls]

    filtered, control = in_child(raw, body), in_child(None, body)
    assert isinstance(filtered, list)
    assert isinstance(control, list)
    return filtered, control


REFUSED = {
    "unix stream": (errno.EPERM, (41, socket.AF_UNIX, socket.SOCK_STREAM, 0)),
    "unix datagram": (errno.EPERM, (41, socket.AF_UNIX, socket.SOCK_DGRAM, 0)),
    "unix seqpacket": (errno.EPERM, (41, socket.AF_UNIX, socket.SOCK_SEQPACKET, 0)),
    "unix raw": (errno.EPERM, (41, socket.AF_UNIX, socket.SOCK_RAW, 0)),
    "unix, dirty": (errno.EPERM, (41, 0x1_0000_0001, 0xFFFFFFFF_00000001, 0)),
    "unix, negative": (errno.EPERM, (41, 0xFFFFFFFF_00000001, 1, 0)),
    "sock_diag": (errno.EPROTONOSUPPORT, (41, socket.AF_NETLINK, socket.SOCK_RAW, 4)),
    "datagram pair": (errno.EPROTONOSUPPORT, (53, socket.AF_UNIX, socket.SOCK_DGRAM, 0, 0)),
    "pair of another family": (errno.EAFNOSUPPORT, (53, socket.AF_INET, 1, 0, 0)),
    "x32 getpid": (errno.EPERM, (0x40000027,)),
    "x32 socket": (errno.EPERM, (0x40000029, 1, 1, 0)),
    "io_uring_setup": (errno.ENOSYS, (425, 0, 0)),
    "clone3": (errno.ENOSYS, (435, 0, 0)),
    "clone into a user namespace": (errno.EPERM, (56, 0x10000200)),  # EINVAL with CLONE_FS
    "unshare, high bit": (errno.EPERM, (272, 1 << 63)),
    "setns": (errno.EPERM, (308, NOWHERE, 0)),
    "mount": (errno.EPERM, (165, 0, 0, 0, 0, 0)),
    "chroot": (errno.EPERM, (161, 0)),
    "name_to_handle_at": (errno.EPERM, (303, NOWHERE, 0, 0, 0, 0)),
    "keyctl": (errno.EPERM, (250, 99, 0, 0, 0)),
    "pidfd_getfd": (errno.EPERM, (438, NOWHERE, 0, 0)),
    "process_mrelease": (errno.EPERM, (448, NOWHERE, 0)),
    "TIOCSTI": (errno.EPERM, (16, NOWHERE, 0x5412, 0)),
    "TIOCSTI, dirty": (errno.EPERM, (16, NOWHERE, 0x1_0000_5412, 0)),
    "FS_IOC_SETFLAGS": (errno.EPERM, (16, NOWHERE, 0x40086602, 0)),
    "BTRFS_IOC_SNAP_CREATE_V2": (errno.EPERM, (16, NOWHERE, 0x50009417, 0)),
    "F_SETLEASE": (errno.EPERM, (72, NOWHERE, 1024, 0)),
    "F_NOTIFY": (errno.EPERM, (72, NOWHERE, 1026, 0)),
    "READ_IMPLIES_EXEC": (errno.EPERM, (135, 0x400000)),
    "ustat": (errno.EPERM, (136, 0, 0)),
}
REFUSED_OUTSIDE_NAMESPACES = {
    "semget": (errno.EPERM, (64, 0, NOWHERE, 0)),
    "mq_open": (errno.EPERM, (240, 0, 0, 0, 0)),
    "prlimit64": (errno.EPERM, (302, os.getpid(), 99, 0, 0)),
    "sched_setscheduler": (errno.EPERM, (144, os.getpid(), 0, 0)),
    "setpriority": (errno.EPERM, (141, 0, 0x7FFFFFFF, 0)),
    "ioprio_set": (errno.EPERM, (251, 1, 0x7FFFFFFF, 0)),
}
ALLOWED = {
    "getpid": (39,),
    "inet stream": (41, socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP),
    "inet datagram, flags": (41, socket.AF_INET, 0x80802, 0),
    "inet6": (41, socket.AF_INET6, socket.SOCK_STREAM, 0),
    "inet, dirty": (41, 0xFFFFFFFF_00000002, 0x1_0000_0001, 0x1_0000_0000),
    "netlink route": (41, socket.AF_NETLINK, socket.SOCK_RAW, 0),
    "skipped by a tracer": (NOWHERE,),
    "F_GETFL": (72, 0, 3, 0),
    "FIONREAD": (16, NOWHERE, 0x541B, 0),
    "FICLONE": (16, NOWHERE, 0x40049409, 0),
    "unshare(CLONE_FS)": (272, 0x200),
    "persona asked for": (135, 0xFFFFFFFF),
    "ADDR_NO_RANDOMIZE": (135, 0x40000),
    "RLIMIT_NOFILE read": (302, 0, 7, 0, 0),
    "own nice value": (141, 0, 0, 19),
    "ptrace": (101, 99, 0, 0, 0),
    "process_vm_readv": (310, os.getpid(), 0, 0, 0, 0, 1),
    "io_setup": (206, 0, 0),
    "memfd_create": (319, 0, 0),
    "above every table": (1000,),
}


def test_refused_calls_have_the_filters_errno(core: Core) -> None:
    table = REFUSED | REFUSED_OUTSIDE_NAMESPACES
    filtered, control = in_both(core.result()[1], [call for _, call in table.values()])
    assert dict(zip(table, filtered, strict=True)) == {k: v for k, (v, _) in table.items()}
    same = [name for name, a, b in zip(table, filtered, control, strict=True) if a == b]
    assert same == [], "these prove nothing: the kernel says the same without the filter"


@pytest.mark.parametrize("flags", [0, NAMESPACED])
def test_allowed_calls_get_the_kernels_own_answer(core: Core, flags: int) -> None:
    filtered, control = in_both(core.result(flags)[1], list(ALLOWED.values()))
    assert dict(zip(ALLOWED, filtered, strict=True)) == dict(zip(ALLOWED, control, strict=True))


def test_no_network_leaves_netlink_and_pairs(core: Core) -> None:
    with mmap.mmap(-1, mmap.PAGESIZE) as page:
        pair = ctypes.addressof(ctypes.c_char.from_buffer(page))
        calls = [
            (41, socket.AF_INET, socket.SOCK_STREAM, 0),
            (41, socket.AF_INET6, socket.SOCK_DGRAM, 0),
            (41, socket.AF_NETLINK, socket.SOCK_RAW, 0),
            (53, socket.AF_UNIX, socket.SOCK_STREAM, 0, pair),
            (53, socket.AF_UNIX, socket.SOCK_SEQPACKET, 0, pair),
        ]
        filtered, control = in_both(core.result(NET_NONE)[1], calls)
    assert filtered == [errno.EPERM, errno.EPERM, 0, 0, 0]
    assert [control[0], *control[2:]] == [0, 0, 0, 0]
    assert control[1] != errno.EPERM  # a host may lack IPv6


def test_namespaces_lift_the_rows_about_other_processes(core: Core) -> None:
    calls = [call for _, call in REFUSED_OUTSIDE_NAMESPACES.values()]
    filtered, control = in_both(core.result(NAMESPACED)[1], calls)
    assert filtered == control


def test_the_core_limit_only_seems_to_be_written(core: Core) -> None:
    above_hard = bytearray(struct.pack("=QQ", 2, 1))  # EINVAL, if the kernel gets to see it
    address = ctypes.addressof(ctypes.c_char.from_buffer(above_hard))
    calls = [(302, 0, resource.RLIMIT_CORE, address, 0), (160, resource.RLIMIT_CORE, address)]
    filtered, control = in_both(core.result()[1], calls)
    assert (filtered, control) == ([0, 0], [errno.EINVAL, errno.EINVAL])

    def body() -> Errnos:
        before = resource.getrlimit(resource.RLIMIT_CORE)
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        return [int(resource.getrlimit(resource.RLIMIT_CORE) == before)]

    assert in_child(core.result()[1], body) == [1]


def test_a_lease_is_refused_on_a_file_of_ones_own(core: Core, tmp_path: Path) -> None:
    path = tmp_path / "readable"
    path.touch()
    with path.open() as readable:
        lease = (72, readable.fileno(), 1024, 0)  # F_RDLCK
        filtered, control = in_both(core.result()[1], [lease])
    assert (filtered, control) == ([errno.EPERM], [0])


def int_0x80_getpid() -> Errnos:
    """getpid in the 32-bit numbering, from 64-bit code: mov eax, 20; int 0x80; ret."""
    LIBC.prctl(PR_SET_DUMPABLE, 0, 0, 0, 0)  # no core file of what is about to be killed
    code = b"\xb8\x14\x00\x00\x00\xcd\x80\xc3"
    page = mmap.mmap(-1, mmap.PAGESIZE, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
    page.write(code)
    address = ctypes.addressof(ctypes.c_char.from_buffer(page))
    return [int(ctypes.CFUNCTYPE(ctypes.c_int)(address)() == os.getpid())]


def test_a_call_of_the_32_bit_numbering_kills(core: Core) -> None:
    filtered, control = in_child(core.result()[1], int_0x80_getpid), in_child(None, int_0x80_getpid)
    if control == [1]:
        assert filtered == signal.SIGSYS
    else:  # a kernel without IA32 emulation faults before it asks any filter
        assert (filtered, control) == (signal.SIGSEGV, signal.SIGSEGV)


def test_without_the_architecture_row_it_goes_through(core: Core) -> None:
    row = core.row_names().index("architecture")
    control = in_child(None, int_0x80_getpid)
    assert in_child(core.result(0, row)[1], int_0x80_getpid) == control
