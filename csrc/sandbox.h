/* SPDX-License-Identifier: Apache-2.0
 *
 * The whole C interface of the sandbox core: Landlock + seccomp confinement of a child process.
 *
 * Conventions.  A function returns 0 or a negative errno.  `ret_…` is written on success only,
 * `reterr_…` on failure only; neither is touched otherwise.  Nothing here parses text, logs, or
 * ends the process.  Every descriptor the core creates is O_CLOEXEC at birth.
 */
#ifndef SANDBOX_H
#define SANDBOX_H

#include <linux/filter.h>
#include <stddef.h>
#include <stdint.h>

#define SANDBOX_VERSION "0.1.0"
#define SANDBOX_ABI_FLOOR 3  /* TRUNCATE: below it an outside file can be emptied (Linux 6.2) */
#define SANDBOX_ABI_NEWEST 9 /* newest Landlock ABI whose rights this core knows */

/* What a root grants.  Files mask the rights that only make sense on directories by themselves. */
enum sandbox_access {
	SANDBOX_READ = 1,   /* open for reading, list */
	SANDBOX_WRITE = 2,  /* write, truncate, create, remove, rename; never device nodes */
	SANDBOX_EXEC = 4,   /* execute, and read (a program must be mapped) */
	SANDBOX_DEVICE = 8, /* ioctl on a device node; only beside READ or WRITE */
};

/* Where a confinement failed; also the order in which it is set up. */
enum sandbox_stage {
	SANDBOX_STAGE_NONE = 0,
	SANDBOX_STAGE_KERNEL,      /* Landlock missing, disabled, or below the floor */
	SANDBOX_STAGE_RULESET,     /* landlock_create_ruleset(2) */
	SANDBOX_STAGE_RULE,        /* landlock_add_rule(2) */
	SANDBOX_STAGE_FILTER,      /* assembling the seccomp program */
	SANDBOX_STAGE_DESCRIPTORS, /* parent: /dev/null, stack, low slots */
	SANDBOX_STAGE_CLONE,       /* clone3(2) */
	/* from here on in the child, in this order */
	SANDBOX_STAGE_SESSION,      /* umask(2), setsid(2), PR_SET_PDEATHSIG */
	SANDBOX_STAGE_TERMINAL,     /* TIOCSCTTY */
	SANDBOX_STAGE_KEYRING,      /* keyctl(KEYCTL_JOIN_SESSION_KEYRING) */
	SANDBOX_STAGE_CWD,          /* fchdir(2) */
	SANDBOX_STAGE_LIMITS,       /* prlimit64(2) */
	SANDBOX_STAGE_CAPABILITIES, /* bounding set, securebits, capset(2) */
	SANDBOX_STAGE_NO_NEW_PRIVS, /* prctl(PR_SET_NO_NEW_PRIVS) */
	SANDBOX_STAGE_LANDLOCK,     /* landlock_restrict_self(2) */
	SANDBOX_STAGE_FILES,        /* close_range(2) with UNSHARE: an own descriptor table */
	SANDBOX_STAGE_STDIO,        /* dup3(2) */
	SANDBOX_STAGE_SECCOMP,      /* seccomp(2) */
	SANDBOX_STAGE_CLOSE,        /* close_range(2) of everything above stderr */
	SANDBOX_STAGE_SIGNALS,      /* dispositions, mask */
	SANDBOX_STAGE_EXEC,         /* execve(2) */
	SANDBOX_STAGE_COUNT,
};

struct sandbox_failure {
	int32_t stage; /* enum sandbox_stage */
	int32_t error; /* positive errno */
	int64_t index; /* STAGE_RULE: which rule; STAGE_LIMITS: which limit; else -1 */
};

/* What this kernel enforces.  `handled_*` is what a ruleset made by this core handles. */
struct sandbox_status {
	int32_t abi;        /* effective ABI: min(kernel, cap, SANDBOX_ABI_NEWEST) */
	int32_t kernel_abi; /* what the kernel reports */
	uint32_t errata;    /* LANDLOCK_CREATE_RULESET_ERRATA bit mask, 0 where not reported */
	uint64_t handled_fs;
	uint64_t handled_net; /* handled only with SANDBOX_NET_NONE */
	uint64_t scoped;
};

/* max_abi: 0 = no cap; else behave as on a kernel of that ABI (tests).
 * -ENOSYS: not built into the kernel; -EOPNOTSUPP: built but not enabled at boot;
 * -ERANGE: below the floor (ret_status IS filled in this case, to say what was found). */
int sandbox_status(uint32_t max_abi, struct sandbox_status *ret_status);

struct sandbox_rule {
	int32_t fd;      /* O_PATH descriptor of the root; borrowed, never re-resolved */
	uint32_t access; /* enum sandbox_access bits */
};

/* Options shared by ruleset, filter and plan. */
enum sandbox_flags {
	SANDBOX_NET_NONE = 1,      /* no INET sockets; TCP rights handled with no port allowed */
	SANDBOX_NAMESPACED = 2,    /* own pid+ipc namespaces: IPC and scheduler rows are left out */
	SANDBOX_UNCONFINED = 4,    /* plan only: no Landlock, no filter, capabilities kept */
	SANDBOX_PDEATHSIG = 8,     /* plan only: SIGKILL when the spawning thread ends */
	SANDBOX_KEEP_SESSION = 16, /* plan only: no setsid (the caller's terminal is shared) */
	SANDBOX_KEEP_KEYRING =
		32, /* plan only: the caller already joined a fresh session keyring */
};

