/* SPDX-License-Identifier: Apache-2.0
 *
 * Spawning a confined child with vfork semantics, and confining the calling process.
 *
 * Theory of operation.  The parent prepares everything that may allocate or fail for its own
 * reasons: the ruleset, the filter program, the argument vectors.  Then it clones with
 * CLONE_VM|CLONE_VFORK: no page table is copied, so the cost does not grow with the process, and
 * the parent thread sleeps until the child has exec'ed or ended.  Because memory is shared until
 * then, the child
 *   - issues raw system calls only: libc would write errno, take locks, run handlers (tests: v02);
 *   - changes no user or group id: that would flip the dumpable flag of the shared mm (v01);
 *   - runs on a stack of its own with every signal blocked;
 *   - reports {stage, errno} by storing it in the parent's frame, which vfork makes a synchronous
 * channel: a pipe would cost four more calls and say less (docs/adr/0001). The descriptor table is
 * shared only until the child unshares it, which copies no descriptor above the ones it needs;
 * nothing in it is changed before that (v05).  Landlock, seccomp, no_new_privs and capabilities are
 * per task and do not leak back into the parent (v03).
 */
#include <errno.h>
#include <fcntl.h>
#include <linux/capability.h>
#include <linux/keyctl.h>
#include <linux/prctl.h>
#include <linux/sched.h>
#include <linux/seccomp.h>
#include <linux/securebits.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include "internal.h"
#include "kernel.h"
#include "stdfd.h"

#define ALL_SIGNALS (~0ULL)
#define KERNEL_NSIG 64
#define LANES 4 /* spawns that may overlap before one allocates a stack and copies more */
#define STACK_BYTES (16 * 1024UL)
#define HIGH_DESCRIPTOR 64 /* above it, stdio goes through a lane's low slots */

/* One spawn at a time uses a lane: a stack, and three low descriptor numbers held by /dev/null. */
static struct {
	atomic_flag busy;
	int32_t slots[3];
} lanes[LANES];
static char stacks[LANES][STACK_BYTES] __attribute__((aligned(4096)));
static pthread_mutex_t reserve_lock = PTHREAD_MUTEX_INITIALIZER;
static int null_fd = -1;

struct spawn {
	const struct sandbox_plan *plan;
	int32_t stdio[3]; /* as the child finds them */
	int32_t parent;   /* who spawns: a parent that died before PR_SET_PDEATHSIG sends no signal
			     any more */
	int inherited; /* the spawning thread is under the filter already: nothing of it is left to
			  do */
	volatile struct sandbox_failure failure;
	volatile int reached_exec;
};

/* ---- the child's steps; raw system calls only ---- */

static int fail(struct sandbox_failure *reterr_failure, int stage, long error, int64_t index)
{
	*reterr_failure =
		(struct sandbox_failure){.stage = stage, .error = (int32_t)-error, .index = index};
	return (int)error;
}

static long set_limit(uint32_t resource, uint64_t soft, uint64_t hard)
{
	struct {
		uint64_t soft, hard;
	} limit = {soft, hard};
	return raw4(SYS_prlimit64, 0, resource, (long)&limit, 0);
}

/* The value 1 makes the kernel abandon a dump to a pipe handler; 0 does not (fs/coredump.c). The
 * filter keeps it. Where a lower hard limit is in force already and may not be raised, 0 is what is
 * left. */
static long freeze_core(void)
{
	long error = set_limit(RLIMIT_CORE, 1, 1);
	return error == -EPERM ? set_limit(RLIMIT_CORE, 0, 0) : error;
}

static int apply_limits(const struct sandbox_plan *plan, int inherited,
			struct sandbox_failure *reterr_failure)
{
	for (size_t i = 0; i < plan->n_limits; i++) {
		const struct sandbox_limit *limit = &plan->limits[i];
		long error = set_limit(limit->resource, limit->soft, limit->hard);
		if (error)
			return fail(reterr_failure, SANDBOX_STAGE_LIMITS, error, (int64_t)i);
	}
	long error = inherited ? 0 : freeze_core();
	return error ? fail(reterr_failure, SANDBOX_STAGE_LIMITS, error, -1) : 0;
}

