/* SPDX-License-Identifier: Apache-2.0
 *
 * The system call filter: one table of refusals, and the assembler that turns it into classic BPF.
 *
 * What is in the table is refused, everything else is allowed: a deny list, with allow-lists inside
 * it where a deny list cannot be complete (socket families and protocols, personality, unshare) and
 * around it (numbers that nobody has judged yet do not exist).  Landlock holds the file system, the
 * filter holds what Landlock has no hook for.  It sees registers only, never memory: paths, socket
 * addresses and struct clone_args are out of its sight, so it does not stop chmod(2) of a path
 * outside the roots, connect(2) on the loopback, or a signal.
 *
 * A condition compares exactly the bits that the kernel will use: the low 32 where its parameter is
 * an int, all 64 where it is a pointer or a long.  Garbage in the upper half neither hides a call
 * (CVE-2019-10063, CVE-2019-7303) nor makes an innocent one look guilty.
 *
 * Answers.  EPERM says "policy", also where this kernel may lack the call (x32), so that a proof
 * can tell the filter from the kernel.  ENOSYS where software has a way to do without. EAFNOSUPPORT
 * and EPROTONOSUPPORT as a kernel without that family or protocol says them.
 */
#include "kernel.h"
#include "sandbox.h"

#include <errno.h>
#include <linux/audit.h>
#include <linux/btrfs.h>
#include <linux/fcntl.h>
#include <linux/fs.h>
#include <linux/fscrypt.h>
#include <linux/fsverity.h>
#include <linux/ioprio.h>
#include <linux/personality.h>
#include <linux/sched.h>
#include <linux/seccomp.h>
#include <netinet/in.h>
#include <stdbool.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/resource.h>
#include <sys/socket.h>

/*
 * Numbers that musl 1.2.3 or the headers of Linux 6.1 do not name, by introduction.  Whoever judges
 * a newer call adds it here or leaves it allowed, and moves NEWEST_JUDGED; until then it is ENOSYS.
 */
#define NR_quotactl_fd 443       /* Linux 5.14 */
#define NR_memfd_secret 447      /* 5.14 */
#define NR_process_mrelease 448  /* 5.15 */
#define NR_statmount 457         /* 6.8 */
#define NR_listmount 458         /* 6.8 */
#define NR_lsm_get_self_attr 459 /* 6.8 */
#define NR_lsm_list_modules 461  /* 6.8 */
#define NR_setxattrat 463        /* 6.13 */
#define NR_removexattrat 466     /* 6.13 */
#define NR_open_tree_attr 467    /* 6.15 */
#define NR_file_getattr 468      /* 6.17 */
#define NR_file_setattr 469      /* 6.17 */
#define NR_listns 470            /* 6.19 */
#define NEWEST_JUDGED 470

/* 335 uretprobe (6.11) and 336 uprobe (6.18) are issued by the kernel's own trampolines. */
#define FIRST_UNASSIGNED 337
#define LAST_UNASSIGNED 423 /* 387 to 423 will never be given out, says syscall_64.tbl */

#define X32_BIT 0x40000000U    /* __X32_SYSCALL_BIT */
#define SKIPPED 0xffffffffU    /* -1: a tracer took the call away (seccomp(2), ptrace(2)) */
#define SOCKET_TYPE_MASK 0xfU  /* SOCK_TYPE_MASK; the flags are above */
#define KERNEL_F_SETDELEG 1040 /* F_LINUX_SPECIFIC_BASE + 16, Linux 6.19 */

#define WHOLE 0xffffffffU
#define ERRNO(error) (SECCOMP_RET_ERRNO | (error))

enum kind {
	IS_ONE_OF,      /* low word & mask is one of the values */
	IS_NONE_OF,     /* low word & mask is none of the values */
	HAS_ANY_BIT,    /* low word & mask is not 0 */
	HAS_BIT_BEYOND, /* one of the 64 bits outside mask is set */
};

struct test {
	uint8_t argument;
	uint8_t kind;
	uint8_t n_values;
	uint32_t mask;
	uint32_t values[7];
};

struct span {
	uint32_t first, last;
};

/* For these numbers, when every test holds, this answer.  The first row that holds wins. */
struct row {
	const char *name;
	uint32_t answer;
	uint16_t only;   /* sandbox_flags without which the row is left out */
	uint16_t unless; /* sandbox_flags with which the row is left out */
	uint8_t n_spans, n_tests;
	struct span spans[7];
	struct test tests[2];
};

#define NAMESPACE_FLAGS                                                                \
	(CLONE_NEWNS | CLONE_NEWCGROUP | CLONE_NEWUTS | CLONE_NEWIPC | CLONE_NEWUSER | \
	 CLONE_NEWPID | CLONE_NEWNET)

