/* SPDX-License-Identifier: Apache-2.0
 *
 * Many roots in one call: opened, added to a ruleset, and later compared with what their paths name
 * by then.
 */
#ifndef SANDBOX_ROOTS_H
#define SANDBOX_ROOTS_H

#include "sandbox.h"

struct sandbox_root {
	const char *path;
	uint32_t follow; /* symbolic links in the path are followed */
	uint32_t stable; /* no confined process can change what the path names */
	int32_t fd; /* O_PATH, O_CLOEXEC; negative errno when it did not open; -1 once closed */
	uint32_t access; /* enum sandbox_access bits; 0: no rule is needed for it */
	uint32_t is_directory;
	uint32_t is_missing;
	uint64_t device, inode;
};

/* Opens the path of every root; never through a magic link (/proc/PID/fd/N names whatever that
 * process holds).  Fills everything but `path`, `follow`, `stable` and `access`. */
void sandbox_open_roots(struct sandbox_root *roots, size_t n_roots);

/* Adds a rule for every opened root that has an access.  `handled_fs` is what the ruleset handles.
 */
int sandbox_add_roots(int ruleset_fd, const struct sandbox_root *roots, size_t n_roots,
		      uint64_t handled_fs, struct sandbox_failure *reterr_failure);

/* Closes what sandbox_open_roots opened; device and inode stay. */
void sandbox_close_roots(struct sandbox_root *roots, size_t n_roots);

/* The index of the first root whose path no longer names the same inode, n_roots when all still do.
 * A root that was missing is stale once its path exists.  Stable ones are looked at with `all`
 * only. */
size_t sandbox_stale_root(const struct sandbox_root *roots, size_t n_roots, int all);

#endif