/* Everything gone from every set, for good. Without CAP_SETPCAP the bounding set and securebits
 * cannot be changed and do not matter: no_new_privs stops every way of gaining from them. */
static long drop_capabilities(void)
{
	long error = 0;
	for (long capability = 0; capability < 64 && !error; capability++)
		error = raw2(SYS_prctl, PR_CAPBSET_DROP, capability);
	if (error == -EINVAL) { /* past the last capability: the bounding set is empty */
		const long bits = SECBIT_NOROOT | SECBIT_NOROOT_LOCKED | SECBIT_NO_SETUID_FIXUP |
				  SECBIT_NO_SETUID_FIXUP_LOCKED | SECBIT_KEEP_CAPS_LOCKED |
				  SECBIT_NO_CAP_AMBIENT_RAISE | SECBIT_NO_CAP_AMBIENT_RAISE_LOCKED;
		error = raw2(SYS_prctl, PR_SET_SECUREBITS, bits);
	}
	if (error && error != -EPERM)
		return error;
	/* capset clears the ambient set with the permitted one */
	struct __user_cap_header_struct header = {.version = _LINUX_CAPABILITY_VERSION_3};
	struct __user_cap_data_struct data[2] = {{0}, {0}};
	return raw2(SYS_capset, (long)&header, (long)data);
}

/* ENOSYS: no keys in this kernel. EPERM: an outer filter refuses keyctl; then the child has no use
 * of keys either, as ours refuses all three key calls too. */
static long join_fresh_keyring(void)
{
	long serial = raw2(SYS_keyctl, KEYCTL_JOIN_SESSION_KEYRING, 0);
	return serial >= 0 || serial == -ENOSYS || serial == -EPERM ? 0 : serial;
}

static long start_session(const struct sandbox_plan *plan)
{
	raw1(SYS_umask, plan->umask);
	if (plan->flags & SANDBOX_PDEATHSIG)
		raw2(SYS_prctl, PR_SET_PDEATHSIG, SIGKILL);
	if (plan->flags & SANDBOX_KEEP_SESSION)
		return 0;
	long session = raw0(SYS_setsid);
	return session < 0 ? session : 0;
}

static int enter(const struct sandbox_plan *plan, int inherited,
		 struct sandbox_failure *reterr_failure)
{
	long error = start_session(plan);
	if (error)
		return fail(reterr_failure, SANDBOX_STAGE_SESSION, error, -1);
	if (plan->terminal_fd >= 0 && (error = raw3(SYS_ioctl, plan->terminal_fd, TIOCSCTTY, 0)))
		return fail(reterr_failure, SANDBOX_STAGE_TERMINAL, error, -1);
	if (!inherited &&
	    !(plan->flags & (SANDBOX_UNCONFINED | SANDBOX_KEEP_KEYRING | SANDBOX_WEAK_KEYRING)) &&
	    (error = join_fresh_keyring()))
		return fail(reterr_failure, SANDBOX_STAGE_KEYRING, error, -1);
	if (plan->cwd_fd >= 0 && (error = raw1(SYS_fchdir, plan->cwd_fd)))
		return fail(reterr_failure, SANDBOX_STAGE_CWD, error, -1);
	return apply_limits(plan, inherited, reterr_failure);
}

/* No capability and no way to gain one. */
static int restrict_privileges(const struct sandbox_plan *plan,
			       struct sandbox_failure *reterr_failure)
{
	long error;
	if (plan->flags & SANDBOX_UNCONFINED)
		return 0;
	if (!(plan->flags & SANDBOX_WEAK_CAPABILITIES) && (error = drop_capabilities()))
		return fail(reterr_failure, SANDBOX_STAGE_CAPABILITIES, error, -1);
	if ((error = raw5(SYS_prctl, PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)))
		return fail(reterr_failure, SANDBOX_STAGE_NO_NEW_PRIVS, error, -1);
	return 0;
}