enum { ROW_ARCHITECTURE }; /* judged before there is a number to look up, so it has no spans */

/* clang-format off */
#define COUNT(type, ...) (sizeof((const type[]){__VA_ARGS__}) / sizeof(type))
#define ONE(number) { (number), (number) }
#define ON(...) .n_spans = COUNT(struct span, __VA_ARGS__), .spans = { __VA_ARGS__ }
#define WHEN(...) .n_tests = COUNT(struct test, __VA_ARGS__), .tests = { __VA_ARGS__ }
#define LISTED(n, is, bits, ...) { .argument = (n), .kind = (is), .mask = (bits), \
	.n_values = COUNT(uint32_t, __VA_ARGS__), .values = { __VA_ARGS__ } }
#define ONE_OF(n, ...) LISTED(n, IS_ONE_OF, WHOLE, __VA_ARGS__)
#define NONE_OF(n, ...) LISTED(n, IS_NONE_OF, WHOLE, __VA_ARGS__)
#define MASKED_ONE_OF(n, bits, ...) LISTED(n, IS_ONE_OF, bits, __VA_ARGS__)
#define MASKED_NONE_OF(n, bits, ...) LISTED(n, IS_NONE_OF, bits, __VA_ARGS__)
#define ANY_BIT(n, bits) { .argument = (n), .kind = HAS_ANY_BIT, .mask = (bits) }
#define BIT_BEYOND(n, bits) { .argument = (n), .kind = HAS_BIT_BEYOND, .mask = (bits) }
#define NOT_ZERO(n) NONE_OF(n, 0)
#define NOT_NULL(n) BIT_BEYOND(n, 0)

