/* SPDX-License-Identifier: Apache-2.0
 *
 * Ending a tree of processes completely.  The caller is a subreaper (PR_SET_CHILD_SUBREAPER), so
 * whatever loses its parent becomes the caller's child: setsid, double forks and nested subreapers
 * do not help a descendant to get away.  One thread of it reaps, and nobody else does; a spawner
 * thread beside it is no hindrance.  Static executable only (uses libc).
 */
#ifndef SANDBOX_SUPERVISE_H
#define SANDBOX_SUPERVISE_H

#include <stdint.h>
#include <sys/resource.h>
#include <sys/types.h>

struct supervise_tree {
	pid_t leader;        /* the command itself */
	int leader_reaped;   /* set when its end was seen; status and usage hold then */
	int leader_status;   /* wait(2) */
	struct rusage usage; /* of the leader and what it waited for */
	int cgroup_fd;       /* the cgroup v2 directory that we and the tree are in, -1: none */
	int left_cgroup;     /* set when we had to leave it; it must not be used again */
	int killed;          /* processes that supervise_kill had to end, the leader not counted */
};

/* Reaps what has ended, at most `limit` of it: a loop that forks and exits makes dead faster
 * than they can be reaped, and must not keep the caller from its deadline.  Returns 1 when no child
 * is left, which is the kernel's word (ECHILD) that nobody of the tree is; else 0.  *ret_reaped
 * (always set) says how many it were. */
int supervise_reap(struct supervise_tree *tree, int limit, int *ret_reaped);

/* Sends `signal` to every living descendant, once. Each is pinned by a pidfd and its parent checked
 * again before the signal, so a number that was reused meanwhile is never hit. Returns how many
 * were signalled, or -errno. */
int supervise_signal(int signal);

/* Ahead of what is to be ended, or back: the calling thread only, and only with CAP_SYS_NICE. */
void supervise_hurry(int on);

/* SIGKILLs and reaps until no child is left.  When killing one generation after the other does not
 * come to an end soon and there is a cgroup, the caller leaves it for the parent group and has the
 * kernel kill all that is in it: on Linux 6.15 and later a child that is born into a cgroup killed
 * before may be killed at birth, so it must not be used again.  Also ends what hides the leader's
 * end: a tracer inside the tree is shown a zombie first. Returns 0, or -ETIMEDOUT when some could
 * not be ended within limit_ms (uninterruptible sleep).  SIGCHLD must be blocked by the caller. */
int supervise_kill(struct supervise_tree *tree, uint32_t limit_ms);

#endif
