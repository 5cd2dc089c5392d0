/* SPDX-License-Identifier: Apache-2.0
 *
 * Ending a tree of processes completely; see supervise.h.
 *
 * A direct child that has not been reaped cannot have its number reused, so kill(2) on it is exact.
 * Killing all direct children and reaping them brings the next generation up as new direct
 * children; the loop ends when wait4(2) says ECHILD, which is the kernel's own word that nobody is
 * left.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "supervise.h"

#define SCAN_LIMIT_MS 100
#define REAP_BATCH 4096 /* some ms; the list of children is slow to read while it is long */
#define SCAN_MS 20      /* reading all of /proc is dear */
#define CGROUP_MS 50    /* then it is no ordinary tree */

struct process {
	pid_t pid, parent;
	int descendant;
};

static uint64_t now_ms(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000 + (uint64_t)t.tv_nsec / 1000000;
}

/* The parent of a process and whether it is a zombie, from /proc/PID/stat (proc(5)); -1 when it is
 * gone. The command name may hold anything, so the fields are counted from the last ')'. */
static pid_t parent_of(pid_t pid, int *ret_zombie)
{
	char path[32], text[512], state;
	int parent;
	snprintf(path, sizeof path, "/proc/%d/stat", pid);
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		return -1;
	ssize_t n = read(fd, text, sizeof text - 1);
	close(fd);
	if (n <= 0)
		return -1;
	text[n] = 0;
	const char *fields = strrchr(text, ')');
	if (!fields || sscanf(fields + 1, " %c %d", &state, &parent) != 2)
		return -1;
	*ret_zombie = state == 'Z' || state == 'X';
	return parent;
}

/* Every living process this one may see. Owned by the caller. */
static struct process *list_processes(size_t *ret_n)
{
	DIR *proc = opendir("/proc");
	if (!proc)
		return NULL;
	struct process *list = NULL;
	size_t n = 0, capacity = 0;
	const uint64_t deadline =
		now_ms() + SCAN_LIMIT_MS; /* a storm of dead must not hold us up */
	for (struct dirent *entry; (entry = readdir(proc)) && now_ms() < deadline;) {
		int zombie = 0, pid = atoi(entry->d_name);
		if (pid <= 0)
			continue;
		if (n == capacity) {
			capacity = capacity ? capacity * 2 : 256;
			struct process *grown = realloc(list, capacity * sizeof *list);
			if (!grown)
				break;
			list = grown;
		}
		pid_t parent = parent_of(pid, &zombie);
		if (parent > 0 && !zombie)
			list[n++] = (struct process){.pid = pid, .parent = parent};
	}
	closedir(proc);
	*ret_n = n;
	return list;
}

static int by_pid(const void *a, const void *b)
{
	const struct process *left = a, *right = b;
	return (left->pid > right->pid) - (left->pid < right->pid);
}

static int is_descendant(const struct process *list, size_t n, pid_t parent)
{
	if (parent == getpid())
		return 1;
	const struct process key = {.pid = parent};
	const struct process *found = bsearch(&key, list, n, sizeof *list, by_pid);
	return found && found->descendant;
}

static void mark_descendants(struct process *list, size_t n)
{
	qsort(list, n, sizeof *list, by_pid);
	for (int changed = 1; changed;) {
		changed = 0;
		for (size_t i = 0; i < n; i++)
			if (!list[i].descendant && is_descendant(list, n, list[i].parent))
				list[i].descendant = changed = 1;
	}
}

static int signal_one(const struct process *process, int signal)
{
	int zombie, signalled = 0;
	int pidfd = (int)syscall(SYS_pidfd_open, process->pid, 0);
	if (pidfd < 0)
		return 0;
	if (parent_of(process->pid, &zombie) == process->parent)
		signalled = syscall(SYS_pidfd_send_signal, pidfd, signal, NULL, 0) == 0;
	close(pidfd);
	return signalled;
}

/* Ahead of what it chases, where that is allowed (CAP_SYS_NICE); this thread only. A real-time
 * class, as with autogroups (sched(7)) each session has the same share whatever its nice value. */
void supervise_hurry(int on)
{
	const int policy = on ? SCHED_FIFO : SCHED_OTHER;

	const struct sched_param priority = {.sched_priority = policy == SCHED_FIFO};
	/* musl's sched_setscheduler says ENOSYS by itself */
	(void)syscall(SYS_sched_setscheduler, 0, policy, &priority);
}