/* One ruleset holding every right the kernel offers (two stacked layers would break rename).
 * weaken_fs: rights left unhandled; 0 except when a test proves that the proof notices. */
int sandbox_ruleset(const struct sandbox_rule *rules, size_t n_rules, uint32_t flags,
		    uint32_t max_abi, uint64_t weaken_fs, int *ret_fd,
		    struct sandbox_failure *reterr_failure);

#define SANDBOX_FILTER_MAX 512
struct sandbox_filter {
	uint16_t length;
	struct sock_filter instructions[SANDBOX_FILTER_MAX];
};

/* omit_row: -1, or the index of a row of the table to leave out (tests). */
int sandbox_filter(uint32_t flags, int omit_row, struct sandbox_filter *ret_filter);

/* Row of the filter table, for tests and documentation. NULL past the end. */
const char *sandbox_filter_row_name(size_t row);

struct sandbox_limit {
	uint32_t resource; /* RLIMIT_* */
	uint64_t soft, hard;
};

struct sandbox_plan {
	const char *path;        /* executable; no PATH search here */
	const char *const *argv; /* NULL-terminated */
	const char *const *envp; /* NULL-terminated */
	int32_t cwd_fd;          /* directory, -1: keep */
	int32_t stdio[3];        /* -1: /dev/null */
	int32_t terminal_fd;     /* pty slave to become the controlling terminal, -1: none */
	int32_t cgroup_fd;       /* cgroup v2 directory to be born in, -1: none */
	int32_t ruleset_fd;
	uint32_t flags; /* enum sandbox_flags */
	uint32_t umask;
	const struct sandbox_filter *filter;
	const struct sandbox_limit *limits;
	size_t n_limits; /* RLIMIT_CORE is always frozen at 1 besides */
};

struct sandbox_child {
	int32_t pid;
	int32_t pidfd; /* owned by the caller */
};

/* Spawns with vfork semantics: returns when the child has exec'ed or failed; on failure the child
 * is reaped.  Thread-safe.  Cost does not depend on the size of the process. */
int sandbox_spawn(const struct sandbox_plan *plan, struct sandbox_child *ret_child,
		  struct sandbox_failure *reterr_failure);

/* Takes low descriptor numbers for the stdio of coming spawns, so that a spawn from a process with
 * thousands of open descriptors need not copy its table. Called by the first spawn; call it
 * earlier, while low numbers are free. Idempotent, thread-safe. */
int sandbox_reserve(void);

/* Starts a thread of this process that is under the filter, without capabilities and in a fresh
 * session keyring for good; later confined spawns with the same flags (SANDBOX_NET_NONE,
 * SANDBOX_NAMESPACED) are made by it and cost an unconfined spawn, as only the Landlock domain is
 * left to set.  Freezes RLIMIT_CORE of the whole process at 1. Call it when the process has its
 * final ids and groups, from one thread; `filter` must live as long as the process. Lasting and
 * idempotent; a fork of the process does without. */
int sandbox_spawner(uint32_t flags, const struct sandbox_filter *filter,
		    struct sandbox_failure *reterr_failure);

/* Confines the calling thread for good: stages SESSION to LANDLOCK and SECCOMP. plan->path, argv,
 * envp, stdio and cgroup_fd are unused; descriptors, dispositions and the signal mask are left
 * alone. For single-threaded callers that exec next: confine(1) and the self-test. Never call it on
 * a thread of a daemon. */
int sandbox_confine_self(const struct sandbox_plan *plan, struct sandbox_failure *reterr_failure);

/* The self-test: really confines forked children and compares each answer with an unfiltered
 * control. */
struct sandbox_weakness {   /* all zero/-1: none.  Tests use it to show that the proof notices. */
	int32_t omit_row;   /* filter row left out, -1 none */
	uint64_t weaken_fs; /* Landlock fs rights left unhandled */
	uint32_t keep;      /* bit 0: keep capabilities; bit 1: keep scopes off; bit 2: keep session
			       keyring */
};

struct sandbox_proof_row {
	const char *name;  /* snake_case, stable */
	const char *claim; /* one sentence */
	int32_t expected;  /* errno the confined child must see; 0 = must succeed; -SIGSYS etc.:
			      killed by signal */
	int32_t confined;  /* what it saw */
	int32_t control;   /* what the same call gave unfiltered */
	int32_t ok; /* confined == expected, and the control differs where a denial is claimed */
	int32_t skipped; /* 1: not applicable on this kernel (says why in claim) */
};

/* directory: writable, used for a private tree that is removed again. */
int sandbox_selftest(const char *directory, uint32_t max_abi,
		     const struct sandbox_weakness *weakness, struct sandbox_proof_row *rows,
		     size_t capacity, size_t *ret_n_rows);

const char *sandbox_stage_name(int stage); /* "landlock"; never NULL */

/* The baseline: what ordinary tools need of the system besides the roots. NULL path past the end.
 */
struct sandbox_baseline_row {
	const char *path;
	uint32_t access;
	uint32_t
		resolve; /* 1: a symlink that must be followed to the file it names (resolv.conf) */
};
const struct sandbox_baseline_row *sandbox_baseline(size_t row);

#endif