static const struct row table[] = {
	/*
	 * Other numberings.  Every number below means something else to int 0x80: socket is 359
	 * there, and socketcall 102.  No program mixes the two, so SIGSYS says it best.  x32 shares
	 * our architecture value and sets bit 30; a kernel without x32 answers ENOSYS by itself.
	 */
	[ROW_ARCHITECTURE] = { "architecture", SECCOMP_RET_KILL_PROCESS },
	{ "x32", ERRNO(EPERM), ON({ X32_BIT, SKIPPED - 1 }) },

	/*
	 * Numbers without a meaning yet, and those of kernels newer than this table: setxattrat and
	 * file_setattr came after the filters that were meant to refuse what they do.  Also the
	 * x32-only handlers 512 to 547, which kernels before 5.4 ran for native callers as well.
	 */
	{ "unassigned", ERRNO(ENOSYS), ON({ FIRST_UNASSIGNED, LAST_UNASSIGNED }) },
	{ "unjudged", ERRNO(ENOSYS), ON({ NEWEST_JUDGED + 1, X32_BIT - 1 }) },

	/*
	 * socket(int, int, int).  A Unix socket reaches the host's daemons, by path or abstract
	 * name; below ABI 9 Landlock does not see it.  Netlink only to ask for interfaces and
	 * routes: sock_diag lists every socket of the host.  MPTCP, SCTP, SMC and the like pass by
	 * Landlock's TCP rules.  With protocol 0 the type chooses (inet_create takes the first of
	 * its type): 5 is SCTP, 6 is DCCP; 10 (SOCK_PACKET) becomes a packet socket.
	 */
	{ "socket_unix", ERRNO(EPERM), ON(ONE(SYS_socket)), WHEN(ONE_OF(0, AF_UNIX)) },
	{ "socket_inet", ERRNO(EPERM), .only = SANDBOX_NET_NONE, ON(ONE(SYS_socket)),
	  WHEN(ONE_OF(0, AF_INET, AF_INET6)) },
	{ "socket_family", ERRNO(EAFNOSUPPORT), ON(ONE(SYS_socket)),
	  WHEN(NONE_OF(0, AF_INET, AF_INET6, AF_NETLINK)) },
	{ "socket_netlink", ERRNO(EPROTONOSUPPORT), ON(ONE(SYS_socket)),
	  WHEN(ONE_OF(0, AF_NETLINK), NONE_OF(2, 0 /* NETLINK_ROUTE */)) },
	{ "socket_protocol", ERRNO(EPROTONOSUPPORT), .unless = SANDBOX_NET_NONE,
	  ON(ONE(SYS_socket)),
	  WHEN(NONE_OF(2, IPPROTO_IP, IPPROTO_TCP, IPPROTO_UDP, IPPROTO_ICMP, IPPROTO_ICMPV6)) },
	{ "socket_type", ERRNO(EPERM), .unless = SANDBOX_NET_NONE, ON(ONE(SYS_socket)),
	  WHEN(ONE_OF(0, AF_INET, AF_INET6),
	       MASKED_NONE_OF(1, SOCKET_TYPE_MASK, SOCK_STREAM, SOCK_DGRAM)) },

	/*
	 * socketpair(int, int, int, int *).  A datagram end can be aimed at a host socket later, by
	 * connect or sendto, and SOCK_RAW is a datagram socket in AF_UNIX.  Stream and seqpacket
	 * ends cannot (EISCONN).
	 */
	{ "socketpair_family", ERRNO(EAFNOSUPPORT), ON(ONE(SYS_socketpair)),
	  WHEN(NONE_OF(0, AF_UNIX)) },
	{ "socketpair_type", ERRNO(EPROTONOSUPPORT), ON(ONE(SYS_socketpair)),
	  WHEN(MASKED_NONE_OF(1, SOCKET_TYPE_MASK, SOCK_STREAM, SOCK_SEQPACKET)) },

	/*
	 * Second doors.  A ring opens sockets and sets attributes without a system call to judge;
	 * enter and register too, in case a ring was inherited.
	 */
	{ "io_uring", ERRNO(ENOSYS), ON({ SYS_io_uring_setup, SYS_io_uring_register }) },

	/*
	 * New namespaces, and new places to be.  clone3's flags are in memory, and it can put the
	 * child into a cgroup by an O_PATH descriptor that Landlock does not see; every libc falls
	 * back to clone, of whose flags the kernel takes lower_32_bits().  CLONE_PARENT would make
	 * our supervisor the parent of a stranger.  unshare takes a long; an allow-list, because
	 * 0x100000 means UNSHARE_EMPTY_MNTNS since 7.1.
	 */
	{ "clone3", ERRNO(ENOSYS), ON(ONE(NR_clone3)) },
	{ "clone", ERRNO(EPERM), ON(ONE(SYS_clone)),
	  WHEN(ANY_BIT(0, NAMESPACE_FLAGS | CLONE_PARENT)) },
	{ "unshare", ERRNO(EPERM), ON(ONE(SYS_unshare)),
	  WHEN(BIT_BEYOND(0, CLONE_VM | CLONE_FS | CLONE_FILES | CLONE_SIGHAND | CLONE_THREAD |
			     CLONE_SYSVSEM)) },
	{ "setns", ERRNO(EPERM), ON(ONE(SYS_setns)) },

	/*
	 * Mounts.  Landlock refuses most of these, but has no hook in mount_setattr, chroot, fsopen
	 * or statmount.  The calls of 6.8 and later are answered as an older kernel does: libmount
	 * then reads /proc/self/mountinfo, and open_tree_attr becomes open_tree.
	 */
	{ "mount", ERRNO(EPERM),
	  ON({ SYS_mount, SYS_umount2 }, ONE(SYS_pivot_root), ONE(SYS_chroot),
	     { SYS_open_tree, SYS_fspick }, ONE(SYS_mount_setattr)) },
	{ "mount_listing", ERRNO(ENOSYS),
	  ON({ NR_statmount, NR_listmount }, ONE(NR_open_tree_attr), ONE(NR_listns)) },

	/* Files, and namespaces since 6.18, by handle, not path; events that hold up opens. */
	{ "file_handle", ERRNO(EPERM), ON({ SYS_name_to_handle_at, SYS_open_by_handle_at }) },
	{ "fanotify", ERRNO(EPERM), ON({ SYS_fanotify_init, SYS_fanotify_mark }) },

	/*
	 * Attributes by path, for which Landlock has no right.  The older calls stay: cp and tar
	 * need them.  These are new enough that everything still falls back.
	 */
	{ "attributes_at", ERRNO(ENOSYS),
	  ON({ NR_setxattrat, NR_removexattrat }, { NR_file_getattr, NR_file_setattr }) },

	/* An AppArmor profile may allow a change to a laxer one (aa_change_profile). */
	{ "lsm_attributes", ERRNO(ENOSYS), ON({ NR_lsm_get_self_attr, NR_lsm_list_modules }) },

	/*
	 * The machine.  All of it needs a capability that the child no longer has: the second line
	 * behind the first, and code of the kernel that the child cannot even enter.
	 */
	{ "quota", ERRNO(EPERM), ON(ONE(SYS_quotactl), ONE(NR_quotactl_fd), ONE(SYS_acct)) },
	{ "swap", ERRNO(EPERM), ON({ SYS_swapon, SYS_swapoff }) },
	{ "module", ERRNO(EPERM),
	  ON({ SYS_create_module, SYS_query_module }, ONE(SYS_finit_module)) },
	{ "reboot", ERRNO(EPERM),
	  ON(ONE(SYS_reboot), ONE(SYS_kexec_load), ONE(SYS_kexec_file_load)) },
	{ "hostname", ERRNO(EPERM), ON({ SYS_sethostname, SYS_setdomainname }) },
	{ "clock", ERRNO(EPERM),
	  ON(ONE(SYS_settimeofday), ONE(SYS_adjtimex), ONE(SYS_clock_settime),
	     ONE(SYS_clock_adjtime)) },
	{ "console", ERRNO(EPERM), ON(ONE(SYS_syslog), ONE(SYS_vhangup)) },
	{ "processor", ERRNO(EPERM), ON({ SYS_iopl, SYS_ioperm }, ONE(SYS_modify_ldt)) },

	/* Code and traps inside the kernel: where most of its local root exploits began. */
	{ "bpf", ERRNO(EPERM), ON(ONE(SYS_bpf)) },
	{ "perf", ERRNO(EPERM), ON(ONE(SYS_perf_event_open)) },
	{ "userfaultfd", ERRNO(EPERM), ON(ONE(SYS_userfaultfd)) },

	/* Memory that root cannot inspect, and that keeps the host from hibernating. */
	{ "memfd_secret", ERRNO(ENOSYS), ON(ONE(NR_memfd_secret)) },

	/*
	 * Keyrings belong to the uid and the login, not to a directory.  KEYCTL_SESSION_TO_PARENT
	 * replaces that of the parent; request_key runs a program on the host.
	 */
	{ "key", ERRNO(EPERM), ON({ SYS_add_key, SYS_keyctl }) },

	/*
	 * Other processes.  Landlock's ptrace rule covers them, except from a privileged caller on
	 * new kernels (may_access_mm).  ptrace and process_vm_readv stay, for gdb and strace.
	 */
	{ "process", ERRNO(EPERM),
	  ON(ONE(SYS_migrate_pages), ONE(SYS_move_pages), ONE(SYS_kcmp), ONE(SYS_pidfd_getfd),
	     ONE(SYS_process_madvise), ONE(NR_process_mrelease)) },

	/* Long gone from Linux, or never there; a patched kernel may think otherwise. */
	{ "obsolete", ERRNO(EPERM),
	  ON(ONE(SYS_uselib), ONE(SYS_ustat), ONE(SYS_sysfs), ONE(SYS__sysctl),
	     { SYS_nfsservctl, SYS_security }, ONE(SYS_lookup_dcookie), ONE(SYS_vserver)) },

	/*
	 * ioctl(unsigned int, unsigned int, unsigned long).  Typing into the terminal of whoever
	 * started us, pasting into a console, taking its output, loading line disciplines.
	 */
	{ "ioctl_terminal", ERRNO(EPERM), ON(ONE(SYS_ioctl)),
	  WHEN(ONE_OF(1, TIOCSTI, TIOCLINUX, TIOCCONS, TIOCSETD, TIOCEXCL)) },
	/*
	 * Changes for which a descriptor opened for reading is enough, and where Landlock has no
	 * hook: of flags and generation, into a verity file (read-only for good), into an encrypted
	 * directory; on btrfs, subvolumes made and destroyed by name (all requests that carry a
	 * struct btrfs_ioctl_vol_args).  FICLONE has the same type byte and stays: cp needs it.
	 */
	{ "ioctl_attributes", ERRNO(EPERM), ON(ONE(SYS_ioctl)),
	  WHEN(ONE_OF(1, (uint32_t)FS_IOC_SETFLAGS, (uint32_t)FS_IOC_FSSETXATTR,
		      (uint32_t)FS_IOC_SETVERSION, (uint32_t)_IOW('f', 4, long),
		      (uint32_t)FS_IOC_ENABLE_VERITY, (uint32_t)FS_IOC_SET_ENCRYPTION_POLICY,
		      (uint32_t)BTRFS_IOC_SUBVOL_SETFLAGS)) },
	/* The keys of an encrypted filesystem are the user's: removed, all his files there are locked. */
	{ "ioctl_keys", ERRNO(EPERM), ON(ONE(SYS_ioctl)),
	  WHEN(ONE_OF(1, (uint32_t)FS_IOC_ADD_ENCRYPTION_KEY, (uint32_t)FS_IOC_REMOVE_ENCRYPTION_KEY,
		      (uint32_t)FS_IOC_REMOVE_ENCRYPTION_KEY_ALL_USERS)) },
	{ "ioctl_subvolume", ERRNO(EPERM), ON(ONE(SYS_ioctl)),
	  WHEN(MASKED_ONE_OF(1, 0xffffff00U, (uint32_t)BTRFS_IOC_SUBVOL_CREATE & 0xffffff00U)) },

	/*
	 * fcntl(unsigned int, unsigned int, unsigned long).  A lease or delegation on a file that
	 * may only be read stalls every writer outside for 45 s; dnotify is inotify with signals.
	 */
	{ "fcntl_lease", ERRNO(EPERM), ON(ONE(SYS_fcntl)),
	  WHEN(ONE_OF(1, F_SETLEASE, F_NOTIFY, KERNEL_F_SETDELEG)) },

	/*
	 * personality(unsigned int).  Asking, linux32, uname26 and gdb's fixed addresses; not
	 * READ_IMPLIES_EXEC, MMAP_PAGE_ZERO or the layouts of other systems.
	 */
	{ "personality", ERRNO(EPERM), ON(ONE(SYS_personality)),
	  WHEN(NONE_OF(0, 0xffffffffU),
	       ANY_BIT(0, ~(uint32_t)(PER_LINUX32 | UNAME26 | ADDR_NO_RANDOMIZE))) },

	/*
	 * System V and POSIX IPC: objects of the whole uid, in no directory.  An IPC namespace
	 * makes them the child's own; PostgreSQL and fakeroot need one.
	 */
	{ "ipc", ERRNO(EPERM), .unless = SANDBOX_NAMESPACED,
	  ON({ SYS_shmget, SYS_shmctl }, { SYS_semget, SYS_msgctl }, ONE(SYS_semtimedop),
	     { SYS_mq_open, SYS_mq_getsetattr }) },

	/*
	 * Limits and priorities of processes outside; a PID namespace has none.  pid_t and who are
	 * ints.  Which USER with who 0 is every process of the uid.  sched_setaffinity stays open:
	 * pthread_setaffinity_np passes a thread id.
	 */
	{ "prlimit_other", ERRNO(EPERM), .unless = SANDBOX_NAMESPACED,
	  ON(ONE(SYS_prlimit64)), WHEN(NOT_ZERO(0)) },
	{ "setpriority_other", ERRNO(EPERM), .unless = SANDBOX_NAMESPACED,
	  ON(ONE(SYS_setpriority)), WHEN(NOT_ZERO(1)) },
	{ "setpriority_user", ERRNO(EPERM), .unless = SANDBOX_NAMESPACED,
	  ON(ONE(SYS_setpriority)), WHEN(ONE_OF(0, PRIO_USER)) },
	{ "ioprio_other", ERRNO(EPERM), .unless = SANDBOX_NAMESPACED,
	  ON(ONE(SYS_ioprio_set)), WHEN(NOT_ZERO(1)) },
	{ "ioprio_user", ERRNO(EPERM), .unless = SANDBOX_NAMESPACED,
	  ON(ONE(SYS_ioprio_set)), WHEN(ONE_OF(0, IOPRIO_WHO_USER)) },
	{ "sched_other", ERRNO(EPERM), .unless = SANDBOX_NAMESPACED,
	  ON(ONE(SYS_sched_setparam), ONE(SYS_sched_setscheduler), ONE(SYS_sched_setattr)),
	  WHEN(NOT_ZERO(0)) },

	/*
	 * RLIMIT_CORE stays 1, the only value at which a core_pattern pipe does not run on the host
	 * with the child's data (do_coredump), or the child would lower it to 0.  `ulimit -c 0` is
	 * told that it worked; the old limit, if asked for in the same call, is not filled in.
	 */
	{ "core_prlimit", ERRNO(0), ON(ONE(SYS_prlimit64)),
	  WHEN(ONE_OF(1, RLIMIT_CORE), NOT_NULL(2)) },
	{ "core_setrlimit", ERRNO(0), ON(ONE(SYS_setrlimit)), WHEN(ONE_OF(0, RLIMIT_CORE)) },
};
/* clang-format on */

