/* SPDX-License-Identifier: Apache-2.0
 *
 * confine(1): run one command in the sandbox.
 *
 * Owns the order of things.  The executable is static, so that nothing in the caller's environment
 * can run code in it before it has confined itself.  It confines itself and then executes the
 * command, without a process in between, unless it must stay (--supervise) or cannot start a
 * session where it is (it leads a process group, as under an interactive shell); then a child does
 * the same.
 */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/auxv.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "confinement.h"
#include "internal.h"
#include "kernel.h"
#include "parent.h"
#include "print.h"
#include "report.h"

#define DEFAULT_PATH "/usr/local/bin:/usr/bin:/bin"
#define KERNEL_SIGNALS 64

/* ---- descriptors and signals as the command finds them ---- */

static void put_null(int fd)
{
	const int null = open("/dev/null", O_RDWR | O_CLOEXEC);

	if (null < 0 || (null == fd ? fcntl(fd, F_SETFD, 0) : dup2(null, fd)) < 0)
		refuse(CONFINE_SETUP,
		       "stdio: cannot open '/dev/null': %s (%s); this system needs one",
		       strerror(errno), errno_name(errno));
	if (null > STDERR_FILENO)
		(void)close(null); /* nothing was written */
}

/* A socket that is not connected, or of a datagram type, can be aimed at any other of its family by
 * address. The filter refuses only to create one. */
static int is_way_out(int fd, int net_none)
{
	struct sockaddr_storage peer;
	socklen_t peer_length = sizeof(peer), length = sizeof(int);
	int domain = 0, type = 0;
	struct stat status;

	if (fstat(fd, &status) < 0 || !S_ISSOCK(status.st_mode))
		return 0;
	if (getsockopt(fd, SOL_SOCKET, SO_DOMAIN, &domain, &length) < 0)
		return 1;
	if (domain == AF_INET || domain == AF_INET6)
		return net_none; /* a connected one can be disconnected and aimed anew */
	if (domain != AF_UNIX)
		return 1; /* netlink, packet, vsock: the filter makes none of them either */
	if (getsockopt(fd, SOL_SOCKET, SO_TYPE, &type, &length) < 0 ||
	    (type != SOCK_STREAM && type != SOCK_SEQPACKET))
		return 1;
	return getpeername(fd, (struct sockaddr *)&peer, &peer_length) < 0;
}

/* Every number below 3 is taken before anything else is opened, so that no descriptor of ours ever
 * becomes the command's input or output. */
static void open_stdio(void)
{
	struct pollfd standard[3] = {{.fd = 0}, {.fd = 1}, {.fd = 2}};

	if (poll(standard, 3, 0) < 0)
		refuse(CONFINE_SETUP, "stdio: poll: %s (%s); nothing was run", strerror(errno),
		       errno_name(errno));
	for (int fd = 0; fd < 3; fd++) {
		if (standard[fd].revents & POLLNVAL)
			put_null(fd);
	}
}

static void close_ways_out(int net_none)
{
	for (int fd = 0; fd < 3; fd++) {
		if (!is_way_out(fd, net_none))
			continue;
		report("stdio: descriptor %d is a socket that could be aimed elsewhere, giving the "
		       "command "
		       "/dev/null instead; use a pipe or a connected stream socket",
		       fd);
		put_null(fd);
	}
}

/* execve(2) keeps ignored signals ignored and blocked ones blocked. Raw calls: libc refuses to
 * touch the signals that it uses itself, and takes twice the time. */
static void reset_signals(void)
{
	static const struct {
		void (*handler)(int);
		unsigned long flags;
		void (*restorer)(void);
		uint64_t mask;
	} reset = {SIG_DFL, 0, NULL, 0};

	for (int number = 1; number <= KERNEL_SIGNALS;
	     number++) /* refused for SIGKILL and SIGSTOP */
		(void)raw4(SYS_rt_sigaction, number, (long)&reset, 0, sizeof(reset.mask));
	(void)raw4(SYS_rt_sigprocmask, SIG_SETMASK, (long)&reset.mask, 0, sizeof(reset.mask));
}

