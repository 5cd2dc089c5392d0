/* SPDX-License-Identifier: Apache-2.0
 *
 * The process that stays behind; see parent.h.
 *
 * It is outside the command's domain, so the command can neither trace it nor (Landlock ABI 6)
 * signal it, and it never runs anything of the command.  It needs no terminal handling when the
 * command has a session of its own: keys that make signals reach this process alone and are passed
 * on.  With the terminal shared, both are in one process group: what the kernel sends goes to both,
 * so that only what somebody sent to this process is passed on.
 */
#include "parent.h"

#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "kernel.h"
#include "report.h"
#include "supervise.h"

#define KILL_LIMIT_MS \
	5000 /* for what is left; only uninterruptible sleep takes longer than some ms */

static const int forwarded[] = {SIGINT,  SIGTERM, SIGHUP,   SIGQUIT,
				SIGUSR1, SIGUSR2, SIGWINCH, SIGCONT};

/* A signal that the caller ignores (nohup, a background shell) stays unheard here as well. */
static int is_ignored(int signal)
{
	struct sigaction action;

	return sigaction(signal, NULL, &action) == 0 && action.sa_handler == SIG_IGN;
}

static void choose_signals(int flags, sigset_t *ret_signals)
{
	(void)sigemptyset(ret_signals); /* these three fail only for numbers that are no signals */
	for (size_t i = 0; i < sizeof(forwarded) / sizeof(*forwarded); i++) {
		if (!is_ignored(forwarded[i]))
			(void)sigaddset(ret_signals, forwarded[i]);
	}
	/* ^Z: with the terminal shared the kernel stops both of us; else we stop the command. */
	if (!(flags & PARENT_TERMINAL) && !is_ignored(SIGTSTP))
		(void)sigaddset(ret_signals, SIGTSTP);
	(void)sigaddset(ret_signals, SIGCHLD);
}

static void pass_on(pid_t child, int flags, const siginfo_t *info)
{
	int signal = info->si_signo;

	if (flags & PARENT_TERMINAL) {
		if (info->si_code <= 0) /* from a process: kill, sigqueue */
			(void)kill(child, signal);
		return;
	}
	/* A stop by SIGTSTP is ignored in a group whose session has no terminal. */
	if (signal == SIGTSTP)
		signal = SIGSTOP;
	/* The group exists once the child has called setsid. Neither can fail but for a dead child.
	 */
	if (kill(-child, signal) < 0)
		(void)kill(child, signal);
	if (signal == SIGSTOP)
		(void)raise(SIGSTOP); /* until the shell's SIGCONT, which comes by here next */
}

/* Reaps all that has ended. Returns whether the command is among them. */
static int reap(pid_t child, int *ret_status)
{
	int status;

	for (;;) {
		const pid_t pid = waitpid(-1, &status, WNOHANG);

		if (pid == child) {
			*ret_status = status;
			return 1;
		}
		if (pid <= 0 && !(pid < 0 && errno == EINTR))
			return 0;
	}
}

static int attend(pid_t child, int flags, const sigset_t *signals)
{
	siginfo_t info;
	int status;

	for (;;) {
		if (sigwaitinfo(signals, &info) < 0)
			continue; /* EINTR: stopped and continued */
		if (info.si_signo != SIGCHLD)
			pass_on(child, flags, &info);
		else if (reap(child, &status))
			return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
	}
}

static void kill_the_rest(void)
{
	if (supervise_kill(-1, KILL_LIMIT_MS) == -ETIMEDOUT)
		report("end: some processes of the command could not be ended in %d s "
		       "(uninterruptible sleep),"
		       " going on without them",
		       KILL_LIMIT_MS / 1000);
}

/* The child must not outlive a parent that is killed. A parent that died before the request shows
 * in getppid(2). Landlock, no_new_privs and dropped capabilities leave the setting in force. */
static void die_with(pid_t parent)
{
	if (prctl(PR_SET_PDEATHSIG, SIGKILL) < 0 || getppid() != parent)
		_exit(CONFINE_SETUP);
}

int parent_split(int flags)
{
	const pid_t parent = getpid();
	sigset_t signals;

	choose_signals(flags, &signals);
	if (sigprocmask(SIG_BLOCK, &signals, NULL) < 0 || signal(SIGCHLD, SIG_DFL) == SIG_ERR)
		return -errno;
	if ((flags & PARENT_REAP) && prctl(PR_SET_CHILD_SUBREAPER, 1) < 0)
		return -errno;

	const pid_t child = fork();

	if (child < 0)
		return -errno;
	if (child == 0) {
		die_with(parent);
		return 0;
	}
	/* Pipes that were left open here must not look open to whoever reads them. */
	(void)raw3(NR_close_range, 3, ~0U, 0);

	const int status = attend(child, flags, &signals);

	if (flags & PARENT_REAP)
		kill_the_rest();
	exit(status);
}
