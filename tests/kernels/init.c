/* SPDX-License-Identifier: Apache-2.0
 *
 * Process 1 of the guests of tests/kernels: mounts what a program expects, runs one table of
 * commands chosen by `plan=` on the kernel command line, prints TAP on the console, powers off.
 * What each kernel must answer is said in plans.h; nothing here judges by a version string.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <net/if.h>
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/reboot.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <sys/utsname.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "plans.h"

#define ROW_TIMEOUT_MS 60000
#define OUTPUT_MAX 262144

struct outcome {
	int status; /* exit code, or 128 + signal */
	char output[OUTPUT_MAX];
};

static const struct {
	const char *type, *target, *options;
	mode_t mode;
} mounts[] = {
	{"devtmpfs", "/dev", "", 0755},
	{"devpts", "/dev/pts", "ptmxmode=0666", 0755},
	{"proc", "/proc", "", 0755},
	{"sysfs", "/sys", "", 0755},
	{"cgroup2", "/sys/fs/cgroup", "", 0755},
	{"tmpfs", "/tmp", "mode=1777", 01777},
	{"tmpfs", "/run", "mode=0755", 0755},
};

static void give_up(const char *what)
{
	printf("Bail out! %s: %s\n", what, strerror(errno));
	fflush(stdout);
	(void)reboot(RB_POWER_OFF);
	_exit(1); /* ends process 1: the kernel panics and qemu stops, see panic=-1 */
}

static void mount_all(void)
{
	for (size_t i = 0; i < sizeof(mounts) / sizeof(mounts[0]); i++) {
		(void)mkdir(mounts[i].target, mounts[i].mode); /* sysfs brings its own */
		if (mount(mounts[i].type, mounts[i].target, mounts[i].type, 0, mounts[i].options) !=
		    0)
			give_up(mounts[i].target);
	}
}

static void use_console(void)
{
	int fd = open("/dev/console", O_RDWR);

	for (int target = 0; fd >= 0 && target < 3; target++)
		(void)dup2(fd, target); /* without a console there is nobody to tell */
	setvbuf(stdout, NULL, _IOLBF, 0);
}

static void raise_loopback(void)
{
	struct ifreq request = {.ifr_name = "lo", .ifr_flags = IFF_UP | IFF_RUNNING};
	int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);

	if (fd < 0 || ioctl(fd, SIOCSIFFLAGS, &request) != 0)
		give_up("loopback");
	close(fd);
}

/* A stand-in for a host service: what is sent waits in its queue, which is all a probe needs. */
static void serve_as_victim(int type, const char *path)
{
	struct sockaddr_un address = {.sun_family = AF_UNIX};
	int fd = socket(AF_UNIX, type | SOCK_CLOEXEC, 0);

	strncpy(address.sun_path, path, sizeof(address.sun_path) - 1);
	if (fd < 0 || bind(fd, (struct sockaddr *)&address, sizeof(address)) != 0)
		give_up(path);
	if ((type == SOCK_STREAM && listen(fd, 128) != 0) || chmod(path, 0777) != 0)
		give_up(path);
}

static void write_file(const char *path, const char *text)
{
	int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);

	if (fd < 0 || write(fd, text, strlen(text)) != (ssize_t)strlen(text))
		give_up(path);
	close(fd);
}

static void make_tree(void)
{
	static const char *const directories[] = {INSIDE, INSIDE "/a", INSIDE "/b", OUTSIDE};

	for (size_t i = 0; i < sizeof(directories) / sizeof(directories[0]); i++)
		if (mkdir(directories[i], 0755) != 0 || chmod(directories[i], 0777) != 0)
			give_up(directories[i]);
	write_file(OUTSIDE "/file", "outside\n");
	write_file(INSIDE "/file", "inside\n");
	if (chmod(OUTSIDE "/file", 0666) != 0 || chmod(INSIDE "/file", 0666) != 0)
		give_up(OUTSIDE);
}

static void become(unsigned int uid)
{
	if (uid == 0)
		return;
	if (setgroups(0, NULL) != 0 || setresgid(uid, uid, uid) != 0 ||
	    setresuid(uid, uid, uid) != 0)
		_exit(126);
}

static void run_child(const struct row *row, int output)
{
	static char *const environment[] = {"PATH=/bin", "TMPDIR=/tmp", "HOME=/tmp", NULL};

	(void)dup2(open("/dev/null", O_RDONLY), 0); /* a failure shows as a row that fails */
	(void)dup2(output, 1);
	(void)dup2(output, 2);
	if (setsid() < 0 || chdir("/tmp") != 0)
		_exit(126);
	become(row->uid);
	execve(row->argv[0], (char *const *)row->argv, environment);
	_exit(127);
}

