/* SPDX-License-Identifier: Apache-2.0
 *
 * Ways out that a hostile command could try, each answered by 0 (it worked), an errno, or minus the
 * signal that ended it.
 *
 * probes [below] INSIDE OUTSIDE
 *
 * `below`: as the child of a process of the same program and user.  INSIDE is a writable root
 * without the right to execute, which holds the directory `programs`; OUTSIDE is a directory in no
 * root that holds the files `file`, `program`, `truncate` and `exchange`.
 *
 * "The parent" is whoever supervises: the runner, confine's supervisor, or the test itself.
 */
#include <errno.h>
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/fs.h>
#include <linux/fscrypt.h>
#include <linux/openat2.h>
#include <linux/ptrace.h>
#include <linux/sched.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <signal.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/personality.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#define DIRTY 0xdeadbeef00000000UL
#define X32 0x40000000L
#define NR_process_mrelease 448
#define NR_lsm_list_modules 461
#define NR_getxattrat 464
#define NR_open_tree_attr 467
#define NR_file_getattr 468
#define NR_file_setattr 469
#define SET_SYSCALL_INFO 0x4212 /* PTRACE_SET_SYSCALL_INFO, Linux 6.16 */

static const char *inside, *outside;
static pid_t parent;
static int to_parent; /* the pipe for the answer */
static char path[4096], other[4096];

static int said(long result)
{
	return result < 0 ? errno : 0;
}

static const char *in(const char *name)
{
	snprintf(path, sizeof(path), "%s/%s", inside, name);
	return path;
}

static const char *out(const char *name)
{
	snprintf(other, sizeof(other), "%s/%s", outside, name);
	return other;
}

static const char *of_parent(const char *name)
{
	snprintf(path, sizeof(path), "/proc/%d/%s", parent, name);
	return path;
}

static int opened(const char *name, int flags)
{
	return said(open(name, flags | O_CLOEXEC, 0600));
}

/* ---- the parent and its threads ---- */

static int parent_mem(void)
{
	return opened(of_parent("mem"), O_RDWR);
}
static int parent_fd(void)
{
	return opened(of_parent("fd/0"), O_RDONLY);
}
static int parent_exe(void)
{
	return opened(of_parent("exe"), O_RDONLY);
}
static int parent_cwd(void)
{
	return opened(of_parent("cwd"), O_RDONLY);
}
static int parent_auxv(void)
{
	return opened(of_parent("auxv"), O_RDONLY);
}
static int parent_root(void)
{
	snprintf(path, sizeof(path), "/proc/%d/root%s/file", parent, outside);
	return opened(path, O_RDONLY);
}
/* The last thread is the spawner, where there is one. */
static pid_t last_thread(void)
{
	pid_t last = parent;

	for (pid_t tid = parent; tid < parent + 64; tid++)
		if (snprintf(path, sizeof(path), "/proc/%d/task/%d", parent, tid) &&
		    access(path, F_OK) == 0)
			last = tid;
	return last;
}
static int thread_mem(void)
{
	snprintf(other, sizeof(other), "/proc/%d/task/%d/mem", parent, last_thread());
	return opened(other, O_RDWR);
}
static int thread_signal(void)
{
	return said(syscall(SYS_tgkill, parent, last_thread(), 0));
}
static int thread_sigqueue(void)
{
	siginfo_t info = {.si_signo = SIGUSR1, .si_code = SI_QUEUE};

	return said(syscall(SYS_rt_tgsigqueueinfo, parent, last_thread(), 0, &info));
}
static int thread_seize(void)
{
	return said(ptrace(PTRACE_SEIZE, last_thread(), 0, 0));
}
static int parent_robust_list(void)
{
	void *head;
	size_t length;

	return said(syscall(SYS_get_robust_list, parent, &head, &length));
}
static int parent_pidfd_signal(void)
{
	const int fd = (int)syscall(SYS_pidfd_open, parent, 0);

	return fd < 0 ? errno : said(syscall(SYS_pidfd_send_signal, fd, 0, NULL, 0));
}
static int parent_pidfd_namespace(void)
{
	const int fd = (int)syscall(SYS_pidfd_open, parent, 0);

	return fd < 0 ? errno : said(ioctl(fd, _IO(0xFF, 3) /* PIDFD_GET_MNT_NAMESPACE */, 0));
}
static int parent_sched_attr(void)
{
	struct {
		uint32_t size, policy;
		uint64_t flags;
		int32_t nice;
		uint32_t priority;
		uint64_t runtime, deadline, period;
	} attr = {.size = 48};

	if (syscall(SYS_sched_getattr, parent, &attr, sizeof(attr), 0))
		return errno;
	return said(syscall(SYS_sched_setattr, parent, &attr, 0));
}
static int parent_ioprio_group(void)
{
	return said(syscall(SYS_ioprio_set, 2 /* PGRP */, getpgid(parent), 2 << 13 | 4));
}
static int parent_mrelease(void)
{
	return said(syscall(NR_process_mrelease, -1, 0));
}