static int restrict_filesystem(const struct sandbox_plan *plan,
			       struct sandbox_failure *reterr_failure)
{
	if (plan->flags & SANDBOX_UNCONFINED)
		return 0;
	/* An outer filter may pretend: without a ruleset the kernel would say EBADF. */
	long error = raw2(NR_landlock_restrict_self, -1, 0);
	if (error != -EBADF)
		return fail(reterr_failure, SANDBOX_STAGE_LANDLOCK, error < 0 ? error : -EPERM, -1);
	error = raw2(NR_landlock_restrict_self, plan->ruleset_fd, 0);
	return error ? fail(reterr_failure, SANDBOX_STAGE_LANDLOCK, error, -1) : 0;
}

static int install_filter(const struct sandbox_plan *plan, struct sandbox_failure *reterr_failure)
{
	if (plan->flags & SANDBOX_UNCONFINED)
		return 0;
	struct sock_fprog program = {
		.len = plan->filter->length,
		.filter = (struct sock_filter *)
				  plan->filter->instructions, /* the kernel only reads it */
	};
	long error = raw3(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, (long)&program);
	return error ? fail(reterr_failure, SANDBOX_STAGE_SECCOMP, error, -1) : 0;
}

/* No descriptor above the needed ones is copied; below them, nothing is closed yet. */
static long unshare_files(const int32_t stdio[3])
{
	int32_t highest = 2;
	for (int i = 0; i < 3; i++)
		highest = stdio[i] > highest ? stdio[i] : highest;
	return raw3(NR_close_range, highest + 1, ~0U, KERNEL_CLOSE_RANGE_UNSHARE);
}

static long set_stdio(const int32_t stdio[3])
{
	int32_t source[3] = {stdio[0], stdio[1], stdio[2]};
	for (int i = 0; i < 3; i++) { /* out of the way of the dup3 calls below */
		if (source[i] > 2 || source[i] == i)
			continue;
		long fd = raw3(SYS_fcntl, source[i], F_DUPFD, 3);
		if (fd < 0)
			return fd;
		source[i] = (int32_t)fd;
	}
	for (int i = 0; i < 3; i++) {
		long fd = source[i] == i ? raw3(SYS_fcntl, i, F_SETFD, 0)
					 : raw3(SYS_dup3, source[i], i, 0);
		if (fd < 0)
			return fd;
	}
	return 0;
}

/* execve keeps ignored signals ignored; Python ignores SIGPIPE, nohup SIGHUP, a background shell
 * SIGINT. */
static void reset_signals(void)
{
	const struct {
		void (*handler)(int);
		unsigned long flags;
		void (*restorer)(void);
		uint64_t mask;
	} reset = {SIG_DFL, 0, 0, 0};
	const uint64_t none = 0;
	for (int signal = 1; signal <= KERNEL_NSIG; signal++)
		if (signal != SIGKILL && signal != SIGSTOP)
			raw4(SYS_rt_sigaction, signal, (long)&reset, 0, sizeof reset.mask);
	raw4(SYS_rt_sigprocmask, SIG_SETMASK, (long)&none, 0, sizeof none);
}

static int become(struct spawn *spawn, struct sandbox_failure *reterr_failure)
{
	const struct sandbox_plan *plan = spawn->plan;
	long error = enter(plan, spawn->inherited, reterr_failure);
	if (!error && (plan->flags & SANDBOX_PDEATHSIG) && raw0(SYS_getppid) != spawn->parent)
		error = fail(reterr_failure, SANDBOX_STAGE_SESSION, -ESRCH, -1);
	if (error || (!spawn->inherited && (error = restrict_privileges(plan, reterr_failure))) ||
	    (error = restrict_filesystem(plan, reterr_failure)))
		return (int)error;
	if ((error = unshare_files(spawn->stdio)))
		return fail(reterr_failure, SANDBOX_STAGE_FILES, error, -1);
	if ((error = set_stdio(spawn->stdio)))
		return fail(reterr_failure, SANDBOX_STAGE_STDIO, error, -1);
	if (!spawn->inherited && (error = install_filter(plan, reterr_failure)))
		return (int)error;
	if ((error = raw3(NR_close_range, 3, ~0U, 0)))
		return fail(reterr_failure, SANDBOX_STAGE_CLOSE, error, -1);
	reset_signals();
	spawn->reached_exec = 1;
	error = raw3(SYS_execve, (long)plan->path, (long)plan->argv, (long)plan->envp);
	return fail(reterr_failure, SANDBOX_STAGE_EXEC, error, -1);
}

