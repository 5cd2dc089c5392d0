/* SPDX-License-Identifier: Apache-2.0
 *
 * Opens the root that a path on the command line names, without being led elsewhere.
 */
#ifndef CONFINE_OPENROOT_H
#define CONFINE_OPENROOT_H

/* Where a root could not be opened, for the message. Valid until the next call. */
struct openroot_failure {
	const char *link;   /* ELOOP: the symbolic link that is not followed, else NULL */
	const char *target; /* ELOOP: where the whole path leads now, NULL when nowhere */
};

/* Opens `path`, absolute and without "..", O_PATH and O_CLOEXEC. Symbolic links are refused with
 * ELOOP, because an earlier command may have planted one in a directory it could write, save those
 * that only the system's administrator can have made: see trusted_places in openroot.c. */
int openroot(const char *path, int *ret_fd, struct openroot_failure *reterr_failure);

/* Opens a path of the system itself (the baseline), following links but no magic link of /proc. */
int openroot_system(const char *path, int *ret_fd);

#endif