#define N_ROWS (sizeof(table) / sizeof(table[0]))
_Static_assert(N_ROWS <= 64, "a set of rows is one 64-bit word");

const char *sandbox_filter_row_name(size_t row)
{
	return row < N_ROWS ? table[row].name : NULL;
}

/*
 * Theory of operation.
 *
 * Attaching costs more than running: the kernel checks, converts and compiles the program (0.15 us
 * an instruction on a 2-core virtual machine under Linux 6.18) and then emulates it for every
 * number it knows, to find those that are always allowed and never need the filter again
 * (seccomp_cache_prepare; more than 1 us for each step of the average path).  So the program is a
 * binary tree over runs of numbers with equal answers, balanced by how many numbers lie on each
 * side, and an always-allowed number is decided by nothing but loads of arch and nr.  A single
 * number between two equal runs is taken out by one equality test instead of two comparisons.
 *
 * It is written backwards, from the last instruction to the first: jumps only go forward, so the
 * place of every target is known.  A label is the distance of an instruction from the end.
 */

#define N_SLOTS (NEWEST_JUDGED + 4) /* every judged number, then unjudged, x32, skipped */
#define MAX_LONE 3        /* numbers taken out in a row; beyond, a comparison is cheaper */
#define CUT_PENALTY 40    /* what a split beside a lone number costs, counted in numbers */
#define LONGEST_JUMP 255U /* jt and jf are 8 bit */
#define MAX_ANSWERS 16    /* as many are remembered; a further one is written again */
#define MAX_VERDICTS 16   /* likewise */

