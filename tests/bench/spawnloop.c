/* SPDX-License-Identifier: Apache-2.0
 *
 * The floor of every spawn: posix_spawn(3) and waitpid(2) of one command, a worker as in turns.h.
 *
 *   spawnloop [-d N] [-s FILE] [-e CODE] -- PROGRAM ARGUMENTS
 *
 * -d N: hold N more descriptors open, close-on-exec, as a busy daemon does; the child's copy of the
 * table is part of what is measured.  -s FILE: also append one record to FILE and fdatasync(2) it
 * before each spawn.  -e CODE: the exit code that is right (0); another one ends the worker.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <spawn.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "turns.h"

#define RECORD_BYTES 400 /* about one intent record of the broker's audit log */

extern char **environ;

static void hold_descriptors(int count)
{
	int first = open("/dev/null", O_RDONLY | O_CLOEXEC);

	for (int i = 1; i < count; i++)
		if (fcntl(first, F_DUPFD_CLOEXEC, 0) < 0)
			fail("dup");
}

static void append_durably(int fd)
{
	static char record[RECORD_BYTES];

	memset(record, 'x', sizeof(record));
	if (write(fd, record, sizeof(record)) != (ssize_t)sizeof(record) || fdatasync(fd) != 0)
		fail("append");
}

static int64_t one(char **argv, int log_fd, int right_code)
{
	int64_t start = now_ns();
	int status;
	pid_t pid;

	if (log_fd >= 0)
		append_durably(log_fd);
	if (posix_spawn(&pid, argv[0], NULL, NULL, argv, environ) != 0 ||
	    waitpid(pid, &status, 0) != pid)
		fail(argv[0]);
	start = now_ns() - start;
	if (!WIFEXITED(status) || WEXITSTATUS(status) != right_code) {
		fprintf(stderr, "spawnloop: %s: wait status %#x\n", argv[0], (unsigned int)status);
		exit(1);
	}
	return start;
}

/* The commands' own output goes nowhere; the protocol moves to two descriptors they do not inherit.
 */
static void set_aside_stdio(FILE **ret_in, FILE **ret_out)
{
	int null = open("/dev/null", O_RDWR | O_CLOEXEC);
	int in = fcntl(0, F_DUPFD_CLOEXEC, 3), out = fcntl(1, F_DUPFD_CLOEXEC, 3);

	if (null < 0 || in < 0 || out < 0 || dup2(null, 0) < 0 || dup2(null, 1) < 0)
		fail("stdio");
	*ret_in = fdopen(in, "r");
	*ret_out = fdopen(out, "w");
	if (*ret_in == NULL || *ret_out == NULL)
		fail("stdio");
}

static void serve(FILE *in, FILE *out, char **argv, int log_fd, int right_code)
{
	char line[32];

	while (fgets(line, sizeof(line), in) != NULL) {
		for (int left = atoi(line); left > 0; left--)
			fprintf(out, "%lld ", (long long)one(argv, log_fd, right_code));
		fputc('\n', out);
		fflush(out);
	}
}

int main(int argc, char **argv)
{
	int option, log_fd = -1, right_code = 0, n_descriptors = 0;
	FILE *in, *out;

	while ((option = getopt(argc, argv, "+d:s:e:")) != -1) {
		if (option == 'd')
			n_descriptors = atoi(optarg);
		else if (option == 'e')
			right_code = atoi(optarg);
		else if (option == 's')
			log_fd = open(optarg, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
		else
			return 2;
	}
	if (optind >= argc)
		return 2;
	set_aside_stdio(&in, &out);
	hold_descriptors(n_descriptors);
	serve(in, out, argv + optind, log_fd, right_code);
	return 0;
}