static int left_ms(const struct timespec *start)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return ROW_TIMEOUT_MS - (int)((now.tv_sec - start->tv_sec) * 1000 +
				      (now.tv_nsec - start->tv_nsec) / 1000000);
}

/* Reads until the last writer is gone or the time is over; false when it is over. */
static int collect(int fd, char *ret_output)
{
	struct pollfd wait_for = {.fd = fd, .events = POLLIN};
	struct timespec start;
	size_t used = 0;
	int left;

	clock_gettime(CLOCK_MONOTONIC, &start);
	while ((left = left_ms(&start)) > 0) {
		ssize_t got;

		if (poll(&wait_for, 1, left) <= 0)
			continue;
		got = read(fd, ret_output + used, OUTPUT_MAX - 1 - used);
		if (got <= 0)
			break;
		used += (size_t)got;
	}
	ret_output[used] = '\0';
	return left > 0;
}

static void run_row(const struct row *row, struct outcome *ret_outcome)
{
	int ends[2], status;
	pid_t pid;

	if (pipe2(ends, O_CLOEXEC) != 0)
		give_up("pipe");
	pid = fork();
	if (pid < 0)
		give_up("fork");
	if (pid == 0)
		run_child(row, ends[1]);
	close(ends[1]);
	if (!collect(ends[0], ret_outcome->output))
		(void)kill(-pid, SIGKILL); /* it may have just ended */
	close(ends[0]);
	while (waitpid(pid, &status, 0) < 0 && errno == EINTR)
		;
	ret_outcome->status = WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
}

static void print_output(const char *text)
{
	char *copy = strdup(text), *rest = copy;

	for (char *line; copy != NULL && (line = strsep(&rest, "\n")) != NULL;)
		if (*line != '\0')
			printf("# | %s\n", line);
	free(copy);
}

static int satisfied(const struct row *row, const struct outcome *outcome)
{
	if (outcome->status != row->expected)
		return 0;
	for (size_t i = 0; i < SAYS_MAX && row->says[i] != NULL; i++)
		if (strstr(outcome->output, row->says[i]) == NULL)
			return 0;
	if (row->leaves != NULL && access(row->leaves, F_OK) != 0)
		return 0;
	return row->never_made == NULL || access(row->never_made, F_OK) != 0;
}

static int check_row(size_t number, const struct row *row)
{
	static struct outcome outcome;
	int ok;

	run_row(row, &outcome);
	ok = satisfied(row, &outcome);
	printf("%s %zu - %s (%s)\n", ok ? "ok" : "not ok", number, row->name,
	       row->uid == 0 ? "root" : "user");
	if (!ok) {
		printf("# wanted status %d, got %d\n", row->expected, outcome.status);
		for (size_t i = 0; i < SAYS_MAX && row->says[i] != NULL; i++)
			printf("# wanted to read '%s'\n", row->says[i]);
	}
	if (!ok || row->show)
		print_output(outcome.output);
	return ok;
}

static int check_abi(const struct plan *plan)
{
	long abi = syscall(444, NULL, 0, 1); /* landlock_create_ruleset: which version? */
	int ok = (abi < 0 ? -errno : (int)abi) == plan->abi;

	printf("%s 1 - the kernel itself reports Landlock ABI %d\n", ok ? "ok" : "not ok",
	       plan->abi);
	if (!ok)
		printf("# got %ld, errno %d\n", abi, abi < 0 ? errno : 0);
	return ok;
}

static int run_plan(const struct plan *plan)
{
	struct utsname name;
	size_t n_rows = 0;
	int failures;

	while (plan->rows[n_rows].name != NULL)
		n_rows++;
	if (uname(&name) == 0)
		printf("# Linux %s, plan %s\n", name.release, plan->name);
	printf("1..%zu\n", n_rows + 1);
	failures = !check_abi(plan);
	for (size_t i = 0; i < n_rows; i++)
		failures += !check_row(i + 2, &plan->rows[i]);
	return failures;
}

int main(void)
{
	const char *wanted =
		getenv("plan"); /* the kernel hands unknown words of its command line on */
	int found = 0;

	use_console();
	mount_all();
	use_console();
	raise_loopback();
	make_tree();
	serve_as_victim(SOCK_STREAM, VICTIM);
	serve_as_victim(SOCK_DGRAM, VICTIM_LOG);
	for (size_t i = 0; i < sizeof(plans) / sizeof(plans[0]); i++) {
		if (wanted == NULL || strcmp(plans[i].name, wanted) != 0)
			continue;
		printf("# plan %s: %d failed\n", wanted, run_plan(&plans[i]));
		found = 1;
	}
	if (!found)
		printf("Bail out! no plan named '%s'\n", wanted == NULL ? "" : wanted);
	fflush(stdout);
	(void)reboot(RB_POWER_OFF);
	return 1;
}
