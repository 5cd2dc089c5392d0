/* SPDX-License-Identifier: Apache-2.0
 *
 * The processes that stay behind, unconfined, while the command runs in a child.
 */
#ifndef CONFINE_PARENT_H
#define CONFINE_PARENT_H

enum parent_flags {
	PARENT_REAP = 1,     /* when the command ends, kill all that is left of it */
	PARENT_TERMINAL = 2, /* the command shares our process group and terminal */
};

/* Forks. Returns 0 in the child, which goes on to confine itself. In the calling process it does
 * not return: signals are passed on, and it exits as the command did (128+N when signal N ended
 * it). When it is killed itself, the command is killed too. Returns a negative errno when no child
 * could be made. */
int parent_split(int flags);

#endif
