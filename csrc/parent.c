/* SPDX-License-Identifier: Apache-2.0
 *
 * The processes that stay behind; see parent.h.
 *
 * Theory of operation.  There are two.  The front is the process that the caller knows: it passes
 * on the signals that it gets and exits with the status of the command.  The supervisor is its
 * child and the parent of the command, and asks the kernel to be told when the front dies: so the
 * end of the front, by SIGKILL as well, is the end of the command.  The usual way, PR_SET_PDEATHSIG
 * in the command itself, is one that the command can undo.
 *
 * Both are outside the command's domain: the command can neither trace them nor (Landlock ABI 6)
 * signal them.  A command with a session of its own gets no signal from the terminal's keys; the
 * front does, and passes them on.  With the terminal shared, all are in one process group and the
 * kernel signals all of it, so that only what somebody sent to the front itself is passed on.
 */
#include "parent.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "kernel.h"
#include "report.h"
#include "supervise.h"

#define KILL_LIMIT_MS \
	5000 /* for what is left; only uninterruptible sleep takes more than some ms */
#define REAP_AT_ONCE 64
#define FRONT_DIED SIGRTMAX /* nobody else's */

static const int forwarded[] = {SIGINT,  SIGTERM, SIGHUP,   SIGQUIT,
				SIGUSR1, SIGUSR2, SIGWINCH, SIGCONT};

/* A signal that the caller ignores (nohup, a background shell) stays unheard here as well. */
static int is_ignored(int number)
{
	struct sigaction action;

	return sigaction(number, NULL, &action) == 0 && action.sa_handler == SIG_IGN;
}

static void choose_signals(int flags, sigset_t *ret_signals)
{
	(void)sigemptyset(ret_signals); /* these fail only for numbers that are no signals */
	for (size_t i = 0; i < sizeof(forwarded) / sizeof(*forwarded); i++) {
		if (!is_ignored(forwarded[i]))
			(void)sigaddset(ret_signals, forwarded[i]);
	}
	/* ^Z: with the terminal shared the kernel stops all of us; else we stop the command. */
	if (!(flags & PARENT_TERMINAL) && !is_ignored(SIGTSTP))
		(void)sigaddset(ret_signals, SIGTSTP);
	(void)sigaddset(ret_signals, SIGCHLD);
	(void)sigaddset(ret_signals, FRONT_DIED);
}

static int shell_status(int wait_status)
{
	return WIFSIGNALED(wait_status) ? 128 + WTERMSIG(wait_status) : WEXITSTATUS(wait_status);
}

/* Reaps all that has ended. Returns whether `child` is among them. */
static int reap(pid_t child, int *ret_status)
{
	int status;

	for (;;) {
		const pid_t pid = waitpid(-1, &status, WNOHANG);

		if (pid == child) {
			*ret_status = shell_status(status);
			return 1;
		}
		if (pid <= 0 && !(pid < 0 && errno == EINTR))
			return 0;
	}
}

static void next_signal(const sigset_t *signals, siginfo_t *ret_info)
{
	while (sigwaitinfo(signals, ret_info) < 0)
		; /* EINTR: stopped and continued */
}

static void kill_the_rest(struct supervise_tree *tree)
{
	if (supervise_kill(tree, KILL_LIMIT_MS) == -ETIMEDOUT)
		report("end: some processes of the command do not end (uninterruptible sleep), "
		       "ignoring "
		       "them after %d s",
		       KILL_LIMIT_MS / 1000);
}

/* ---- the supervisor ---- */

/* The process group exists once the command has called setsid; kill fails only for a dead command.
 */
static void signal_command(pid_t command, int flags, int number)
{
	if ((flags & PARENT_TERMINAL) || kill(-command, number) < 0)
		(void)kill(command, number);
}

static void pass_on(const struct signalfd_siginfo *info, pid_t command, pid_t front, int flags)
{
	if ((int)info->ssi_signo == FRONT_DIED)
		signal_command(command, flags, SIGKILL);
	else if (info->ssi_signo == SIGTSTP) /* ignored by a group without a terminal */
		signal_command(command, flags, SIGSTOP);
	else if (info->ssi_signo != SIGCHLD && (pid_t)info->ssi_pid == front)
		signal_command(command, flags, (int)info->ssi_signo);
}