/* ---- the command ---- */

static int is_script(const char *path)
{
	char start[2] = {0};
	const int fd = open(path, O_RDONLY | O_CLOEXEC);
	const ssize_t length = fd < 0 ? 0 : read(fd, start, sizeof(start));

	if (fd >= 0)
		(void)close(fd); /* read only */
	return length == 2 && start[0] == '#' && start[1] == '!';
}

/* Why the kernel said EACCES. access(2) asks for the file's mode alone, execveat's check for
 * Landlock too, and neither for the interpreter that execve opens next. */
static void refuse_access(const char *path)
{
	static char *const nothing[] = {NULL};
	struct statvfs file_system;
	struct stat status;

	if (stat(path, &status) == 0 && S_ISDIR(status.st_mode))
		refuse(CONFINE_NOT_EXECUTABLE, "exec: '%s' is a directory; name a program", path);
	if (access(path, X_OK) < 0)
		refuse(CONFINE_NOT_EXECUTABLE, "exec: '%s': %s (%s); chmod +x makes it executable",
		       path, strerror(errno), errno_name(errno));
	if (statvfs(path, &file_system) == 0 && (file_system.f_flag & ST_NOEXEC))
		refuse(CONFINE_NOT_EXECUTABLE,
		       "exec: '%s' lies on a file system mounted noexec (EACCES)", path);
	if (raw5(SYS_execveat, AT_FDCWD, (long)path, (long)nothing, (long)nothing,
		 KERNEL_AT_EXECVE_CHECK) == 0)
		refuse(CONFINE_NOT_EXECUTABLE,
		       "exec: the interpreter of '%s' (%s) lies in no exec root (EACCES); grant it"
		       " with --exec, or the system's with --baseline",
		       path, is_script(path) ? "after its #!" : "its ELF loader");
	refuse(CONFINE_NOT_EXECUTABLE,
	       "exec: '%s' or its interpreter lies in no exec root (EACCES); grant its directory "
	       "with --exec, or the"
	       " system's with --baseline",
	       path);
}

static void refuse_command(const char *path, int error)
{
	if (error == EACCES)
		refuse_access(path);
	if (error == ENOENT && access(path, F_OK) == 0)
		refuse(CONFINE_NOT_EXECUTABLE,
		       "exec: the interpreter of '%s' (%s) does not exist (ENOENT)", path,
		       is_script(path) ? "after its #!" : "its ELF loader");
	if (error == ENOENT || error == ENOTDIR)
		refuse(CONFINE_NOT_FOUND,
		       "exec: '%s' not found (%s); a command without '/' is searched in PATH", path,
		       errno_name(error));
	refuse(CONFINE_NOT_EXECUTABLE, "exec: '%s': %s (%s)%s", path, strerror(error),
	       errno_name(error),
	       error == ENOEXEC
		       ? "; it is no program for this machine, and a script needs a #! line"
		       : "");
}

static const char *search_path(char *const *environment)
{
	for (; *environment; environment++) {
		if (!strncmp(*environment, "PATH=", 5))
			return *environment + 5;
	}
	return DEFAULT_PATH;
}

/* One directory of PATH and the name, as a path; an empty directory is the current one. */
static int join(const char *directory, size_t length, const char *name, char path[PATH_MAX])
{
	const int used = snprintf(path, PATH_MAX, "%.*s%s%s", (int)length, directory,
				  length ? "/" : "", name);

	return used > 0 && used < PATH_MAX;
}

/* Each candidate is tried by executing it, as execvp(3) does: what may be executed is the kernel's
 * decision, and it is made inside the sandbox. */
static void search_command(char **command, char **environment)
{
	static char path[PATH_MAX], denied[PATH_MAX];
	const char *directories = search_path(environment);

	for (const char *at = directories; at; at = strchr(at, ':') ? strchr(at, ':') + 1 : NULL) {
		if (!join(at, strcspn(at, ":"), *command, path))
			continue;
		(void)execve(path, command, environment);

		const int error = errno;

		if (error == EACCES && !*denied)
			memcpy(denied, path, sizeof(path));
		else if (error != EACCES &&
			 (access(path, F_OK) == 0 || (error != ENOENT && error != ENOTDIR)))
			refuse_command(path, error);
	}
	if (*denied)
		refuse_command(denied, EACCES);
	refuse(CONFINE_NOT_FOUND,
	       "exec: '%s' not found in PATH '%s'; give its path or set PATH with --env", *command,
	       directories);
}