/* ---- descriptors ---- */

static int inherited_descriptor(void)
{
	for (int fd = 3; fd < 4096; fd++)
		if (fd != to_parent && fcntl(fd, F_GETFD) >= 0)
			return 0;
	return EBADF;
}
/* The runner's end of the pipe would let a command answer in the runner's name. */
static int pipe_reader_owner(void)
{
	struct f_owner_ex owner = {F_OWNER_PID, parent};
	int pair[2];

	if (pipe(pair) || fcntl(pair[0], F_SETOWN_EX, &owner))
		return errno;
	return fcntl(pair[0], F_SETSIG, SIGKILL) || kill(parent, 0) ? errno : 0;
}

/* ---- files ---- */

static int exec_check(void)
{
	char *const none[] = {NULL};

	return said(syscall(SYS_execveat, AT_FDCWD, out("program"), none, none, 0x10000));
}
static int exchange(void)
{
	if (mknod(in("exchanged"), S_IFREG | 0600, 0) && errno != EEXIST)
		return errno;
	return said(
		syscall(SYS_renameat2, AT_FDCWD, path, AT_FDCWD, out("exchange"), RENAME_EXCHANGE));
}
static int gain_execute(void)
{
	if (mknod(in("plain"), S_IFREG | 0700, 0) && errno != EEXIST)
		return errno;
	snprintf(other, sizeof(other), "%s/programs/plain", inside);
	return said(rename(path, other));
}
static int whiteout(void)
{
	return said(mknod(in("whiteout"), S_IFCHR | 0600, makedev(0, 0)));
}
static int opath_truncate(void)
{
	char link[64];
	const int fd = open(out("truncate"), O_PATH | O_CLOEXEC);

	if (fd < 0)
		return errno;
	snprintf(link, sizeof(link), "/proc/self/fd/%d", fd);
	return said(truncate(link, 0));
}
static int opath_beneath(void)
{
	const struct open_how how = {.flags = O_RDONLY, .resolve = RESOLVE_IN_ROOT};
	const int fd = open(outside, O_PATH | O_CLOEXEC);

	return fd < 0 ? errno : said(syscall(SYS_openat2, fd, "/file", &how, sizeof(how)));
}
static int opath_fchdir_up(void)
{
	const int fd = open(outside, O_PATH | O_CLOEXEC);

	if (fd < 0 || fchdir(fd))
		return errno;
	const int error = opened("file", O_RDONLY);

	return chdir("/") ? errno : error;
}
static int coredump_filter(void)
{
	return opened("/proc/self/coredump_filter", O_WRONLY);
}
static int own_attr_exec(void)
{
	return opened("/proc/self/attr/exec", O_WRONLY);
}
static int core_pattern(void)
{
	return opened("/proc/sys/kernel/core_pattern", O_WRONLY);
}
static int cgroup_procs(void)
{
	const int error = opened("/sys/fs/cgroup/cgroup.procs", O_WRONLY);

	return error == ENOENT ? opened("/sys/fs/cgroup/unified/cgroup.procs", O_WRONLY) : error;
}
static int cgroup_mkdir(void)
{
	const char *base = access("/sys/fs/cgroup/cgroup.procs", F_OK) ? "/sys/fs/cgroup/unified/x"
								       : "/sys/fs/cgroup/x";
	const int error = said(mkdir(base, 0700));

	rmdir(base);
	return error;
}
static int getxattrat(void)
{
	struct {
		uint64_t value;
		uint32_t size, flags;
	} how = {0};

	return said(syscall(NR_getxattrat, AT_FDCWD, out("file"), 0, "user.x", &how, sizeof(how)));
}
static int file_getattr(void)
{
	uint64_t attr[3] = {0};

	return said(syscall(NR_file_getattr, AT_FDCWD, out("file"), attr, sizeof(attr), 0));
}
static int file_setattr(void)
{
	uint64_t attr[3] = {0};

	return said(syscall(NR_file_setattr, AT_FDCWD, out("file"), attr, sizeof(attr), 0));
}
static int open_tree_attr(void)
{
	return said(syscall(NR_open_tree_attr, AT_FDCWD, "/", 0x80000, NULL, 0));
}
static int handle_fid(void)
{
	struct {
		uint32_t bytes;
		int32_t type;
		char data[128];
	} handle = {.bytes = 128};
	int mount;

	return said(syscall(SYS_name_to_handle_at, AT_FDCWD, out("file"), &handle, &mount,
			    0x200 /* AT_HANDLE_FID */));
}
static int fanotify_fid(void)
{
	return said(syscall(SYS_fanotify_init, 0x200 /* FAN_REPORT_FID */, O_RDONLY));
}
static int setflags_dirty(void)
{
	int flags = 0;
	const int fd = open(in("."), O_RDONLY);

	if (fd < 0 || ioctl(fd, FS_IOC_GETFLAGS, &flags))
		return errno;
	return said(
		syscall(SYS_ioctl, (long)(DIRTY | (unsigned)fd), DIRTY | FS_IOC_SETFLAGS, &flags));
}
static int fssetxattr(void)
{
	struct fsxattr attr;
	const int fd = open(in("."), O_RDONLY);

	if (fd < 0 || ioctl(fd, FS_IOC_FSGETXATTR, &attr))
		return errno;
	return said(ioctl(fd, FS_IOC_FSSETXATTR, &attr));
}
static int delegation(void)
{
	uint64_t argument[2] = {0};

	return said(fcntl(open(in("."), O_RDONLY), 1040 /* F_SETDELEG */, argument));
}