static __attribute__((noreturn)) void child_main(void *argument)
{
	struct spawn *spawn = argument;
	struct sandbox_failure failure;
	(void)become(spawn, &failure); /* returns only on failure, with the failure filled in */
	spawn->failure.index = failure.index;
	spawn->failure.error = failure.error;
	spawn->failure.stage = failure.stage;
	for (;;)
		raw1(SYS_exit_group, 127);
}

/* ---- the parent ---- */

/* The child returns from the system call on `stack` and calls function(argument), which never
 * returns. */
static long clone_call(long number, long a, long b, long c, long tls, void (*function)(void *),
		       void *argument)
{
	long result;
	register void (*r12)(void *) __asm__("r12") = function;
	register void *r13 __asm__("r13") = argument;
	register long r10 __asm__("r10") = 0;
	register long r8 __asm__("r8") = tls;
	__asm__ volatile("syscall\n\t"
			 "test %%rax, %%rax\n\t"
			 "jnz 1f\n\t"
			 "xor %%ebp, %%ebp\n\t"
			 "mov %%r13, %%rdi\n\t"
			 "call *%%r12\n\t"
			 "ud2\n"
			 "1:"
			 : "=a"(result)
			 : "a"(number), "D"(a), "S"(b), "d"(c), "r"(r12), "r"(r13), "r"(r10),
			   "r"(r8)
			 : "rcx", "r11", "memory");
	return result;
}

static long clone_vfork(struct spawn *spawn, char *stack, int *ret_pidfd)
{
	const struct sandbox_plan *plan = spawn->plan;
	const uint64_t flags = CLONE_VM | CLONE_VFORK | CLONE_FILES | CLONE_PIDFD;
	struct clone_args args = {
		.flags = flags | KERNEL_CLONE_CLEAR_SIGHAND,
		.pidfd = (uint64_t)(uintptr_t)ret_pidfd,
		.exit_signal = SIGCHLD,
		.stack = (uint64_t)(uintptr_t)stack,
		.stack_size = STACK_BYTES,
	};
	if (plan->cgroup_fd >= 0) {
		args.flags |= KERNEL_CLONE_INTO_CGROUP;
		args.cgroup = (uint32_t)plan->cgroup_fd;
	}
	long pid = spawn->inherited ? -ENOSYS
				    : clone_call(NR_clone3, (long)&args, sizeof args, 0, 0,
						 child_main, spawn);
	/* Our own filter on the spawner thread answers ENOSYS to clone3. An outer filter (a
	 * container's) does too. The handlers that clone(2) leaves in place cannot run: every
	 * signal is blocked until reset_signals. A cgroup cannot be had that way. */
	if (pid == -ENOSYS && plan->cgroup_fd < 0)
		pid = clone_call(SYS_clone, (long)flags | SIGCHLD, (long)(stack + STACK_BYTES),
				 (long)ret_pidfd, 0, child_main, spawn);
	return pid;
}

/* A host that closes all descriptors it does not know (daemons do) may have closed ours and have
 * opened something else under the number, which no child must be given. */
static int is_null(int fd)
{
	struct stat status;
	return fd >= 0 && !fstat(fd, &status) && S_ISCHR(status.st_mode) &&
	       status.st_rdev == makedev(1, 3);
}