static void execute(char **command, char **environment)
{
	if (!**command)
		refuse(CONFINE_NOT_FOUND, "exec: the command is empty; name a program");
	if (!strchr(*command, '/'))
		search_command(command, environment);
	(void)execve(*command, command, environment);
	refuse_command(*command, errno);
}

/* ---- putting it together ---- */

/* setsid(2) is refused to the leader of a process group. */
static int must_split(const struct confine_options *options)
{
	return (options->flags & CONFINE_SUPERVISE) ||
	       (!(options->flags & CONFINE_TTY) && getpgrp() == getpid());
}

static void split(const struct confine_options *options)
{
	const int flags = (options->flags & CONFINE_SUPERVISE ? PARENT_REAP : 0) |
			  (options->flags & CONFINE_TTY ? PARENT_TERMINAL : 0);
	const int error = parent_split(flags);

	if (error)
		refuse(CONFINE_SETUP,
		       "start: cannot run the command in a child: %s (%s); there may be too many "
		       "processes, or an outer sandbox forbids it",
		       strerror(-error), errno_name(-error));
}

static void run(const struct confine_options *options, struct confinement *confinement)
{
	struct sandbox_failure failure;
	long error;

	close_ways_out((options->flags & CONFINE_NET_NONE) != 0);
	if (must_split(options))
		split(options);
	if (sandbox_confine_self(&confinement->plan, &failure))
		refuse_failure(confinement, &failure);
	error = raw3(NR_close_range, 3, ~0U, 0);
	if (error)
		refuse(CONFINE_SETUP,
		       "close: cannot close inherited descriptors: %s (%s); an outer sandbox may "
		       "forbid"
		       " close_range",
		       strerror((int)-error), errno_name((int)-error));
	reset_signals();
	execute(options->command, confinement->environment);
}

/* Running with more rights than the caller has, it would hand them a way to read whatever it opens.
 */
static void refuse_privilege(void)
{
	if (getauxval(AT_SECURE))
		refuse(CONFINE_SETUP, "start: must not be set-user-ID, set-group-ID or have file "
				      "capabilities; remove them"
				      " with chmod and setcap -r");
}

static int runner(int argc, char **argv)
{
	char *end = NULL;
	const long fd = argc == 3 ? strtol(argv[2], &end, 10) : -1;

	if (fd < 0 || fd > INT_MAX || *end || end == argv[2])
		refuse(CONFINE_USAGE, "--runner: needs the number of an open descriptor; it is "
				      "internal to the broker");
	return runner_main((int)fd);
}

int main(int argc, char **argv)
{
	static struct confinement confinement;
	struct confine_options options;

	open_stdio();
	refuse_privilege();
	if (argc > 1 && !strcmp(argv[1], "--runner"))
		return runner(argc, argv);
	if (argc > 1 && !strcmp(argv[1], "--reach"))
		return reach_main(argc - 1, argv + 1);
	parse_options(argc, argv, &options);
	switch (options.action) {
	case CONFINE_HELP:
		print_help();
		return 0;
	case CONFINE_VERSION:
		printf("confine %s (Landlock ABI %d to %d)\n", SANDBOX_VERSION, SANDBOX_ABI_FLOOR,
		       SANDBOX_ABI_NEWEST);
		return 0;
	case CONFINE_SELFTEST:
		return print_selftest((options.flags & CONFINE_JSON) != 0);
	case CONFINE_PRINT:
		prepare_confinement(&options, &confinement);
		print_confinement(&options, &confinement);
		return 0;
	case CONFINE_RUN:
		break;
	}
	prepare_confinement(&options, &confinement);
	run(&options, &confinement);
}