/* What happens to a number: the first of these rows that holds, else this answer. */
struct verdict {
	uint64_t rows;
	uint32_t otherwise;
};

struct run {
	uint32_t first;
	struct verdict verdict;
};

/* A word of seccomp_data with a mask on it: what the accumulator holds. */
struct operand {
	uint32_t offset, mask;
};

static const struct operand NOTHING = {UINT32_MAX, 0};

struct assembler {
	unsigned used; /* instructions so far, at the end of `code` */
	bool full;
	unsigned n_answers, n_verdicts;
	struct {
		uint32_t answer;
		unsigned label;
	} answers[MAX_ANSWERS];
	struct {
		struct verdict verdict;
		unsigned label;
	} verdicts[MAX_VERDICTS];
	struct sock_filter code[SANDBOX_FILTER_MAX];
};

static bool active(const struct row *row, uint32_t flags, int omit_row)
{
	return row - table != omit_row && (flags & row->only) == row->only &&
	       !(flags & row->unless);
}

/* The numbers above the newest judged one only differ by class. */
static size_t slot_of(uint32_t number)
{
	if (number <= NEWEST_JUDGED)
		return number;
	if (number < X32_BIT)
		return NEWEST_JUDGED + 1;
	return number < SKIPPED ? NEWEST_JUDGED + 2 : NEWEST_JUDGED + 3;
}