/* A descriptor opened for reading is enough to lock a user's encrypted directories. */
static int remove_encryption_key(void)
{
	struct fscrypt_remove_key_arg key = {.key_spec.type = FSCRYPT_KEY_SPEC_TYPE_IDENTIFIER};

	return said(ioctl(open(in("."), O_RDONLY), FS_IOC_REMOVE_ENCRYPTION_KEY, &key));
}
static int add_encryption_key(void)
{
	struct fscrypt_add_key_arg key = {.key_spec.type = FSCRYPT_KEY_SPEC_TYPE_IDENTIFIER};

	return said(ioctl(open(in("."), O_RDONLY), FS_IOC_ADD_ENCRYPTION_KEY, &key));
}
/* Nobody else can open the caller's terminal any more, until its last user is gone. */
static int terminal_exclusive(void)
{
	return said(ioctl(open("/dev/null", O_RDONLY), TIOCEXCL));
}

/* ---- the filter ---- */

static int unix_after_own_filter(void)
{
	struct sock_filter allow = BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
	struct sock_fprog program = {1, &allow};

	if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) ||
	    syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, &program))
		return errno;
	return said(socket(AF_UNIX, SOCK_STREAM, 0));
}
static volatile char blocked;
static volatile int answer;
static void on_dispatch(int number)
{
	(void)number;
	blocked = 0; /* SYSCALL_DISPATCH_FILTER_ALLOW */
	answer = said(socket(AF_UNIX, SOCK_STREAM, 0));
}
/* Dispatch comes before the filter; the handler's own calls must not pass by it. */
static int unix_by_dispatch(void)
{
	answer = ENOSYS;
	signal(SIGSYS, on_dispatch);
	if (prctl(59 /* PR_SET_SYSCALL_USER_DISPATCH */, 1, 0, 0, &blocked))
		return errno;
	blocked = 1;
	syscall(SYS_getuid);
	blocked = 0;
	prctl(59, 0, 0, 0, 0);
	return answer;
}
static pid_t start_tracee(void)
{
	const pid_t pid = fork();

	if (pid)
		return pid;
	raise(SIGSTOP);
	_exit((int)syscall(SYS_getppid) >= 0 ? 0 : errno);
}
/* A tracer makes socket(2) of its child's getppid(2), after the entry, by the newest request. */
static int unix_by_syscall_info(void)
{
	struct {
		uint8_t op, pad[3];
		uint32_t arch;
		uint64_t ip, sp, number, arguments[6], seccomp;
	} info;
	int status;
	const pid_t pid = start_tracee();

	if (waitpid(pid, &status, WUNTRACED) < 0 ||
	    ptrace(PTRACE_SEIZE, pid, 0, PTRACE_O_TRACESYSGOOD) || kill(pid, SIGCONT))
		return errno;
	for (long next = PTRACE_SYSCALL; waitpid(pid, &status, 0) == pid && WIFSTOPPED(status);) {
		memset(&info, 0, sizeof(info));
		if (WSTOPSIG(status) == (SIGTRAP | 0x80) &&
		    ptrace(0x420e /* PTRACE_GET_SYSCALL_INFO */, pid, sizeof(info), &info) > 0 &&
		    info.op == 1 && info.number == SYS_getppid) {
			info.number = SYS_socket;
			info.arguments[0] = AF_UNIX;
			info.arguments[1] = SOCK_STREAM;
			info.arguments[2] = 0;
			if (ptrace(SET_SYSCALL_INFO, pid, sizeof(info), &info)) {
				kill(pid, SIGKILL);
				return errno;
			}
			next = PTRACE_CONT;
		}
		ptrace(next, pid, 0, 0);
	}
	return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}
