# SPDX-License-Identifier: Apache-2.0
"""What the filter must answer, written down a second time.

From the kernel's syscall_64.tbl and headers, as numbers, and never from csrc/seccomp.c: a typing
error in either place makes the two disagree.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import product
from typing import Final

from tests.filter.bpf import ONES, Call

NET_NONE: Final = 1  # enum sandbox_flags
NAMESPACED: Final = 2
ALL_FLAGS: Final = (0, NET_NONE, NAMESPACED, NET_NONE | NAMESPACED)

NEWEST_JUDGED: Final = 470
X32: Final = 0x40000000

# Row by row: the answer, and the numbers that get it whatever their arguments are.
REFUSED: Final[Mapping[str, tuple[str, Mapping[int, str]]]] = {
    "io_uring": (
        "ENOSYS",
        {425: "io_uring_setup", 426: "io_uring_enter", 427: "io_uring_register"},
    ),
    "clone3": ("ENOSYS", {435: "clone3"}),
    "setns": ("EPERM", {308: "setns"}),
    "mount": (
        "EPERM",
        {
            155: "pivot_root",
            161: "chroot",
            165: "mount",
            166: "umount2",
            428: "open_tree",
            429: "move_mount",
            430: "fsopen",
            431: "fsconfig",
            432: "fsmount",
            433: "fspick",
            442: "mount_setattr",
        },
    ),
    "mount_listing": (
        "ENOSYS",
        {457: "statmount", 458: "listmount", 467: "open_tree_attr", 470: "listns"},
    ),
    "file_handle": ("EPERM", {303: "name_to_handle_at", 304: "open_by_handle_at"}),
    "fanotify": ("EPERM", {300: "fanotify_init", 301: "fanotify_mark"}),
    "attributes_at": (
        "ENOSYS",
        {
            463: "setxattrat",
            464: "getxattrat",
            465: "listxattrat",
            466: "removexattrat",
            468: "file_getattr",
            469: "file_setattr",
        },
    ),
    "lsm_attributes": (
        "ENOSYS",
        {459: "lsm_get_self_attr", 460: "lsm_set_self_attr", 461: "lsm_list_modules"},
    ),
    "quota": ("EPERM", {163: "acct", 179: "quotactl", 443: "quotactl_fd"}),
    "swap": ("EPERM", {167: "swapon", 168: "swapoff"}),
    "module": (
        "EPERM",
        {
            174: "create_module",
            175: "init_module",
            176: "delete_module",
            177: "get_kernel_syms",
            178: "query_module",
            313: "finit_module",
        },
    ),
    "reboot": ("EPERM", {169: "reboot", 246: "kexec_load", 320: "kexec_file_load"}),
    "hostname": ("EPERM", {170: "sethostname", 171: "setdomainname"}),
    "clock": (
        "EPERM",
        {159: "adjtimex", 164: "settimeofday", 227: "clock_settime", 305: "clock_adjtime"},
    ),
    "console": ("EPERM", {103: "syslog", 153: "vhangup"}),
    "processor": ("EPERM", {154: "modify_ldt", 172: "iopl", 173: "ioperm"}),
    "bpf": ("EPERM", {321: "bpf"}),
    "perf": ("EPERM", {298: "perf_event_open"}),
    "userfaultfd": ("EPERM", {323: "userfaultfd"}),
    "memfd_secret": ("ENOSYS", {447: "memfd_secret"}),
    "key": ("EPERM", {248: "add_key", 249: "request_key", 250: "keyctl"}),
    "process": (
        "EPERM",
        {
            256: "migrate_pages",
            279: "move_pages",
            312: "kcmp",
            438: "pidfd_getfd",
            440: "process_madvise",
            448: "process_mrelease",
        },
    ),
    "obsolete": (
        "EPERM",
        {
            134: "uselib",
            136: "ustat",
            139: "sysfs",
            156: "_sysctl",
            180: "nfsservctl",
            181: "getpmsg",
            182: "putpmsg",
            183: "afs_syscall",
            184: "tuxcall",
            185: "security",
            212: "lookup_dcookie",
            236: "vserver",
        },
    ),
}

# Left out inside namespaces.
IPC: Final[Mapping[int, str]] = {
    29: "shmget",
    30: "shmat",
    31: "shmctl",
    64: "semget",
    65: "semop",
    66: "semctl",
    67: "shmdt",
    68: "msgget",
    69: "msgsnd",
    70: "msgrcv",
    71: "msgctl",
    220: "semtimedop",
    240: "mq_open",
    241: "mq_unlink",
    242: "mq_timedsend",
    243: "mq_timedreceive",
    244: "mq_notify",
    245: "mq_getsetattr",
}

IOCTL, SOCKET, SOCKETPAIR, CLONE, FCNTL = 16, 41, 53, 56, 72
PERSONALITY, SETRLIMIT, UNSHARE, PRLIMIT64 = 135, 160, 272, 302
SETPRIORITY, IOPRIO_SET = 141, 251
SCHED_SETPARAM, SCHED_SETSCHEDULER, SCHED_SETATTR = 142, 144, 314

AF_UNIX, AF_INET, AF_INET6, AF_NETLINK = 1, 2, 10, 16
CORE: Final = 4  # RLIMIT_CORE

REFUSED_IOCTLS: Final = frozenset(
    {
        0x5412,  # TIOCSTI
        0x541C,  # TIOCLINUX
        0x541D,  # TIOCCONS
        0x5423,  # TIOCSETD
        0x540C,  # TIOCEXCL
        0xC0506617,  # FS_IOC_ADD_ENCRYPTION_KEY
        0xC0406618,  # FS_IOC_REMOVE_ENCRYPTION_KEY
        0xC0406619,  # FS_IOC_REMOVE_ENCRYPTION_KEY_ALL_USERS
        0x40086602,  # FS_IOC_SETFLAGS
        0x401C5820,  # FS_IOC_FSSETXATTR
        0x40087602,  # FS_IOC_SETVERSION
        0x40086604,  # EXT4_IOC_SETVERSION_OLD
        0x40806685,  # FS_IOC_ENABLE_VERITY
        0x800C6613,  # FS_IOC_SET_ENCRYPTION_POLICY
        0x4008941A,  # BTRFS_IOC_SUBVOL_SETFLAGS
        0x50009401,  # BTRFS_IOC_SNAP_CREATE
        0x50009402,  # BTRFS_IOC_DEFRAG
        0x5000940E,  # BTRFS_IOC_SUBVOL_CREATE
        0x5000940F,  # BTRFS_IOC_SNAP_DESTROY
        0x50009417,  # BTRFS_IOC_SNAP_CREATE_V2
        0x50009418,  # BTRFS_IOC_SUBVOL_CREATE_V2
        0x5000943F,  # BTRFS_IOC_SNAP_DESTROY_V2
    }
)
ALLOWED_IOCTLS: Final = frozenset(
    {
        0x5401,  # TCGETS
        0x5402,  # TCSETS
        0x540E,  # TIOCSCTTY
        0x5410,  # TIOCSPGRP
        0x5411,  # TIOCOUTQ, beside TIOCSTI
        0x5413,  # TIOCGWINSZ
        0x541B,  # FIONREAD
        0x541E,  # TIOCGSERIAL
        0x5421,  # FIONBIO
        0x5422,  # TIOCNOTTY
        0x5424,  # TIOCGETD
        0x5451,  # FIOCLEX
        0x80045430,  # TIOCGPTN
        0x80086601,  # FS_IOC_GETFLAGS
        0x801C581F,  # FS_IOC_FSGETXATTR
        0x40049409,  # FICLONE
        0x4020940D,  # FICLONERANGE
        0xC0189436,  # FIDEDUPERANGE
        0x80089419,  # BTRFS_IOC_SUBVOL_GETFLAGS
        0,
    }
)
F_SETLEASE, F_NOTIFY, F_SETDELEG = 1024, 1026, 1040
NAMESPACES: Final = {
    "CLONE_NEWNS": 0x00020000,
    "CLONE_NEWCGROUP": 0x02000000,
    "CLONE_NEWUTS": 0x04000000,
    "CLONE_NEWIPC": 0x08000000,
    "CLONE_NEWUSER": 0x10000000,
    "CLONE_NEWPID": 0x20000000,
    "CLONE_NEWNET": 0x40000000,
}
CLONE_PARENT: Final = 0x8000
# CLONE_VM FS FILES SIGHAND THREAD SYSVSEM: what unshare(2) takes besides namespaces.
UNSHARE_HARMLESS: Final = (0x100, 0x200, 0x400, 0x800, 0x10000, 0x40000)
PERSONALITIES: Final = (0, 0x8, 0x20000, 0x40000, 0x20008, 0x40008, ONES)


def _socket(args: Sequence[int], flags: int) -> str:
    family, kind, protocol = (value & ONES for value in args[:3])
    if family == AF_UNIX:
        return "EPERM"
    if family in (AF_INET, AF_INET6):
        if flags & NET_NONE:
            return "EPERM"
        if protocol not in (0, 1, 6, 17, 58):
            return "EPROTONOSUPPORT"
        return "ALLOW" if kind % 16 in (1, 2) else "EPERM"
    if family == AF_NETLINK:
        return "ALLOW" if protocol == 0 else "EPROTONOSUPPORT"
    return "EAFNOSUPPORT"


def _socketpair(args: Sequence[int], flags: int) -> str:
    if args[0] & ONES != AF_UNIX:
        return "EAFNOSUPPORT"
    return "ALLOW" if args[1] % 16 in (1, 5) else "EPROTONOSUPPORT"


def _ioctl(args: Sequence[int], flags: int) -> str:
    request = args[1] & ONES
    volume = 0x50009400 <= request <= 0x500094FF
    return "EPERM" if request in REFUSED_IOCTLS or volume else "ALLOW"


def _fcntl(args: Sequence[int], flags: int) -> str:
    return "EPERM" if args[1] & ONES in (F_SETLEASE, F_NOTIFY, F_SETDELEG) else "ALLOW"


def _clone(args: Sequence[int], flags: int) -> str:
    refused = sum(NAMESPACES.values()) | CLONE_PARENT
    return "EPERM" if args[0] & refused else "ALLOW"


def _unshare(args: Sequence[int], flags: int) -> str:
    return "EPERM" if args[0] & ~sum(UNSHARE_HARMLESS) else "ALLOW"


def _personality(args: Sequence[int], flags: int) -> str:
    persona = args[0] & ONES
    return "ALLOW" if persona == ONES or not persona & ~0x60008 else "EPERM"


def _prlimit64(args: Sequence[int], flags: int) -> str:
    if args[0] & ONES and not flags & NAMESPACED:
        return "EPERM"
    return "0" if args[1] & ONES == CORE and args[2] else "ALLOW"


def _setrlimit(args: Sequence[int], flags: int) -> str:
    return "0" if args[0] & ONES == CORE else "ALLOW"


def _priority_of_user(user: int) -> Callable[[Sequence[int], int], str]:
    def answer(args: Sequence[int], flags: int) -> str:
        if flags & NAMESPACED:
            return "ALLOW"
        return "EPERM" if args[1] & ONES or args[0] & ONES == user else "ALLOW"

    return answer


def _scheduler(args: Sequence[int], flags: int) -> str:
    return "EPERM" if args[0] & ONES and not flags & NAMESPACED else "ALLOW"


_BY_ARGUMENTS: Final[Mapping[int, Callable[[Sequence[int], int], str]]] = {
    IOCTL: _ioctl,
    SOCKET: _socket,
    SOCKETPAIR: _socketpair,
    CLONE: _clone,
    FCNTL: _fcntl,
    PERSONALITY: _personality,
    SETRLIMIT: _setrlimit,
    UNSHARE: _unshare,
    PRLIMIT64: _prlimit64,
    SETPRIORITY: _priority_of_user(2),
    IOPRIO_SET: _priority_of_user(3),
    SCHED_SETPARAM: _scheduler,
    SCHED_SETSCHEDULER: _scheduler,
    SCHED_SETATTR: _scheduler,
}

_BY_NUMBER: Final[Mapping[int, str]] = {
    number: answer for answer, numbers in REFUSED.values() for number in numbers
}


def depends_on_arguments(nr: int, flags: int) -> bool:
    scheduler = (SETPRIORITY, IOPRIO_SET, SCHED_SETPARAM, SCHED_SETSCHEDULER, SCHED_SETATTR)
    return nr in _BY_ARGUMENTS and not (flags & NAMESPACED and nr in scheduler)


def expected(call: Call, flags: int = 0) -> str:
    """The answer in the words of bpf.describe."""
    if call.arch != 0xC000003E:
        return "KILL_PROCESS"
    nr = call.nr & ONES
    if nr == ONES:
        return "ALLOW"
    if nr >= X32:
        return "EPERM"
    if nr > NEWEST_JUDGED or 337 <= nr <= 423:
        return "ENOSYS"
    if nr in IPC and not flags & NAMESPACED:
        return "EPERM"
    if nr in _BY_ARGUMENTS:
        return _BY_ARGUMENTS[nr]([*call.args, *[0] * (6 - len(call.args))], flags)
    return _BY_NUMBER.get(nr, "ALLOW")


# Values worth trying for each argument that is looked at, as the low 32 bits.
_FAMILIES = (0, 1, 2, 3, 10, 11, 16, 17, 38, 40, 44, 257, ONES)
_TYPES = (*range(16), 0x80001, 0x80801, 0x802, 0x80005, 0x8080A, 0x11, 0x10002)
_PROTOCOLS = (0, 1, 2, 3, 5, 6, 7, 16, 17, 18, 33, 50, 57, 58, 59, 132, 136, 255, 256, 262, ONES)
_SIGCHLD = 17
_CLONE_FLAGS = (
    0,
    _SIGCHLD,
    0x003D0F00,  # pthread_create: VM FS FILES SIGHAND THREAD SYSVSEM SETTLS PARENT_SETTID CLEARTID
    0x01200000 | _SIGCHLD,  # fork
    0x4100 | _SIGCHLD,  # vfork
    0x00001000,  # PIDFD
    0x80000000,  # IO
    0x00100000,  # PARENT_SETTID, UNSHARE_EMPTY_MNTNS to unshare
    0x80,  # NEWTIME to unshare
    CLONE_PARENT,
    *NAMESPACES.values(),
    *UNSHARE_HARMLESS,
    0x10020000 | _SIGCHLD,
    0xFFFFFFFF,
)
_REQUESTS = (*sorted(REFUSED_IOCTLS | ALLOWED_IOCTLS), 0x500093FF, 0x50009500, ONES)
_IDS = (0, 1, 2, 3, 4, 1234, ONES)
_RESOURCES = (0, 3, 4, 5, 7, 15, 16, ONES)

_LOW: Final[Mapping[int, tuple[tuple[int, ...], ...]]] = {
    IOCTL: ((0, ONES), _REQUESTS),
    SOCKET: (_FAMILIES, _TYPES, _PROTOCOLS),
    SOCKETPAIR: (_FAMILIES, _TYPES, (0, 1)),
    CLONE: (_CLONE_FLAGS,),
    FCNTL: ((0, ONES), (*range(17), *range(1020, 1045), ONES)),
    PERSONALITY: (
        (*PERSONALITIES, 1, 2, 6, 9, 0x10000, 0x80000, 0x100000, 0x400000, 0x440000, ONES - 1),
    ),
    SETRLIMIT: (_RESOURCES,),
    UNSHARE: (_CLONE_FLAGS,),
    PRLIMIT64: (_IDS, _RESOURCES, (0, 1, 0x1000)),
    SETPRIORITY: (_IDS, _IDS),
    IOPRIO_SET: (_IDS, _IDS),
    SCHED_SETPARAM: (_IDS,),
    SCHED_SETSCHEDULER: (_IDS, (0, 3)),
    SCHED_SETATTR: (_IDS,),
}

DIRTY: Final = (0x1_0000_0000, 0xFFFF_FFFF_0000_0000, 0x7FFF_0000_0000_0000)


def argument_calls() -> Iterator[Call]:
    """Every combination of interesting low words, with clean and with dirty high words."""
    for nr, values in _LOW.items():
        for args in product(*values):
            yield Call(nr, args)
            for dirt in DIRTY:
                yield Call(nr, tuple(value | dirt for value in args))
            for place in range(len(args)):
                dirty = list(args)
                dirty[place] |= DIRTY[0]
                yield Call(nr, tuple(dirty))


def argument_samples() -> Iterator[Call]:
    """About two thousand: each value once beside usual ones, and whole ranges of some."""
    for nr, values in _LOW.items():
        usual = [column[0] for column in values]
        if nr == SOCKET:
            usual = [AF_INET, 1, 0]
        for place, column in enumerate(values):
            for value in column:
                args = [*usual[:place], value, *usual[place + 1 :]]
                yield Call(nr, tuple(args))
                yield Call(nr, (*args[:place], value | DIRTY[0], *args[place + 1 :]))
    yield from (Call(SOCKET, (family, 1, 0)) for family in range(300))
    yield from (Call(SOCKETPAIR, (family, 1, 0)) for family in range(300))
    yield from (Call(SOCKET, (AF_INET6, 2, protocol)) for protocol in range(300))
    yield from (Call(SOCKET, (AF_NETLINK, 3, protocol)) for protocol in range(32))
    yield from (Call(SOCKETPAIR, (AF_UNIX, kind, 0)) for kind in range(16))
    yield from (Call(PRLIMIT64, (pid, CORE, new)) for pid in _IDS for new in (0, 1, 1 << 32))


def number_calls() -> Iterator[Call]:
    """Numbers of every numbering, without arguments."""
    yield from (Call(nr) for nr in range(601))
    yield from (Call(nr) for nr in (1000, 4096, 0xFFFF, 0x10000, 0x3FFFFFFF))
    yield from (Call(X32 + nr) for nr in range(0x300))
    yield from (Call(nr) for nr in (0x40001000, 0x7FFFFFFF, 0x80000000, 0xC0000029))
    yield from (Call(nr) for nr in (-1, -2, -512, 0xFFFFFFFF, 0xFFFFFFFE))
    for arch in (0x40000003, 0, 0xC00000B7, 0x4000003E, 0xFFFFFFFF):
        yield from (Call(nr, arch=arch) for nr in (*range(472), 1000, X32, -1))
