/* SPDX-License-Identifier: Apache-2.0
 *
 * The self-test: confines children for real and compares every answer with an unconfined control.
 *
 * Five processes are forked.  The host stands for everything outside: it listens on Unix sockets
 * and is there to be signalled and traced.  The worlds build a small tree, take what a careless
 * caller might leave open, confine themselves (the control does not), and go through the table in
 * probes.c, writing answers to a shared page.  The calling process then judges row by row.
 *
 * Denials come in two forms.  Where the effect is harmless the call is made for real and works in
 * the control.  Where it is not (reboot, kexec, mount), or where a kernel may give the filter's own
 * errno, the call is sealed: a filter installed first, the seal, answers every call with an errno
 * of its own, in the control too.  Of two errnos the kernel takes that of the filter installed last
 * (seccomp(2)), so one that is not the seal's is the real filter's, and nothing reaches the kernel
 * whatever the real filter lets through.
 *
 * The children share no memory with the caller but the page of answers, raise no SIGCHLD in it, and
 * make raw system calls only, because the caller may have threads.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/capability.h>
#include <linux/filter.h>
#include <linux/keyctl.h>
#include <linux/prctl.h>
#include <linux/seccomp.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "internal.h"
#include "kernel.h"
#include "probes.h"

#define PATIENCE_MS 10000 /* for all of it; takes a hundredth of that */
#define UNANSWERED INT32_MIN
#define SEALED EBADE /* no system call gives it */
#define APART_STACK_BYTES 16384
#define COUNT(array) (sizeof(array) / sizeof *(array))

enum weak { KEEP_CAPABILITIES = 1, KEEP_SCOPES_OFF = 2, KEEP_KEYRING = 4 };

struct board { /* the shared page */
	int32_t host_error, world_error[WORLD_COUNT];
	int32_t answers[]; /* [world][probe] */
};

struct child {
	int32_t pid;
	int pidfd;
};

struct proof {
	const struct sandbox_weakness *weakness;
	uint32_t max_abi;
	struct sandbox_status status;
	int can_setpcap, tree_made;
	int directory_fd, tree_fd, ready_fd;
	char tree_name[48];
	struct board *board;
	size_t board_bytes;
	struct scene scene;
	struct child host;
	int64_t deadline_ms; /* monotonic */
};

static int32_t *answer_of(const struct proof *proof, int world, size_t row)
{
	return &proof->board->answers[(size_t)world * sandbox_probe_count + row];
}

static int world_of(const struct probe *probe)
{
	if (probe->flags & PROBE_SEALED)
		return WORLD_SEALED;
	return probe->flags & PROBE_OFFLINE ? WORLD_OFFLINE : WORLD_CONFINED;
}

/* Why a row cannot be asked on this kernel or by this caller; NULL if it can. */
static const char *inapplicable(const struct proof *proof, const struct probe *probe)
{
	if (probe->abi > proof->status.abi)
		return "not applicable: needs a newer Landlock ABI";
	if ((probe->flags & PROBE_SETPCAP) && !proof->can_setpcap)
		return "not applicable: the caller has no CAP_SETPCAP";
	return NULL;
}

/* ---- in the children; raw system calls only ---- */

static const struct {
	const char *path;
	int is_program; /* 0: an empty file; -1: a directory */
} tree[] = {
	{"inside", -1},          {"inside/one", -1},
	{"inside/two", -1},      {"inside/one/moving", 0},
	{"inside/file", 0},      {"inside/leaving", 0},
	{"readonly", -1},        {"readonly/file", 0},
	{"readonly/program", 1}, {"programs", -1},
	{"programs/program", 1}, {"outside", -1},
	{"outside/file", 0},     {"outside/doomed", 0},
	{"outside/program", 1},  {"outside/directory", -1},
};

static const struct {
	const char *path;
	uint32_t access;
	int optional;
} grants[] = {
	{"inside", SANDBOX_READ | SANDBOX_WRITE, 0},
	{"readonly", SANDBOX_READ, 0},
	{"programs", SANDBOX_EXEC, 0},
	{"/dev/null", SANDBOX_READ | SANDBOX_WRITE, 0}, /* no DEVICE: its ioctls are refused */
	{"/etc/resolv.conf", SANDBOX_READ, 1},
	{"/proc/keys", SANDBOX_READ, 1},
};