static int open_null(void)
{
	int fd = open("/dev/null", O_RDWR | O_CLOEXEC);
	if (fd < 0)
		return -errno;
	if (fd >= 3)
		return fd;
	int high = fcntl(fd, F_DUPFD_CLOEXEC,
			 3); /* the caller has closed its stdio: do not become it */
	int error = -errno;
	close(fd);
	return high < 0 ? error : high;
}

static int reserve(void)
{
	int fd = open_null();
	if (fd < 0)
		return fd;
	for (int lane = 0; lane < LANES; lane++)
		for (int i = 0; i < 3; i++)
			if (!is_null(lanes[lane].slots[i]))
				lanes[lane].slots[i] =
					fcntl(fd, F_DUPFD_CLOEXEC, 3); /* -1: do without */
	null_fd = fd;
	return 0;
}

int sandbox_reserve(void)
{
	if (is_null(null_fd))
		return 0;
	pthread_mutex_lock(&reserve_lock);
	int error = is_null(null_fd) ? 0 : reserve();
	pthread_mutex_unlock(&reserve_lock);
	return error;
}

static int take_lane(void)
{
	for (int lane = 0; lane < LANES; lane++)
		if (!atomic_flag_test_and_set_explicit(&lanes[lane].busy, memory_order_acquire))
			return lane;
	return -1;
}

/* Puts high stdio descriptors into the lane's low slots, so that the child's table stays small.
 * Without a lane they stay where they are, which costs copying and nothing else. */
static int place_stdio(const struct sandbox_plan *plan, int lane, int32_t ret_stdio[3])
{
	int error = plan->flags & SANDBOX_UNCONFINED ? 0 : sandbox_check_stdio(plan->stdio);
	for (int i = 0; i < 3; i++)
		ret_stdio[i] = plan->stdio[i] < 0 ? null_fd : plan->stdio[i];
	if (error)
		return error;
	for (int i = 0; i < 3; i++) {
		if (lane < 0 || ret_stdio[i] < HIGH_DESCRIPTOR || !is_null(lanes[lane].slots[i]))
			continue;
		if (raw3(SYS_dup3, ret_stdio[i], lanes[lane].slots[i], O_CLOEXEC) < 0)
			return -EBADF;
		ret_stdio[i] = lanes[lane].slots[i];
	}
	return 0;
}

static void release_lane(int lane, const int32_t stdio[3])
{
	if (lane < 0)
		return;
	for (int i = 0; i < 3; i++)
		if (stdio[i] == lanes[lane].slots[i]) /* let go of the pipe end, keep the number */
			raw3(SYS_dup3, null_fd, lanes[lane].slots[i], O_CLOEXEC);
	atomic_flag_clear_explicit(&lanes[lane].busy, memory_order_release);
}

/* ---- the spawner thread ---- */

/* A kernel thread of this process that is under the filter, without capabilities and in a fresh
 * session keyring for good, so that a child is born with all three and only its Landlock domain is
 * left to set.  It runs raw system calls only and has no libc state: libc's own setuid(2) therefore
 * does not reach it, which is why a change of ids is looked for at every spawn.  It never has a
 * Landlock domain: children could then reach it with ptrace. */
#define SPAWNER_STACK_BYTES 4096UL
#define SPAWNER_TLS_BYTES 512UL
#define MAX_GROUPS 64

enum { SPAWNER_IDLE, SPAWNER_BUSY, SPAWNER_DONE, SPAWNER_FAILED };

/* Whose processes our children are to be. More groups than fit never compare equal: the slow path
 * then. */
struct identity {
	int32_t ids[6];
	int32_t n_groups;
	uint32_t groups[MAX_GROUPS];
};

struct spawner {
	_Atomic uint32_t lock, state; /* futex words */
	struct sandbox_plan plan;     /* what the thread puts on itself */
	struct sandbox_failure failure;
	struct spawn *spawn;
	char *stack;
	int *ret_pidfd;
	long pid;
	int32_t owner; /* process that has the thread; a fork does not */
	struct identity identity;
};

