# SPDX-License-Identifier: Apache-2.0
"""The same policy said to libseccomp, as far as it can be said there; writes the program to stdout.

Run by the distribution's interpreter, which the `seccomp` module belongs to: reference.py FLAGS.
libseccomp has no number ranges, no "none of these values" and one answer for every foreign
numbering.  So the numbers above those it knows of are given one by one, allow-lists are turned
round within the domain below, and x32 is left to the other tests.
"""

import errno
import sys
from collections.abc import Iterator
from importlib import import_module
from itertools import product
from typing import Any

SECCOMP = import_module("seccomp")  # untyped, and not of the interpreter that checks types
Arg, MASKED_EQ, NE = SECCOMP.Arg, SECCOMP.MASKED_EQ, SECCOMP.NE

NET_NONE, NAMESPACED = 1, 2


def words(text: str) -> list[str]:
    return text.split()


# The common domain: within it, each value that is not allowed has its own rule.
FAMILIES = range(48)
TYPES = range(16)
PROTOCOLS = range(64)

EPERM = words("""
    setns mount umount2 pivot_root chroot open_tree move_mount fsopen fsconfig fsmount fspick
    mount_setattr name_to_handle_at open_by_handle_at fanotify_init fanotify_mark quotactl
    quotactl_fd acct swapon swapoff create_module init_module delete_module get_kernel_syms
    query_module finit_module reboot kexec_load kexec_file_load sethostname setdomainname
    settimeofday adjtimex clock_settime clock_adjtime syslog vhangup iopl ioperm modify_ldt bpf
    perf_event_open userfaultfd add_key request_key keyctl migrate_pages move_pages kcmp
    pidfd_getfd process_madvise process_mrelease uselib ustat sysfs _sysctl nfsservctl getpmsg
    putpmsg afs_syscall tuxcall security lookup_dcookie vserver
""")
ENOSYS = words("io_uring_setup io_uring_enter io_uring_register clone3 memfd_secret")
ENOSYS_NUMBERS = (*range(337, 424), *range(457, 462), *range(463, 471))
IPC = words("""
    shmget shmat shmctl shmdt semget semop semtimedop semctl msgget msgsnd msgrcv msgctl
    mq_open mq_unlink mq_timedsend mq_timedreceive mq_notify mq_getsetattr
""")

LOW_WORD = 0xFFFFFFFF


def low(argument: int, value: int) -> Any:
    return Arg(argument, MASKED_EQ, LOW_WORD, value)


def bits(argument: int, mask: int) -> Any:
    return Arg(argument, MASKED_EQ, mask, mask)


def others(domain: range, *allowed: int) -> Iterator[int]:
    return (value for value in domain if value not in allowed)


def refuse(rules: Any, error: int, call: str | int, *conditions: Any) -> None:
    rules.add_rule_exactly(SECCOMP.ERRNO(error), call, *conditions)


def sockets(rules: Any, flags: int) -> None:
    refuse(rules, errno.EPERM, "socket", low(0, 1))
    for family in others(FAMILIES, 1, 2, 10, 16):
        refuse(rules, errno.EAFNOSUPPORT, "socket", low(0, family))
    for protocol in others(PROTOCOLS, 0):
        refuse(rules, errno.EPROTONOSUPPORT, "socket", low(0, 16), low(2, protocol))
    for family in (2, 10):
        if flags & NET_NONE:
            refuse(rules, errno.EPERM, "socket", low(0, family))
            continue
        for protocol in others(PROTOCOLS, 0, 1, 6, 17, 58):
            refuse(rules, errno.EPROTONOSUPPORT, "socket", low(0, family), low(2, protocol))
        for kind, protocol in product(others(TYPES, 1, 2), (0, 1, 6, 17, 58)):
            wrong = Arg(1, MASKED_EQ, 0xF, kind)
            refuse(rules, errno.EPERM, "socket", low(0, family), wrong, low(2, protocol))
    for family in others(FAMILIES, 1):
        refuse(rules, errno.EAFNOSUPPORT, "socketpair", low(0, family))
    for kind in others(TYPES, 1, 5):
        wrong = Arg(1, MASKED_EQ, 0xF, kind)
        refuse(rules, errno.EPROTONOSUPPORT, "socketpair", low(0, 1), wrong)


def new_processes(rules: Any) -> None:
    namespaces = (1 << 17, 1 << 25, 1 << 26, 1 << 27, 1 << 28, 1 << 29, 1 << 30)
    for flag in (*namespaces, 1 << 15):
        refuse(rules, errno.EPERM, "clone", bits(0, flag))
    harmless = (8, 9, 10, 11, 16, 18)
    for bit in others(range(64), *harmless):
        refuse(rules, errno.EPERM, "unshare", bits(0, 1 << bit))
    for bit in others(range(32), 3, 17, 18):
        # only -1 has all bits, and -1 asks: any other persona lacks one of them
        for missing in others(range(32), bit):
            one_without_other = Arg(0, MASKED_EQ, 1 << bit | 1 << missing, 1 << bit)
            refuse(rules, errno.EPERM, "personality", one_without_other)


def requests(rules: Any) -> None:
    terminal = (0x5412, 0x541C, 0x541D, 0x5423, 0x540C)
    keys = (0xC0506617, 0xC0406618, 0xC0406619)
    attributes = (0x40086602, 0x401C5820, 0x40087602, 0x40086604, 0x40806685, 0x800C6613)
    for request in (*terminal, *keys, *attributes, 0x4008941A):
        refuse(rules, errno.EPERM, "ioctl", low(1, request))
    refuse(rules, errno.EPERM, "ioctl", Arg(1, MASKED_EQ, 0xFFFFFF00, 0x50009400))
    for command in (1024, 1026, 1040):
        refuse(rules, errno.EPERM, "fcntl", low(1, command))


def not_zero(rules: Any, call: str, argument: int) -> None:
    for bit in range(32):
        refuse(rules, errno.EPERM, call, bits(argument, 1 << bit))


def processes(rules: Any, flags: int) -> None:
    refuse(rules, 0, "setrlimit", low(0, 4))
    if flags & NAMESPACED:
        refuse(rules, 0, "prlimit64", low(1, 4), Arg(2, NE, 0))
        return
    refuse(rules, 0, "prlimit64", low(0, 0), low(1, 4), Arg(2, NE, 0))
    not_zero(rules, "prlimit64", 0)
    for call in ("sched_setparam", "sched_setscheduler", "sched_setattr"):
        not_zero(rules, call, 0)
    for call, user in (("setpriority", 2), ("ioprio_set", 3)):
        not_zero(rules, call, 1)
        refuse(rules, errno.EPERM, call, low(0, user))
    for call in IPC:
        refuse(rules, errno.EPERM, call)


def main() -> None:
    flags = int(sys.argv[1])
    rules = SECCOMP.SyscallFilter(SECCOMP.ALLOW)
    rules.set_attr(SECCOMP.Attr.ACT_BADARCH, SECCOMP.KILL_PROCESS)
    for call in EPERM:
        refuse(rules, errno.EPERM, call)
    for call in (*ENOSYS, *ENOSYS_NUMBERS):
        refuse(rules, errno.ENOSYS, call)
    sockets(rules, flags)
    new_processes(rules)
    requests(rules)
    processes(rules, flags)
    rules.export_bpf(sys.stdout)


if __name__ == "__main__":
    main()
