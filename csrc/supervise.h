/* SPDX-License-Identifier: Apache-2.0
 *
 * Ending a tree of processes completely.  The caller is a single-threaded subreaper
 * (PR_SET_CHILD_SUBREAPER), so whatever loses its parent becomes the caller's child: setsid, double
 * forks and nested subreapers do not help a descendant to get away.  Static executable only (uses
 * libc).
 */
#ifndef SANDBOX_SUPERVISE_H
#define SANDBOX_SUPERVISE_H

#include <stdint.h>
#include <sys/types.h>

/* Sends `signal` to every living descendant, once. Each is pinned by a pidfd and its parent checked
 * again before the signal, so a number that was reused meanwhile is never hit. Returns how many
 * were signalled, or -errno. */
int supervise_signal(int signal);

/* SIGKILLs and reaps until no child is left, through cgroup.kill first where cgroup_fd >= 0 (else
 * -1). Returns how many processes were still running and had to be killed; -ETIMEDOUT when some
 * could not be ended within limit_ms (uninterruptible sleep). SIGCHLD must be blocked by the
 * caller.  *ret_cgroup_killed (always set) is 1 when cgroup.kill was written: on Linux 6.15 and
 * later a child that clone3(2) puts into such a cgroup afterwards is killed at birth (its kill_seq
 * is taken from the caller's cgroup), so the cgroup must not be used again. */
int supervise_kill(int cgroup_fd, uint32_t limit_ms, uint32_t *ret_cgroup_killed);

#endif