static struct spawner spawners[4]; /* by SANDBOX_NET_NONE | SANDBOX_NAMESPACED */
static char spawner_stacks[4][SPAWNER_STACK_BYTES] __attribute__((aligned(16)));
/* What %fs points into: the stack protector reads its canary there, and the thread that started
 * this one, whose own it would be, may be gone. */
static char spawner_tls[4][SPAWNER_TLS_BYTES] __attribute__((aligned(64)));
static pthread_mutex_t spawner_start = PTHREAD_MUTEX_INITIALIZER;

static void futex_wait(_Atomic uint32_t *word, uint32_t value)
{
	raw4(SYS_futex, (long)word, 128 /* FUTEX_WAIT_PRIVATE */, value, 0);
}

static void futex_wake(_Atomic uint32_t *word)
{
	raw3(SYS_futex, (long)word, 129 /* FUTEX_WAKE_PRIVATE */, 1);
}

static void spawner_set(struct spawner *spawner, uint32_t state)
{
	atomic_store(&spawner->state, state);
	futex_wake(&spawner->state);
}

static void spawner_await(struct spawner *spawner, uint32_t unwanted)
{
	while (atomic_load(&spawner->state) == unwanted)
		futex_wait(&spawner->state, unwanted);
}

static void spawner_lock(struct spawner *spawner)
{
	while (atomic_exchange(&spawner->lock, 1))
		futex_wait(&spawner->lock, 1);
}

static void spawner_unlock(struct spawner *spawner)
{
	atomic_store(&spawner->lock, 0);
	futex_wake(&spawner->lock);
}

static __attribute__((noreturn)) void spawner_main(void *argument)
{
	struct spawner *spawner = argument;
	long error = join_fresh_keyring();
	if (error)
		fail(&spawner->failure, SANDBOX_STAGE_KEYRING, error, -1);
	else if (!(error = restrict_privileges(&spawner->plan, &spawner->failure)))
		error = install_filter(&spawner->plan, &spawner->failure);
	spawner_set(spawner, error ? SPAWNER_FAILED : SPAWNER_IDLE);
	while (!error) {
		spawner_await(spawner, SPAWNER_IDLE);
		if (atomic_load(&spawner->state) == SPAWNER_BUSY) {
			spawner->pid =
				clone_vfork(spawner->spawn, spawner->stack, spawner->ret_pidfd);
			spawner_set(spawner, SPAWNER_DONE);
		}
		spawner_await(spawner, SPAWNER_DONE);
	}
	for (;;)
		raw1(SYS_exit, 0);
}

static void current_identity(struct identity *identity)
{
	int32_t *ids = identity->ids;
	memset(identity, 0, sizeof *identity);
	raw3(SYS_getresuid, (long)&ids[0], (long)&ids[1], (long)&ids[2]);
	raw3(SYS_getresgid, (long)&ids[3], (long)&ids[4], (long)&ids[5]);
	identity->n_groups = (int32_t)raw2(SYS_getgroups, MAX_GROUPS, (long)identity->groups);
}

static void forget_spawners(void)
{
	for (size_t i = 0; i < sizeof spawners / sizeof *spawners; i++)
		spawners[i].owner = 0;
}