static void reset_signals(void)
{
	const struct {
		void (*handler)(int);
		unsigned long flags;
		void (*restorer)(void);
		uint64_t mask;
	} reset = {SIG_DFL, 0, 0, 0};
	const uint64_t none = 0;
	for (int number = 1; number <= 64; number++) /* SIGKILL, SIGSTOP: EINVAL */
		raw4(SYS_rt_sigaction, number, (long)&reset, 0, sizeof reset.mask);
	raw4(SYS_rt_sigprocmask, SIG_SETMASK, (long)&none, 0, sizeof none);
}

static __attribute__((noreturn)) void leave(void)
{
	for (;;)
		raw1(SYS_exit_group, 0);
}

static long make_file(const char *path, int is_program)
{
	long fd = raw4(SYS_openat, AT_FDCWD, (long)path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC,
		       0700);
	if (fd < 0)
		return fd;
	size_t size = is_program ? sandbox_program_size : 0;
	long written = raw3(SYS_write, fd, (long)sandbox_program, (long)size);
	raw1(SYS_close, fd);
	if (written < 0)
		return written;
	return written == (long)size ? 0 : -EIO;
}

static long make_directory(const char *path)
{
	return raw3(SYS_mkdirat, AT_FDCWD, (long)path, 0700);
}

static long enter_directory(int tree_fd, const char *path)
{
	long error = raw1(SYS_fchdir, tree_fd);
	if (error || (error = make_directory(path)))
		return error;
	return raw1(SYS_chdir, (long)path);
}

static long make_tree(void)
{
	long error = 0;
	for (size_t i = 0; i < COUNT(tree) && !error; i++)
		error = tree[i].is_program < 0 ? make_directory(tree[i].path)
					       : make_file(tree[i].path, tree[i].is_program);
	return error;
}

static int32_t open_terminal(void)
{
	int unlocked = 0;
	long master = raw3(SYS_openat, AT_FDCWD, (long)"/dev/ptmx", O_RDWR | O_NOCTTY | O_CLOEXEC);
	if (master < 0 || raw3(SYS_ioctl, master, TIOCSPTLCK, (long)&unlocked))
		return -1;
	return (int32_t)raw3(SYS_ioctl, master, TIOCGPTPEER, O_RDWR | O_NOCTTY | O_CLOEXEC);
}

/* A key that shows in /proc/keys only to who holds the session keyring it is in. */
static int32_t plant_key(void)
{
	const long possessor_all = 0x3f000000; /* KEY_POS_ALL */
	if (raw3(SYS_faccessat, AT_FDCWD, (long)"/proc/keys", R_OK))
		return 0;
	if (raw2(SYS_keyctl, KEYCTL_JOIN_SESSION_KEYRING, 0) < 0)
		return 0;
	long key = raw5(SYS_add_key, (long)"user", (long)"sandbox-proof", (long)"x", 1,
			KEY_SPEC_SESSION_KEYRING);
	if (key < 0 || raw3(SYS_keyctl, KEYCTL_SETPERM, key, possessor_all))
		return 0;
	return (int32_t)key;
}

