/* SPDX-License-Identifier: Apache-2.0
 *
 * Commands that do not want to end, or lie about having ended.  All end by themselves.
 *
 * lifecycle zombie FILE  its child, in a session of its own, traces it; then it exits 3.  A traced
 *                        process that has ended is shown to its tracer only, which never looks.
 * lifecycle stop FILE    asks to be traced by its parent and stops, which wait(2) reports to the
 *                        parent whatever it asked for
 * lifecycle chains       60 processes that fork and exit all the time, then sleeps
 *
 * While anything of it is alive, FILE grows.
 */
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ptrace.h>
#include <time.h>
#include <unistd.h>

#define LIFE_S 4
#define CHAINS 60

static void close_stdio(void)
{
	for (int fd = 0; fd < 3; fd++)
		(void)close(fd);
}

static _Noreturn void live(const char *file)
{
	const struct timespec pause = {.tv_nsec = 50000000};

	for (int i = 0; i < LIFE_S * 20; i++) {
		const int fd = open(file, O_CREAT | O_WRONLY | O_APPEND, 0666);

		if (fd < 0 || write(fd, ".", 1) != 1)
			_exit(1);
		(void)close(fd);
		(void)nanosleep(&pause, NULL);
	}
	_exit(0);
}

static int be_zombie(const char *file)
{
	const pid_t leader = getpid();
	int ready[2];
	char byte = 0;

	if (pipe(ready))
		return 1;
	if (fork() == 0) {
		(void)setsid();
		if (ptrace(PTRACE_SEIZE, leader, 0, 0) || write(ready[1], "", 1) != 1)
			_exit(1);
		close_stdio();
		live(file);
	}
	(void)close(ready[1]);
	return read(ready[0], &byte, 1) == 1 ? 3 : 1;
}

static int stop(const char *file)
{
	if (fork() == 0) {
		(void)setsid();
		close_stdio();
		live(file);
	}
	return ptrace(PTRACE_TRACEME, 0, 0, 0) || raise(SIGUSR1) ? 1 : 0;
}

static int start_chains(void)
{
	const time_t end = time(NULL) + LIFE_S;

	for (int i = 0; i < CHAINS; i++) {
		if (fork())
			continue;
		close_stdio();
		(void)setsid();
		while (time(NULL) < end)
			if (fork() > 0)
				_exit(0);
		_exit(0);
	}
	(void)sleep(LIFE_S);
	return 0;
}

int main(int argc, char **argv)
{
	(void)signal(SIGTERM, SIG_IGN);
	if (argc == 3 && !strcmp(argv[1], "zombie"))
		return be_zombie(argv[2]);
	if (argc == 3 && !strcmp(argv[1], "stop"))
		return stop(argv[2]);
	return argc == 2 && !strcmp(argv[1], "chains") ? start_chains() : 64;
}