int supervise_signal(int signal)
{
	size_t n = 0;
	int signalled = 0;
	struct process *list = list_processes(&n);
	if (!list)
		return -ENOENT;
	mark_descendants(list, n);
	for (size_t i = 0; i < n; i++)
		if (list[i].descendant)
			signalled += signal_one(&list[i], signal);
	free(list);
	return signalled;
}

/* The direct children of one of our threads, from the kernel's own list: cheap, and exact as they
 * are unreaped. */
static int kill_children_of(const char *task)
{
	char path[64];
	snprintf(path, sizeof path, "/proc/self/task/%.16s/children", task);
	FILE *children = fopen(path, "re");
	if (!children)
		return -errno;
	for (int pid; fscanf(children, "%d", &pid) == 1;)
		kill(pid, SIGKILL);
	fclose(children);
	return 0;
}

/* Kernels built without CONFIG_PROC_CHILDREN have no such list; then the whole of /proc is read. */
static void kill_children_slowly(void)
{
	size_t n = 0;
	struct process *list = list_processes(&n);
	for (size_t i = 0; list && i < n; i++)
		if (list[i].parent == getpid())
			kill(list[i].pid, SIGKILL);
	free(list);
}

/* A child is on the list of the thread that made or inherited it. */
static void kill_children(void)
{
	int missing = 1;
	DIR *tasks = opendir("/proc/self/task");
	if (tasks) {
		for (struct dirent *task; (task = readdir(tasks));)
			if (task->d_name[0] != '.')
				missing = kill_children_of(task->d_name) == -ENOENT;
		closedir(tasks);
	}
	if (missing)
		kill_children_slowly();
}

static int write_to(int directory_fd, const char *name, const char *text)
{
	int fd = openat(directory_fd, name, O_WRONLY | O_CLOEXEC);
	if (fd < 0)
		return -errno;
	ssize_t written = write(fd, text, strlen(text));
	close(fd);
	return written < 0 ? -EIO : 0;
}

/* cgroup.kill (Linux 5.14) takes all that is in a cgroup at once, so first get out of it. */
static int leave_and_kill(int cgroup_fd)
{
	return !write_to(cgroup_fd, "../cgroup.procs", "0") &&
	       !write_to(cgroup_fd, "cgroup.kill", "1");
}

int supervise_reap(struct supervise_tree *tree, int limit, int *ret_reaped)
{
	*ret_reaped = 0;
	while (*ret_reaped < limit) {
		struct rusage usage;
		int status;
		pid_t pid = wait4(-1, &status, WNOHANG, &usage);
		if (pid == 0)
			return 0;
		if (pid < 0 && errno == EINTR)
			continue;
		if (pid < 0)
			return 1; /* ECHILD */
		(*ret_reaped)++;
		if (WIFSTOPPED(status) || WIFCONTINUED(status))
			continue; /* PTRACE_TRACEME makes us the tracer: a stop, which is not an end
				   */
		if (pid == tree->leader) {
			tree->leader_reaped = 1;
			tree->leader_status = status;
			tree->usage = usage;
		} else if (WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL)
			tree->killed++;
	}
	return 0;
}

/* One round: everybody that can be seen is sent SIGKILL. */
static void strike(struct supervise_tree *tree, uint64_t since_ms, uint64_t *next_scan_ms)
{
	const uint64_t now = now_ms();
	kill_children();
	if (now >= *next_scan_ms) { /* a bomb forks faster than generation by generation */
		supervise_signal(SIGKILL);
		*next_scan_ms = now + SCAN_MS;
	}
	if (tree->cgroup_fd >= 0 && !tree->left_cgroup && now >= since_ms + CGROUP_MS)
		tree->left_cgroup = leave_and_kill(tree->cgroup_fd);
}

int supervise_kill(struct supervise_tree *tree, uint32_t limit_ms)
{
	sigset_t chld;
	sigemptyset(&chld);
	sigaddset(&chld, SIGCHLD);
	int reaped, empty = supervise_reap(tree, REAP_BATCH, &reaped);
	tree->killed = 0; /* what ended by itself before was not killed by us */
	if (empty)
		return 0;
	const uint64_t start = now_ms();
	uint64_t next_scan = start + SCAN_MS;
	supervise_hurry(1);
	do {
		strike(tree, start, &next_scan);
		empty = supervise_reap(tree, REAP_BATCH, &reaped);
		const struct timespec patience = {.tv_nsec = 5000000};
		if (!empty && !reaped)
			sigtimedwait(&chld, NULL, &patience); /* a death, or another round */
	} while (!empty && now_ms() < start + limit_ms);
	supervise_hurry(0);
	return empty ? 0 : -ETIMEDOUT;
}
