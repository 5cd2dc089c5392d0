/* SPDX-License-Identifier: Apache-2.0
 *
 * The process that stays behind, unconfined, while the command runs in a child.
 */
#ifndef CONFINE_PARENT_H
#define CONFINE_PARENT_H

enum parent_flags {
	PARENT_REAP = 1,     /* be a subreaper; kill all that is left when the command ends */
	PARENT_TERMINAL = 2, /* the command shares our process group and terminal */
};

/* Forks. Returns 0 in the child, which goes on to confine itself and dies with the parent. In the
 * parent it does not return: it passes signals on, waits, and exits as the command did (128+N when
 * signal N ended it). Returns a negative errno when no child could be made. */
int parent_split(int flags);

#endif