static uint32_t first_of(size_t slot)
{
	static const uint32_t above[] = {NEWEST_JUDGED + 1, X32_BIT, SKIPPED};
	return slot <= NEWEST_JUDGED ? (uint32_t)slot : above[slot - NEWEST_JUDGED - 1];
}

/* Nothing after a row without a condition is ever tried. */
static struct verdict verdict_of(uint64_t rows)
{
	struct verdict verdict = {0, SECCOMP_RET_ALLOW};

	for (; rows; rows &= rows - 1) {
		const struct row *row = &table[__builtin_ctzll(rows)];
		if (!row->n_tests) {
			verdict.otherwise = row->answer;
			break;
		}
		verdict.rows |= rows & -rows;
	}
	return verdict;
}

static bool same(struct verdict a, struct verdict b)
{
	return a.rows == b.rows && a.otherwise == b.otherwise;
}

/* Returns how many runs there are; one more is written, to mark the end of the last. */
static size_t find_runs(uint32_t flags, int omit_row, struct run *runs)
{
	uint64_t rows[N_SLOTS] = {0};
	size_t n = 0;

	for (size_t i = 0; i < N_ROWS; i++) {
		if (!active(&table[i], flags, omit_row))
			continue;
		for (size_t j = 0; j < table[i].n_spans; j++) {
			const struct span *span = &table[i].spans[j];
			for (size_t slot = slot_of(span->first); slot <= slot_of(span->last);
			     slot++)
				rows[slot] |= 1ULL << i;
		}
	}
	for (size_t slot = 0; slot < N_SLOTS; slot++) {
		struct verdict verdict = verdict_of(rows[slot]);
		if (!n || !same(runs[n - 1].verdict, verdict))
			runs[n++] = (struct run){first_of(slot), verdict};
	}
	runs[n] = (struct run){UINT32_MAX, {0, 0}};
	return n;
}

static unsigned emit(struct assembler *a, unsigned code, unsigned jt, unsigned jf, uint32_t k)
{
	if (a->used == SANDBOX_FILTER_MAX) {
		a->full = true;
		return a->used;
	}
	a->code[SANDBOX_FILTER_MAX - ++a->used] =
		(struct sock_filter){(uint16_t)code, (uint8_t)jt, (uint8_t)jf, k};
	return a->used;
}

/* A target that is too far for a conditional jump is reached by way of an unconditional one. */
static unsigned within(struct assembler *a, unsigned target, unsigned reach)
{
	if (a->used - target <= reach)
		return target;
	return emit(a, BPF_JMP | BPF_JA, 0, 0, a->used - target);
}

static unsigned branch(struct assembler *a, unsigned op, uint32_t k, unsigned yes, unsigned no)
{
	yes = within(a, yes, LONGEST_JUMP - 1); /* the way to `no` may still come between */
	no = within(a, no, LONGEST_JUMP);
	return emit(a, BPF_JMP | op | BPF_K, a->used - yes, a->used - no, k);
}