/* What a careless caller leaves open, so that each wall is tried without the others before it. */
static void leave_open(struct scene *scene)
{
	scene->terminal_fd = open_terminal();
	scene->stream_fd = (int32_t)raw3(SYS_socket, AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
	scene->datagram_fd = (int32_t)raw3(SYS_socket, AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
	scene->inet_fd = (int32_t)raw3(SYS_socket, AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	scene->planted_key = plant_key();
}

static long open_grants(struct sandbox_rule rules[COUNT(grants)], size_t *ret_n_rules)
{
	size_t n = 0;
	for (size_t i = 0; i < COUNT(grants); i++) {
		long fd = raw3(SYS_openat, AT_FDCWD, (long)grants[i].path, O_PATH | O_CLOEXEC);
		if (fd < 0 && !grants[i].optional)
			return fd;
		if (fd >= 0)
			rules[n++] = (struct sandbox_rule){.fd = (int32_t)fd,
							   .access = grants[i].access};
	}
	*ret_n_rules = n;
	return 0;
}

static long confine(const struct proof *proof, int world)
{
	const struct sandbox_weakness *weakness = proof->weakness;
	uint32_t flags = world == WORLD_OFFLINE ? SANDBOX_NET_NONE : 0;
	struct sandbox_plan plan = {.cwd_fd = -1,
				    .stdio = {-1, -1, -1},
				    .terminal_fd = -1,
				    .cgroup_fd = -1,
				    .flags = flags,
				    .umask = 022};
	struct sandbox_rule rules[COUNT(grants)];
	struct sandbox_filter filter;
	struct sandbox_failure failure;
	size_t n_rules = 0;
	long error = world == WORLD_OFFLINE ? 0 : open_grants(rules, &n_rules);
	if (error || (error = sandbox_filter(flags, weakness->omit_row, &filter)))
		return error;
	if (weakness->keep & KEEP_SCOPES_OFF)
		flags |= SANDBOX_WEAK_SCOPE;
	error = sandbox_ruleset(rules, n_rules, flags, proof->max_abi, weakness->weaken_fs,
				&plan.ruleset_fd, &failure);
	if (error)
		return error;
	if (weakness->keep & KEEP_CAPABILITIES)
		plan.flags |= SANDBOX_WEAK_CAPABILITIES;
	if (weakness->keep & KEEP_KEYRING)
		plan.flags |= SANDBOX_WEAK_KEYRING;
	plan.filter = &filter;
	return sandbox_confine_self(&plan, &failure);
}

struct apart {
	const struct scene *scene;
	const struct probe *probe;
	int32_t answer;
};

static int apart_main(void *argument)
{
	struct apart *apart = argument;
	raw2(SYS_prctl, PR_SET_PDEATHSIG, SIGKILL);
	apart->answer = apart->probe->run(apart->scene, apart->probe);
	return 0;
}

/* With the memory shared, the answer needs no pipe, and no page table is copied. */
static int32_t run_apart(const struct scene *scene, const struct probe *probe)
{
	struct apart apart = {scene, probe, 0};
	char stack[APART_STACK_BYTES] __attribute__((aligned(16)));
	int status = 0;
	int pid = clone(apart_main, stack + sizeof stack, CLONE_VM | CLONE_VFORK | SIGCHLD, &apart);
	if (pid < 0)
		return errno;
	while (raw4(SYS_wait4, pid, (long)&status, 0, 0) == -EINTR)
		;
	if (WIFSIGNALED(status))
		return -WTERMSIG(status);
	return WEXITSTATUS(status) ? EIO : apart.answer;
}

static long attach_filter(const struct sock_filter *instructions, size_t length)
{
	struct sock_fprog program = {
		.len = (uint16_t)length,
		.filter = (struct sock_filter *)instructions, /* the kernel only reads it */
	};
	return raw3(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, (long)&program);
}

/* From here on this process can attach another filter and end, and nothing else. */
static long seal(void)
{
	static const struct sock_filter instructions[] = {
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_exit_group, 2, 0),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_seccomp, 1, 0),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | SEALED),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
	};
	long error = raw5(SYS_prctl, PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
	return error ? error : attach_filter(instructions, COUNT(instructions));
}

static void run_probes(const struct proof *proof, const struct scene *scene, int world, int sealed)
{
	for (size_t i = 0; i < sandbox_probe_count; i++) {
		const struct probe *probe = &sandbox_probes[i];
		if (inapplicable(proof, probe) || !(probe->flags & PROBE_SEALED) != !sealed)
			continue;
		if (world != WORLD_CONTROL && world != world_of(probe))
			continue;
		*answer_of(proof, world, i) = probe->flags & PROBE_APART ? run_apart(scene, probe)
									 : probe->run(scene, probe);
	}
}

static long confined_main(const struct proof *proof)
{
	struct scene scene = proof->scene;
	long error = enter_directory(proof->tree_fd, "confined");
	if (error || (error = make_tree()))
		return error;
	leave_open(&scene);
	if ((error = confine(proof, WORLD_CONFINED)))
		return error;
	run_probes(proof, &scene, WORLD_CONFINED, 0);
	return 0;
}

static long offline_main(const struct proof *proof)
{
	struct scene scene = proof->scene;
	leave_open(&scene);
	long error = confine(proof, WORLD_OFFLINE);
	if (error)
		return error;
	run_probes(proof, &scene, WORLD_OFFLINE, 0);
	return 0;
}

static long sealed_main(const struct proof *proof)
{
	struct sandbox_filter filter;
	long error = sandbox_filter(0, proof->weakness->omit_row, &filter);
	if (error || (error = seal()) ||
	    (error = attach_filter(filter.instructions, filter.length)))
		return error;
	run_probes(proof, &proof->scene, WORLD_SEALED, 1);
	return 0;
}

static long control_main(const struct proof *proof)
{
	struct scene scene = proof->scene;
	long error = enter_directory(proof->tree_fd, "control");
	if (error || (error = make_tree()))
		return error;
	leave_open(&scene);
	run_probes(proof, &scene, WORLD_CONTROL, 0);
	if ((error = seal()))
		return error;
	run_probes(proof, &scene, WORLD_CONTROL, 1);
	return 0;
}

static long world_main(const struct proof *proof, int world)
{
	switch (world) {
	case WORLD_SEALED:
		return sealed_main(proof);
	case WORLD_CONTROL:
		return control_main(proof);
	case WORLD_OFFLINE:
		return offline_main(proof);
	default:
		return confined_main(proof);
	}
}

static long listen_at(const struct address *address, int type)
{
	long fd = raw3(SYS_socket, AF_UNIX, type | SOCK_CLOEXEC, 0);
	if (fd < 0)
		return fd;
	long error = raw3(SYS_bind, fd, (long)&address->un, address->length);
	if (!error && type != SOCK_DGRAM)
		error = raw2(SYS_listen, fd, 128);
	return error;
}

/* The host's directory is a sibling of the worlds', so that one relative name fits all of them. */
static long host_main(const struct proof *proof)
{
	static const int types[ENDPOINT_COUNT] = {SOCK_STREAM, SOCK_SEQPACKET, SOCK_DGRAM,
						  SOCK_STREAM, SOCK_DGRAM};
	const uint64_t one = 1;
	long error = enter_directory(proof->tree_fd, "host");
	for (int i = 0; i < ENDPOINT_COUNT && !error; i++)
		error = listen_at(&proof->scene.endpoints[i], types[i]);
	if (error)
		return error;
	raw2(SYS_prctl, PR_SET_PTRACER,
	     (long)PR_SET_PTRACER_ANY); /* Yama: a sibling may trace us */
	raw3(SYS_write, proof->ready_fd, (long)&one, sizeof one);
	for (;;)
		raw4(SYS_ppoll, 0, 0, 0, 0);
}

/* ---- the caller ---- */

static int64_t now_ms(void)
{
	struct timespec now;
	clock_gettime(CLOCK_MONOTONIC, &now);
	return (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

/* Returns the index of a readable descriptor, or -ETIMEDOUT. */
static int wait_readable(const struct proof *proof, const int *fds, nfds_t n)
{
	struct pollfd polls[2];
	for (nfds_t i = 0; i < n; i++)
		polls[i] = (struct pollfd){.fd = fds[i], .events = POLLIN};
	for (;;) {
		int64_t left = proof->deadline_ms - now_ms();
		int ready = poll(polls, n, left > 0 ? (int)left : 0);
		if (ready == 0)
			return -ETIMEDOUT;
		for (nfds_t i = 0; ready > 0 && i < n; i++)
			if (polls[i].revents)
				return (int)i;
		if (ready < 0 && errno != EINTR)
			return -errno;
	}
}

/* fork without libc's fork handlers, and without an exit signal: the caller's SIGCHLD handling and
 * its waitpid(-1) never see the child. Handlers cannot run in the child: all signals are blocked.
 */
static int fork_child(struct child *ret_child)
{
	const uint64_t all = ~0ULL;
	uint64_t saved;
	int pidfd = -1, parent = getpid();
	raw4(SYS_rt_sigprocmask, SIG_SETMASK, (long)&all, (long)&saved, sizeof all);
	long pid = raw5(SYS_clone, CLONE_PIDFD, 0, (long)&pidfd, 0, 0);
	if (pid == 0) {
		reset_signals();
		raw1(SYS_umask, 022);
		raw2(SYS_prctl, PR_SET_PDEATHSIG, SIGKILL);
		if (raw0(SYS_getppid) != parent)
			leave();
		return 0;
	}
	raw4(SYS_rt_sigprocmask, SIG_SETMASK, (long)&saved, 0, sizeof saved);
	if (pid > 0)
		*ret_child = (struct child){.pid = (int32_t)pid, .pidfd = pidfd};
	return (int)pid;
}

static void reap(struct child *child)
{
	if (child->pid <= 0)
		return;
	while (raw4(SYS_wait4, child->pid, 0, __WALL, 0) == -EINTR)
		;
	close(child->pidfd);
	*child = (struct child){0, -1};
}

static void end(struct child *child)
{
	if (child->pid > 0)
		raw2(SYS_kill, child->pid, SIGKILL); /* not reaped yet: the number is its own */
	reap(child);
}

static int start_host(struct proof *proof)
{
	int pid = fork_child(&proof->host);
	if (pid == 0) {
		proof->board->host_error = (int32_t)host_main(proof);
		leave();
	}
	if (pid < 0)
		return pid;
	proof->scene.host_pid = pid;
	int ready = wait_readable(proof, (int[]){proof->ready_fd, proof->host.pidfd}, 2);
	if (ready < 0)
		return ready;
	if (ready == 0)
		return 0;
	return proof->board->host_error ? proof->board->host_error : -ECHILD;
}

static int run_worlds(struct proof *proof)
{
	struct child worlds[WORLD_COUNT] = {0};
	int error = 0;
	for (int world = 0; world < WORLD_COUNT && !error; world++) {
		int pid = fork_child(&worlds[world]);
		if (pid == 0) {
			proof->board->world_error[world] = (int32_t)world_main(proof, world);
			leave();
		}
		error = pid < 0 ? pid : 0;
	}
	for (int world = 0; world < WORLD_COUNT; world++) {
		if (worlds[world].pid > 0 && wait_readable(proof, &worlds[world].pidfd, 1) < 0)
			end(&worlds[world]); /* what it did not answer fails below */
		reap(&worlds[world]);
		if (!error)
			error = proof->board->world_error[world];
	}
	return error;
}

static struct address address_of(int is_abstract, const char *prefix, const char *name)
{
	struct address address = {.un = {.sun_family = AF_UNIX}};
	char *path = address.un.sun_path;
	int n = snprintf(path + is_abstract, sizeof address.un.sun_path - 1, "%s%s", prefix, name);
	address.length =
		(socklen_t)(offsetof(struct sockaddr_un, sun_path) + (size_t)(n + is_abstract));
	return address;
}

static void describe_scene(struct proof *proof)
{
	struct rlimit core = {0, 0};
	struct address *endpoints = proof->scene.endpoints;
	endpoints[PATH_STREAM] = address_of(0, "../host/", "stream");
	endpoints[PATH_SEQPACKET] = address_of(0, "../host/", "seqpacket");
	endpoints[PATH_DATAGRAM] = address_of(0, "../host/", "datagram");
	endpoints[ABSTRACT_STREAM] = address_of(1, proof->tree_name, "/stream");
	endpoints[ABSTRACT_DATAGRAM] = address_of(1, proof->tree_name, "/datagram");
	(void)getrlimit(RLIMIT_CORE, &core); /* cannot fail */
	proof->scene.core_hard_max = core.rlim_max;
}

static int has_setpcap(void)
{
	struct __user_cap_header_struct header = {.version = _LINUX_CAPABILITY_VERSION_3};
	struct __user_cap_data_struct data[2] = {{0}, {0}};
	(void)raw2(SYS_capget, (long)&header, (long)data); /* cannot fail */
	return (data[0].effective >> CAP_SETPCAP) & 1;
}

static int make_board(struct proof *proof)
{
	size_t cells = WORLD_COUNT * sandbox_probe_count;
	proof->board_bytes = sizeof(struct board) + cells * sizeof(int32_t);
	void *page = mmap(NULL, proof->board_bytes, PROT_READ | PROT_WRITE,
			  MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	if (page == MAP_FAILED)
		return -errno;
	proof->board = page;
	for (size_t i = 0; i < cells; i++)
		proof->board->answers[i] = UNANSWERED;
	return 0;
}

static int make_root(struct proof *proof, const char *directory)
{
	uint64_t random;
	proof->directory_fd = open(directory, O_PATH | O_DIRECTORY | O_CLOEXEC);
	if (proof->directory_fd < 0)
		return -errno;
	if (raw3(SYS_getrandom, (long)&random, sizeof random, 0) != (long)sizeof random)
		return -EIO;
	(void)snprintf(proof->tree_name, sizeof proof->tree_name, ".sandbox-proof-%016llx",
		       (unsigned long long)random);
	if (mkdirat(proof->directory_fd, proof->tree_name, 0700))
		return -errno;
	proof->tree_made = 1;
	if (fchmodat(proof->directory_fd, proof->tree_name, 0700, 0)) /* whatever the umask is */
		return -errno;
	proof->tree_fd = openat(proof->directory_fd, proof->tree_name,
				O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
	return proof->tree_fd < 0 ? -errno : 0;
}

/* Directories are four deep and hold what the table makes; nothing in them is followed. */
static int remove_entry(int directory_fd, const char *name)
{
	if (!unlinkat(directory_fd, name, 0) || !unlinkat(directory_fd, name, AT_REMOVEDIR))
		return 0; /* an empty one goes without a descriptor, should none be left */
	int fd = openat(directory_fd, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
	DIR *directory = fd < 0 ? NULL : fdopendir(fd);
	if (!directory) {
		int error = -errno;
		if (fd >= 0)
			close(fd);
		return error;
	}
	for (struct dirent *entry; (entry = readdir(directory));)
		if (strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0)
			(void)remove_entry(dirfd(directory),
					   entry->d_name); /* ENOTEMPTY below says it */
	closedir(directory);
	return unlinkat(directory_fd, name, AT_REMOVEDIR) ? -errno : 0;
}

static int prepare(struct proof *proof, const char *directory)
{
	int error = make_root(proof, directory);
	if (error || (error = make_board(proof)))
		return error;
	proof->ready_fd = eventfd(0, EFD_CLOEXEC);
	if (proof->ready_fd < 0)
		return -errno;
	proof->can_setpcap = has_setpcap();
	proof->deadline_ms = now_ms() + PATIENCE_MS;
	describe_scene(proof);
	return start_host(proof);
}

static int dispose(struct proof *proof)
{
	int error = 0;
	end(&proof->host);
	if (proof->ready_fd >= 0)
		close(proof->ready_fd);
	if (proof->tree_fd >= 0)
		close(proof->tree_fd);
	if (proof->tree_made)
		error = remove_entry(proof->directory_fd, proof->tree_name);
	if (proof->directory_fd >= 0)
		close(proof->directory_fd);
	if (proof->board)
		munmap(proof->board, proof->board_bytes);
	return error;
}

/* Why answers say nothing about the sandbox; NULL if they do. */
static const char *inconclusive(const struct probe *probe, int32_t confined, int32_t control)
{
	int same = confined == control && control != UNANSWERED;
	if (same && (probe->flags & PROBE_ENTRY32) && control == -SIGSEGV)
		return "not applicable: this kernel has no 32-bit entry";
	if (same && (probe->flags & PROBE_OUTER) && probe->kind == PROBE_DENIED &&
	    control == probe->expected)
		return "not applicable: refused without the sandbox as well";
	if (same && probe->kind == PROBE_SURVIVES && control != probe->expected)
		return "not applicable: does not work without the sandbox either";
	return NULL;
}

static void judge(const struct proof *proof, size_t i, struct sandbox_proof_row *ret_row)
{
	const struct probe *probe = &sandbox_probes[i];
	struct sandbox_proof_row row = {.name = probe->name,
					.claim = probe->claim,
					.expected = probe->expected};
	const char *reason = inapplicable(proof, probe);
	if (!reason) {
		row.confined = *answer_of(proof, world_of(probe), i);
		row.control = *answer_of(proof, WORLD_CONTROL, i);
		reason = inconclusive(probe, row.confined, row.control);
	}
	row.skipped = reason != NULL;
	if (reason)
		row.claim = reason;
	row.ok = row.skipped || row.confined == row.expected;
	if (!row.skipped && probe->kind == PROBE_DENIED)
		row.ok = row.ok && row.control != row.expected && row.control != UNANSWERED;
	*ret_row = row;
}

int sandbox_selftest(const char *directory, uint32_t max_abi,
		     const struct sandbox_weakness *weakness, struct sandbox_proof_row *rows,
		     size_t capacity, size_t *ret_n_rows)
{
	static const struct sandbox_weakness none = {.omit_row = -1};
	struct proof proof = {
		.weakness = weakness ? weakness : &none,
		.max_abi = max_abi,
		.directory_fd = -1,
		.tree_fd = -1,
		.ready_fd = -1,
	};
	if (capacity < sandbox_probe_count)
		return -ENOSPC;
	int error = sandbox_status(max_abi, &proof.status);
	if (error)
		return error;
	error = prepare(&proof, directory);
	if (!error)
		error = run_worlds(&proof);
	for (size_t i = 0; i < sandbox_probe_count && !error; i++)
		judge(&proof, i, &rows[i]);
	int left_behind = dispose(&proof);
	if (error || left_behind)
		return error ? error : left_behind;
	*ret_n_rows = sandbox_probe_count;
	return 0;
}
