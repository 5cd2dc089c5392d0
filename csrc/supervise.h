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
#include <sys/types.h>

/* Sends `signal` to every living descendant, once. Each is pinned by a pidfd and its parent checked
 * again before the signal, so a number that was reused meanwhile is never hit. Returns how many
 * were signalled, or -errno. */
int supervise_signal(int signal);

/* SIGKILLs and reaps until no child is left, which is the kernel's own word (ECHILD) that nobody of
 * the tree is. cgroup_fd: the cgroup v2 directory that the caller and its tree are in, -1 for none.
 * When killing one generation after the other does not come to an end, the caller leaves it for the
 * parent group and has the kernel kill all that is in it; *ret_left_cgroup (always set) is 1 then,
 * and the cgroup must not be used again: on Linux 6.15 and later a child that is born into a cgroup
 * killed before may be killed at birth. Returns how many processes were still running and had to be
 * killed; -ETIMEDOUT when some could not be ended within limit_ms (uninterruptible sleep).  SIGCHLD
 * must be blocked by the caller. */
int supervise_kill(int cgroup_fd, uint32_t limit_ms, uint32_t *ret_left_cgroup);

#endif