static int start_spawner(uint32_t variant, const struct sandbox_filter *filter,
			 struct sandbox_failure *reterr_failure)
{
	static int fork_watched;
	struct spawner *spawner = &spawners[variant];
	const long thread = CLONE_VM | CLONE_FS | CLONE_FILES | CLONE_SIGHAND | CLONE_THREAD |
			    CLONE_SYSVSEM | CLONE_SETTLS;
	long error =
		freeze_core(); /* process-wide, as its children cannot do it under the filter */
	if (error)
		return fail(reterr_failure, SANDBOX_STAGE_LIMITS, error, -1);
	if (!fork_watched && (error = -pthread_atfork(NULL, NULL, forget_spawners)))
		return fail(reterr_failure, SANDBOX_STAGE_CLONE, error, -1);
	fork_watched = 1;
	*spawner = (struct spawner){.state = SPAWNER_BUSY,
				    .plan = {.flags = variant, .filter = filter}};
	current_identity(&spawner->identity);
	uint64_t all = ALL_SIGNALS, saved;
	raw4(SYS_rt_sigprocmask, SIG_SETMASK, (long)&all, (long)&saved, sizeof all);
	error = clone_call(SYS_clone, thread, (long)(spawner_stacks[variant] + SPAWNER_STACK_BYTES),
			   0, (long)(spawner_tls[variant] + SPAWNER_TLS_BYTES / 2), spawner_main,
			   spawner);
	raw4(SYS_rt_sigprocmask, SIG_SETMASK, (long)&saved, 0, sizeof saved);
	if (error < 0)
		return fail(reterr_failure, SANDBOX_STAGE_CLONE, error, -1);
	spawner_await(spawner, SPAWNER_BUSY);
	if (atomic_load(&spawner->state) == SPAWNER_FAILED) {
		*reterr_failure = spawner->failure;
		return -spawner->failure.error;
	}
	spawner->owner = (int32_t)raw0(SYS_getpid);
	return 0;
}

int sandbox_spawner(uint32_t flags, const struct sandbox_filter *filter,
		    struct sandbox_failure *reterr_failure)
{
	const uint32_t variant = flags & (SANDBOX_NET_NONE | SANDBOX_NAMESPACED);
	pthread_mutex_lock(&spawner_start);
	int error = spawners[variant].owner == raw0(SYS_getpid)
			    ? 0
			    : start_spawner(variant, filter, reterr_failure);
	pthread_mutex_unlock(&spawner_start);
	return error;
}

/* The thread for a plan, or NULL: none was started here, the ids changed since, or the child must
 * be born in a cgroup, which takes clone3. */
static struct spawner *spawner_for(const struct sandbox_plan *plan)
{
	struct spawner *spawner = &spawners[plan->flags & 3];
	struct identity now;
	const uint32_t other =
		SANDBOX_UNCONFINED | SANDBOX_WEAK_CAPABILITIES | SANDBOX_WEAK_KEYRING;
	if (!spawner->owner || plan->filter != spawner->plan.filter || plan->cgroup_fd >= 0 ||
	    (plan->flags & other) || spawner->owner != raw0(SYS_getpid))
		return NULL;
	current_identity(&now);
	return now.n_groups >= 0 && !memcmp(&now, &spawner->identity, sizeof now) ? spawner : NULL;
}

static long spawner_run(struct spawner *spawner, struct spawn *spawn, char *stack, int *ret_pidfd)
{
	spawner_lock(spawner);
	spawner->spawn = spawn;
	spawner->stack = stack;
	spawner->ret_pidfd = ret_pidfd;
	spawner_set(spawner, SPAWNER_BUSY);
	spawner_await(spawner, SPAWNER_BUSY);
	long pid = spawner->pid;
	spawner_set(spawner, SPAWNER_IDLE);
	spawner_unlock(spawner);
	return pid;
}

/* ---- spawn ---- */

static long run_clone(struct spawn *spawn, char *stack, int *ret_pidfd)
{
	struct spawner *spawner = spawner_for(spawn->plan);
	if (spawner) {
		spawn->inherited = 1;
		return spawner_run(spawner, spawn, stack, ret_pidfd);
	}
	uint64_t all = ALL_SIGNALS, saved;
	raw4(SYS_rt_sigprocmask, SIG_SETMASK, (long)&all, (long)&saved, sizeof all);
	long pid = clone_vfork(spawn, stack, ret_pidfd);
	raw4(SYS_rt_sigprocmask, SIG_SETMASK, (long)&saved, 0, sizeof saved);
	return pid;
}