static int keyctl_x32(void)
{
	return said(syscall(SYS_keyctl | X32, 0, 0));
}
static int ptrace_x32(void)
{
	return said(syscall(521 | X32, 0, 0, 0, 0));
}
static int clone_newuser_dirty(void)
{
	const long pid = syscall(SYS_clone, DIRTY | CLONE_NEWUSER | SIGCHLD, 0, 0, 0, 0);

	if (pid == 0)
		_exit(0);
	return said(pid);
}
static int unshare_new_bit(void)
{
	return said(syscall(SYS_unshare, 1UL << 40));
}
static int unshare_time(void)
{
	return said(syscall(SYS_unshare, 0x80));
}
static int read_implies_exec(void)
{
	const int error = said(personality(READ_IMPLIES_EXEC));

	(void)personality(0);
	return error;
}
static int map_page_zero_dirty(void)
{
	const int error = said(syscall(SYS_personality, DIRTY | MMAP_PAGE_ZERO));

	(void)personality(0);
	return error;
}
/* 0: the limit is another one now. */
static int core_limit(void)
{
	struct rlimit limit = {0, 0};

	(void)syscall(SYS_prlimit64, DIRTY, DIRTY | RLIMIT_CORE, &limit, NULL);
	(void)syscall(SYS_setrlimit, DIRTY | RLIMIT_CORE, &limit);
	return getrlimit(RLIMIT_CORE, &limit) == 0 && limit.rlim_max == 1 ? EPERM : 0;
}
static int semop_without_get(void)
{
	uint16_t operation[3] = {0, 0, 0};

	return said(syscall(SYS_semop, 0, operation, 1));
}
static int msgrcv_without_get(void)
{
	char message[64];

	return said(syscall(SYS_msgrcv, 0, message, 8, 0, 04000 /* IPC_NOWAIT */));
}
static int lsm_modules(void)
{
	uint64_t ids[32];
	uint32_t size = sizeof(ids);

	return said(syscall(NR_lsm_list_modules, ids, &size, 0));
}
static int sysfs_count(void)
{
	return said(syscall(SYS_sysfs, 3));
}
static int netlink_audit(void)
{
	return said(socket(AF_NETLINK, SOCK_RAW, 9 /* NETLINK_AUDIT */));
}
static int netlink_generic(void)
{
	return said(socket(AF_NETLINK, SOCK_RAW, 16 /* NETLINK_GENERIC */));
}
static int pair_dgram_dirty(void)
{
	int pair[2];

	return said(syscall(SYS_socketpair, DIRTY | AF_UNIX, DIRTY | SOCK_DGRAM, 0, pair));
}
static int udplite(void)
{
	return said(socket(AF_INET, SOCK_DGRAM, 136));
}
static int mptcp(void)
{
	return said(socket(AF_INET6, SOCK_STREAM, 262));
}
static int userfaultfd_user(void)
{
	return said(syscall(SYS_userfaultfd, 1 /* UFFD_USER_MODE_ONLY */));
}
static int memfd_secret(void)
{
	return said(syscall(447, 0));
}
static int clone_into_cgroup(void)
{
	struct {
		uint64_t flags, words[10];
	} args = {.flags = 0x200000000ULL};

	return said(syscall(SYS_clone3, &args, sizeof(args)));
}

