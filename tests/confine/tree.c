/* SPDX-License-Identifier: Apache-2.0
 *
 * tree KIND   leaves one descendant behind in a way that hides it, and exits 7
 * tree hold   has such a descendant, prints "ready" and goes on
 * tree signals   prints the name of each signal that it gets; SIGTERM ends it with 9
 * tree pair   the same for a child, too
 * tree dies N   ends by signal N
 *
 * Every descendant holds stdout, so that the end of file there says that all are gone.  Most go
 * when nobody reads it any more.
 */
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#define STATUS 7

static int ready[2]; /* a byte when the descendant is what it is to be */

static void say(const char *line)
{
	if (write(STDOUT_FILENO, line, strlen(line)) < 0)
		_exit(1);
}

static void be_ready(void)
{
	if (write(ready[1], "", 1) < 0)
		_exit(1);
	close(ready[1]);
}

static void stay(void)
{
	struct pollfd reader = {.fd = STDOUT_FILENO};

	be_ready();
	(void)poll(&reader, 1, -1); /* POLLERR: nobody reads */
	_exit(0);
}

static void plain(void)
{
	stay();
}

static void own_group(void)
{
	setpgid(0, 0);
	stay();
}

static void own_session(void)
{
	setsid();
	stay();
}

static void double_fork(void)
{
	if (fork() == 0) {
		setsid();
		if (fork() == 0)
			stay();
	}
	_exit(0);
}

/* Adopts what it starts, and is itself ignoring all that can be ignored. */
static void subreaper(void)
{
	prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0);
	for (int number = 1; number < 32; number++)
		signal(number, SIG_IGN);
	setsid();
	if (fork() == 0)
		double_fork();
	stay();
}

/* Each generation lives for a moment only: a list of processes is old when it is read. */
static void respawn(void)
{
	setsid();
	be_ready();
	for (;;) {
		if (fork() != 0)
			_exit(0);
		say("."); /* SIGPIPE when nobody reads */
	}
}

static void stopped(void)
{
	setsid(); /* in the command's, it would get SIGHUP and SIGCONT when the command ends */
	be_ready();
	raise(SIGSTOP);
}

static void detached(void)
{
	prctl(PR_SET_PDEATHSIG, 0, 0, 0, 0);
	own_session();
}

static const struct {
	const char *name;
	void (*run)(void);
} kinds[] = {
	{"plain", plain},
	{"own_group", own_group},
	{"own_session", own_session},
	{"double_fork", double_fork},
	{"subreaper", subreaper},
	{"respawn", respawn},
	{"stopped", stopped},
	{"detached", detached},
};

static void leave_behind(void (*run)(void))
{
	char byte;

	if (pipe(ready) < 0)
		_exit(1);
	if (fork() == 0) {
		run();
		_exit(1);
	}
	close(ready[1]);
	if (read(ready[0], &byte, 1) != 1)
		_exit(1);
}

static void print_signals(const char *prefix)
{
	static const struct {
		int number;
		const char *name;
	} names[] = {
		{SIGINT, "INT"},   {SIGTERM, "TERM"}, {SIGHUP, "HUP"},     {SIGQUIT, "QUIT"},
		{SIGUSR1, "USR1"}, {SIGUSR2, "USR2"}, {SIGWINCH, "WINCH"}, {SIGCONT, "CONT"},
	};
	sigset_t set;
	char line[64];

	sigfillset(&set);
	sigprocmask(SIG_BLOCK, &set, NULL);
	snprintf(line, sizeof(line), "%sready\n", prefix);
	say(line);
	for (;;) {
		const int number = sigwaitinfo(&set, NULL);

		for (size_t i = 0; i < sizeof(names) / sizeof(*names); i++) {
			if (names[i].number == number) {
				snprintf(line, sizeof(line), "%s%s\n", prefix, names[i].name);
				say(line);
			}
		}
		if (number == SIGTERM)
			_exit(9);
	}
}

int main(int argc, char **argv)
{
	if (argc < 2)
		return 1;
	if (!strcmp(argv[1], "signals"))
		print_signals("");
	if (!strcmp(argv[1], "pair"))
		print_signals(fork() ? "parent " : "child ");
	if (!strcmp(argv[1], "dies") && argc == 3)
		return raise(atoi(argv[2]));
	if (!strcmp(argv[1], "hold")) {
		leave_behind(subreaper);
		say("ready\n");
		for (;;)
			pause();
	}
	for (size_t i = 0; i < sizeof(kinds) / sizeof(*kinds); i++) {
		if (!strcmp(argv[1], kinds[i].name)) {
			leave_behind(kinds[i].run);
			return STATUS;
		}
	}
	return 1;
}