/* One return for each answer; a further one where the last is out of reach. */
static unsigned emit_answer(struct assembler *a, uint32_t answer)
{
	unsigned i = 0, label;

	while (i < a->n_answers && a->answers[i].answer != answer)
		i++;
	if (i < a->n_answers && a->used - a->answers[i].label < LONGEST_JUMP)
		return a->answers[i].label;
	label = emit(a, BPF_RET | BPF_K, 0, 0, answer);
	if (i < MAX_ANSWERS) {
		a->answers[i].answer = answer;
		a->answers[i].label = label;
		a->n_answers += i == a->n_answers;
	}
	return label;
}

static bool same_operand(struct operand a, struct operand b)
{
	return a.offset == b.offset && a.mask == b.mask;
}

/* What the accumulator holds after the test, on every way out of it. x86-64 is little-endian. */
static struct operand operand_of(const struct test *test)
{
	uint32_t offset = (uint32_t)offsetof(struct seccomp_data, args) + 8U * test->argument;

	switch (test->kind) {
	case IS_ONE_OF:
	case IS_NONE_OF:
		return (struct operand){offset, test->mask};
	case HAS_ANY_BIT:
		return (struct operand){offset, WHOLE};
	default:
		return NOTHING;
	}
}

static unsigned emit_load(struct assembler *a, uint32_t offset)
{
	return emit(a, BPF_LD | BPF_W | BPF_ABS, 0, 0, offset);
}

/* Goes to `hit` when the masked word is one of the values, else to `miss`. */
static unsigned emit_values(struct assembler *a, const struct test *test, unsigned hit,
			    unsigned miss)
{
	for (size_t i = test->n_values; i-- > 0;)
		miss = branch(a, BPF_JEQ, test->values[i], hit, miss);
	return miss;
}

static unsigned emit_bit_beyond(struct assembler *a, const struct test *test, unsigned yes,
				unsigned no)
{
	uint32_t low = (uint32_t)offsetof(struct seccomp_data, args) + 8U * test->argument;
	unsigned label = branch(a, BPF_JEQ, 0, no, yes);

	label = emit_load(a, low + 4);
	branch(a, BPF_JSET, ~test->mask, yes, label);
	return emit_load(a, low);
}

/* Returns the label of the test; `loaded` is what the accumulator holds there. */
static unsigned emit_test(struct assembler *a, const struct test *test, struct operand loaded,
			  unsigned yes, unsigned no)
{
	struct operand operand = operand_of(test);
	unsigned label;

	switch (test->kind) {
	case IS_ONE_OF:
		label = emit_values(a, test, yes, no);
		break;
	case IS_NONE_OF:
		label = emit_values(a, test, no, yes);
		break;
	case HAS_ANY_BIT:
		label = branch(a, BPF_JSET, test->mask, yes, no);
		break;
	default:
		return emit_bit_beyond(a, test, yes, no);
	}
	if (same_operand(operand, loaded))
		return label;
	if (operand.mask != WHOLE)
		label = emit(a, BPF_ALU | BPF_AND | BPF_K, 0, 0, operand.mask);
	if (operand.offset == loaded.offset && loaded.mask == WHOLE)
		return label;
	return emit_load(a, operand.offset);
}

static unsigned emit_row(struct assembler *a, const struct row *row, struct operand loaded,
			 unsigned next)
{
	unsigned label = emit_answer(a, row->answer);

	for (size_t i = row->n_tests; i-- > 0;)
		label = emit_test(a, &row->tests[i], i ? operand_of(&row->tests[i - 1]) : loaded,
				  label, next);
	return label;
}

/* What the accumulator holds when the row did not hold, whichever of its tests said so. */
static struct operand left_by(const struct row *row)
{
	struct operand operand = operand_of(&row->tests[0]);

	for (size_t i = 1; i < row->n_tests; i++)
		if (!same_operand(operand, operand_of(&row->tests[i])))
			return NOTHING;
	return operand;
}

static unsigned emit_rows(struct assembler *a, struct verdict verdict, struct operand loaded)
{
	const struct row *row;
	unsigned next;

	if (!verdict.rows)
		return emit_answer(a, verdict.otherwise);
	row = &table[__builtin_ctzll(verdict.rows)];
	verdict.rows &= verdict.rows - 1;
	next = emit_rows(a, verdict, left_by(row));
	return emit_row(a, row, loaded, next);
}

/* The same rows on several numbers (sched_set…) are written once. */
static unsigned emit_verdict(struct assembler *a, struct verdict verdict)
{
	unsigned label;

	for (unsigned i = 0; i < a->n_verdicts; i++)
		if (same(a->verdicts[i].verdict, verdict))
			return a->verdicts[i].label;
	label = emit_rows(a, verdict, NOTHING);
	if (verdict.rows && a->n_verdicts < MAX_VERDICTS) {
		a->verdicts[a->n_verdicts].verdict = verdict;
		a->verdicts[a->n_verdicts++].label = label;
	}
	return label;
}