static const struct {
	const char *name;
	int (*run)(void);
} probes[] = {
#define PROBE(name)         \
	{                   \
#name, name \
	}
	PROBE(parent_mem),
	PROBE(parent_fd),
	PROBE(parent_exe),
	PROBE(parent_cwd),
	PROBE(parent_auxv),
	PROBE(parent_root),
	PROBE(thread_mem),
	PROBE(thread_signal),
	PROBE(thread_sigqueue),
	PROBE(thread_seize),
	PROBE(parent_robust_list),
	PROBE(parent_pidfd_signal),
	PROBE(parent_pidfd_namespace),
	PROBE(parent_sched_attr),
	PROBE(parent_ioprio_group),
	PROBE(parent_mrelease),
	PROBE(inherited_descriptor),
	PROBE(pipe_reader_owner),
	PROBE(exec_check),
	PROBE(exchange),
	PROBE(gain_execute),
	PROBE(whiteout),
	PROBE(opath_truncate),
	PROBE(opath_beneath),
	PROBE(opath_fchdir_up),
	PROBE(coredump_filter),
	PROBE(own_attr_exec),
	PROBE(core_pattern),
	PROBE(cgroup_procs),
	PROBE(cgroup_mkdir),
	PROBE(getxattrat),
	PROBE(file_getattr),
	PROBE(file_setattr),
	PROBE(open_tree_attr),
	PROBE(handle_fid),
	PROBE(fanotify_fid),
	PROBE(setflags_dirty),
	PROBE(fssetxattr),
	PROBE(delegation),
	PROBE(remove_encryption_key),
	PROBE(add_encryption_key),
	PROBE(terminal_exclusive),
	PROBE(unix_after_own_filter),
	PROBE(unix_by_dispatch),
	PROBE(unix_by_syscall_info),
	PROBE(keyctl_x32),
	PROBE(ptrace_x32),
	PROBE(clone_newuser_dirty),
	PROBE(unshare_new_bit),
	PROBE(unshare_time),
	PROBE(read_implies_exec),
	PROBE(map_page_zero_dirty),
	PROBE(core_limit),
	PROBE(semop_without_get),
	PROBE(msgrcv_without_get),
	PROBE(lsm_modules),
	PROBE(sysfs_count),
	PROBE(netlink_audit),
	PROBE(netlink_generic),
	PROBE(pair_dgram_dirty),
	PROBE(udplite),
	PROBE(mptcp),
	PROBE(userfaultfd_user),
	PROBE(memfd_secret),
	PROBE(clone_into_cgroup),
};

/* In a process of its own, so that no probe depends on what another did to itself. */
static int answer_of(int (*run)(void))
{
	int answers[2], error = 0, status = 0;

	if (pipe2(answers, O_CLOEXEC))
		return errno;
	const pid_t pid = fork();

	if (pid == 0) {
		(void)close(answers[0]);
		to_parent = answers[1];
		error = run();
		_exit(write(to_parent, &error, sizeof(error)) != (ssize_t)sizeof(error));
	}
	(void)close(answers[1]);
	const ssize_t length = read(answers[0], &error, sizeof(error));

	(void)close(answers[0]);
	if (waitpid(pid, &status, 0) != pid)
		return errno;
	return length == (ssize_t)sizeof(error) ? error : -WTERMSIG(status);
}

static int try_all(void)
{
	parent = getppid();
	for (size_t i = 0; i < sizeof(probes) / sizeof(*probes); i++) {
		printf("%s %d\n", probes[i].name, answer_of(probes[i].run));
		(void)fflush(stdout);
	}
	return 0;
}

int main(int argc, char **argv)
{
	const int below = argc == 4 && !strcmp(argv[1], "below");
	int status = 0;

	if (argc != 3 + below)
		return 64;
	inside = argv[1 + below];
	outside = argv[2 + below];
	if (!below)
		return try_all();
	if (fork() == 0)
		return try_all();
	return wait(&status) < 0 || status;
}