/* A child that never reached execve has run nothing of the command: reap it and report. */
static int conclude(struct spawn *spawn, long pid, int pidfd, struct sandbox_child *ret_child,
		    struct sandbox_failure *reterr_failure)
{
	if (pid < 0)
		return fail(reterr_failure, SANDBOX_STAGE_CLONE, pid, -1);
	if (spawn->reached_exec && !spawn->failure.stage) {
		*ret_child = (struct sandbox_child){.pid = (int32_t)pid, .pidfd = pidfd};
		return 0;
	}
	while (raw4(SYS_wait4, pid, 0, 0, 0) == -EINTR)
		;
	raw1(SYS_close, pidfd);
	if (!spawn->failure.stage) /* killed from outside, e.g. by the OOM killer, before it got
				      that far */
		return fail(reterr_failure, SANDBOX_STAGE_CLONE, -EINTR, -1);
	reterr_failure->stage = spawn->failure.stage;
	reterr_failure->error = spawn->failure.error;
	reterr_failure->index = spawn->failure.index;
	return -spawn->failure.error;
}

int sandbox_spawn(const struct sandbox_plan *plan, struct sandbox_child *ret_child,
		  struct sandbox_failure *reterr_failure)
{
	struct spawn spawn = {.plan = plan, .parent = (int32_t)raw0(SYS_getpid)};
	int error = sandbox_reserve(), pidfd = -1;
	if (error)
		return fail(reterr_failure, SANDBOX_STAGE_DESCRIPTORS, error, -1);
	int lane = take_lane();
	char *stack = lane >= 0 ? stacks[lane]
				: mmap(NULL, STACK_BYTES, PROT_READ | PROT_WRITE,
				       MAP_PRIVATE | MAP_ANONYMOUS | MAP_STACK, -1, 0);
	if (stack == MAP_FAILED)
		return fail(reterr_failure, SANDBOX_STAGE_DESCRIPTORS, -ENOMEM, -1);
	error = place_stdio(plan, lane, spawn.stdio);
	long pid = error ? error : run_clone(&spawn, stack, &pidfd);
	release_lane(lane, spawn.stdio);
	if (lane < 0)
		munmap(stack, STACK_BYTES);
	if (error)
		return fail(reterr_failure, SANDBOX_STAGE_DESCRIPTORS, error, -1);
	return conclude(&spawn, pid, pidfd, ret_child, reterr_failure);
}

int sandbox_confine_self(const struct sandbox_plan *plan, struct sandbox_failure *reterr_failure)
{
	int error = enter(plan, 0, reterr_failure);
	if (error || (error = restrict_privileges(plan, reterr_failure)) ||
	    (error = restrict_filesystem(plan, reterr_failure)))
		return error;
	return install_filter(plan, reterr_failure);
}

const char *sandbox_stage_name(int stage)
{
	static const char *const names[SANDBOX_STAGE_COUNT] = {
		[SANDBOX_STAGE_NONE] = "none",
		[SANDBOX_STAGE_KERNEL] = "kernel",
		[SANDBOX_STAGE_RULESET] = "ruleset",
		[SANDBOX_STAGE_RULE] = "rule",
		[SANDBOX_STAGE_FILTER] = "filter",
		[SANDBOX_STAGE_DESCRIPTORS] = "descriptors",
		[SANDBOX_STAGE_CLONE] = "clone",
		[SANDBOX_STAGE_SESSION] = "session",
		[SANDBOX_STAGE_TERMINAL] = "terminal",
		[SANDBOX_STAGE_KEYRING] = "keyring",
		[SANDBOX_STAGE_CWD] = "cwd",
		[SANDBOX_STAGE_LIMITS] = "limits",
		[SANDBOX_STAGE_CAPABILITIES] = "capabilities",
		[SANDBOX_STAGE_NO_NEW_PRIVS] = "no_new_privs",
		[SANDBOX_STAGE_LANDLOCK] = "landlock",
		[SANDBOX_STAGE_FILES] = "files",
		[SANDBOX_STAGE_STDIO] = "stdio",
		[SANDBOX_STAGE_SECCOMP] = "seccomp",
		[SANDBOX_STAGE_CLOSE] = "close",
		[SANDBOX_STAGE_SIGNALS] = "signals",
		[SANDBOX_STAGE_EXEC] = "exec",
	};
	return stage >= 0 && stage < SANDBOX_STAGE_COUNT ? names[stage] : "unknown";
}