/* A single number whose neighbours on both sides get the same answer. */
static bool is_lone(const struct run *runs, size_t i, size_t low, size_t high)
{
	return i > low && i + 1 < high && runs[i + 1].first - runs[i].first == 1 &&
	       same(runs[i - 1].verdict, runs[i + 1].verdict);
}

/* How many numbers of real calls come before the run: those the kernel emulates. */
static uint32_t numbers_before(const struct run *run)
{
	return run->first < NEWEST_JUDGED ? run->first : NEWEST_JUDGED;
}

static size_t best_split(const struct run *runs, size_t low, size_t high)
{
	uint32_t start = numbers_before(&runs[low]), end = numbers_before(&runs[high]);
	uint32_t best_cost = UINT32_MAX;
	size_t best = low + 1;

	for (size_t i = low + 1; i < high; i++) {
		uint32_t left = numbers_before(&runs[i]) - start;
		uint32_t right = end - numbers_before(&runs[i]);
		uint32_t cost = left > right ? left : right;

		if (is_lone(runs, i - 1, low, high) || is_lone(runs, i, low, high))
			cost += CUT_PENALTY;
		if (cost < best_cost) {
			best_cost = cost;
			best = i;
		}
	}
	return best;
}

/* Whether every other run from `first_lone` on is one number, and those between are equal. */
static bool alternates(const struct run *runs, size_t low, size_t high, size_t first_lone)
{
	size_t base = first_lone == low ? low + 1 : low;

	for (size_t i = first_lone; i < high; i += 2)
		if (runs[i + 1].first - runs[i].first != 1)
			return false;
	for (size_t i = base; i < high; i += 2)
		if (!same(runs[i].verdict, runs[base].verdict))
			return false;
	return (high - first_lone + 1) / 2 <= MAX_LONE;
}

static unsigned emit_lone(struct assembler *a, const struct run *runs, size_t low, size_t high,
			  size_t first_lone)
{
	unsigned rest = emit_verdict(a, runs[first_lone == low ? low + 1 : low].verdict);

	for (size_t i = high; i-- > first_lone;)
		if ((i - first_lone) % 2 == 0) {
			unsigned hit = emit_verdict(a, runs[i].verdict);
			rest = branch(a, BPF_JEQ, runs[i].first, hit, rest);
		}
	return rest;
}

/* The tree over runs [low, high), for a number that is known to be in one of them. */
static unsigned emit_tree(struct assembler *a, const struct run *runs, size_t low, size_t high)
{
	size_t middle;
	unsigned left, right;

	if (high - low == 1)
		return emit_verdict(a, runs[low].verdict);
	if (alternates(runs, low, high, low + 1))
		return emit_lone(a, runs, low, high, low + 1);
	if (alternates(runs, low, high, low))
		return emit_lone(a, runs, low, high, low);
	middle = best_split(runs, low, high);
	right = emit_tree(a, runs, middle, high);
	left = emit_tree(a, runs, low, middle);
	return branch(a, BPF_JGE, runs[middle].first, right, left);
}

static void emit_program(struct assembler *a, const struct run *runs, size_t n_runs,
			 bool any_architecture)
{
	unsigned native, foreign;

	emit_tree(a, runs, 0, n_runs);
	native = emit_load(a, offsetof(struct seccomp_data, nr));
	if (any_architecture)
		return;
	foreign = emit_answer(a, table[ROW_ARCHITECTURE].answer);
	branch(a, BPF_JEQ, AUDIT_ARCH_X86_64, native, foreign);
	emit_load(a, offsetof(struct seccomp_data, arch));
}

/* -EINVAL: no such row. -E2BIG: more than SANDBOX_FILTER_MAX instructions. */
int sandbox_filter(uint32_t flags, int omit_row, struct sandbox_filter *ret_filter)
{
	struct assembler a;
	struct run runs[N_SLOTS + 1];

	if (omit_row < -1 || omit_row >= (int)N_ROWS)
		return -EINVAL;
	a.used = a.n_answers = a.n_verdicts = 0;
	a.full = false;
	emit_program(&a, runs, find_runs(flags, omit_row, runs), omit_row == ROW_ARCHITECTURE);
	if (a.full)
		return -E2BIG;
	ret_filter->length = (uint16_t)a.used;
	memcpy(ret_filter->instructions, &a.code[SANDBOX_FILTER_MAX - a.used],
	       a.used * sizeof(a.code[0]));
	return 0;
}