/* Returns when the command has ended, or cannot be watched.  A tracer inside its tree is shown its
 * end first, and we when the tracer is dead; the pidfd tells all the same. */
static void watch(struct supervise_tree *tree, int flags, const sigset_t *signals)
{
	const pid_t front = getppid();
	struct pollfd fds[] = {
		{signalfd(-1, signals, SFD_CLOEXEC), POLLIN, 0},
		{(int)syscall(SYS_pidfd_open, tree->leader, 0), POLLIN, 0},
	};
	int reaped = 0;

	while (!tree->leader_reaped && !fds[1].revents) {
		struct signalfd_siginfo info;

		/* after a reap there may be more dead than one call takes */
		if (poll(fds, 2, reaped ? 0 : -1) < 0 && errno != EINTR)
			return;
		if (fds[0].revents && read(fds[0].fd, &info, sizeof(info)) == sizeof(info))
			pass_on(&info, tree->leader, front, flags);
		(void)supervise_reap(tree, REAP_AT_ONCE, &reaped);
	}
}

/* Returns the status of the command when it has ended, and all of its tree with PARENT_REAP. */
static int supervise(pid_t command, int flags, const sigset_t *signals)
{
	struct supervise_tree tree = {.leader = command, .cgroup_fd = -1};

	watch(&tree, flags, signals);
	if (flags & PARENT_REAP)
		kill_the_rest(&tree);
	while (!tree.leader_reaped && wait4(command, &tree.leader_status, 0, NULL) < 0)
		if (errno != EINTR)
			return CONFINE_SETUP;
	return shell_status(tree.leader_status);
}

/* Returns 0 in the command-to-be. */
static int run_supervisor(pid_t front, int flags, const sigset_t *signals)
{
	if (prctl(PR_SET_PDEATHSIG, FRONT_DIED) < 0 || getppid() != front)
		_exit(CONFINE_SETUP);                   /* nobody is there to tell */
	if (!(flags & PARENT_TERMINAL) && setsid() < 0) /* out of reach of the terminal's keys */
		return -errno;
	if ((flags & PARENT_REAP) && prctl(PR_SET_CHILD_SUBREAPER, 1) < 0)
		return -errno;

	const pid_t command = fork();

	if (command <= 0)
		return command < 0 ? -errno : 0;
	/* Pipes that were left open here must not look open to whoever reads them. */
	(void)raw3(NR_close_range, 3, ~0U, 0);

	_exit(supervise(command, flags, signals));
}

/* ---- the front ---- */

static int wait_for_supervisor(pid_t supervisor, int flags, const sigset_t *signals)
{
	siginfo_t info;
	int status;

	for (;;) {
		next_signal(signals, &info);
		if (info.si_signo == SIGCHLD) {
			if (reap(supervisor, &status))
				return status;
			continue;
		}
		/* si_code: positive from the kernel (the terminal), else from a process */
		if (!(flags & PARENT_TERMINAL) || info.si_code <= 0)
			(void)kill(supervisor, info.si_signo); /* fails only when it is dead */
		if (info.si_signo == SIGTSTP)
			(void)raise(
				SIGSTOP); /* until the shell's SIGCONT, which comes by here next */
	}
}

int parent_split(int flags)
{
	const pid_t front = getpid();
	sigset_t signals;

	choose_signals(flags, &signals);
	if (sigprocmask(SIG_BLOCK, &signals, NULL) < 0 || signal(SIGCHLD, SIG_DFL) == SIG_ERR)
		return -errno;
	/* Should the supervisor be killed, what it leaves comes here. */
	if ((flags & PARENT_REAP) && prctl(PR_SET_CHILD_SUBREAPER, 1) < 0)
		return -errno;

	const pid_t supervisor = fork();

	if (supervisor < 0)
		return -errno;
	if (supervisor == 0)
		return run_supervisor(front, flags, &signals);
	(void)raw3(NR_close_range, 3, ~0U, 0);

	const int status = wait_for_supervisor(supervisor, flags, &signals);

	struct supervise_tree tree = {.cgroup_fd = -1}; /* its leader is reaped already */

	if (flags & PARENT_REAP)
		kill_the_rest(&tree);
	exit(status);
}
