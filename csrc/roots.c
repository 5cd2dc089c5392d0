/* SPDX-License-Identifier: Apache-2.0
 *
 * Opens roots, makes them rules, and notices when their paths name something else.
 *
 * A rule binds the inode and keeps it from being reused, so that a ruleset means the same
 * directories whatever is renamed afterwards, and a device and inode compared later cannot match by
 * accident. Roots come in batches: ten thousand of them must not need ten thousand descriptors.
 */
#include "roots.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/openat2.h>
#include <sys/stat.h>
#include <unistd.h>

#include "internal.h"
#include "kernel.h"

static int openat2_path(const char *path, uint64_t resolve)
{
	const struct open_how how = {
		.flags = O_PATH | O_CLOEXEC,
		.resolve = resolve,
	};

	return (int)raw4(NR_openat2, AT_FDCWD, (long)path, (long)&how, sizeof(how));
}

/* A path by which nothing is reached, whoever made it so: none, a closed door, a planted link. */
static int leads_nowhere(const struct sandbox_root *root)
{
	const int error = -root->fd;

	return error == ENOENT || error == ENOTDIR || error == EACCES ||
	       (error == ELOOP && !root->follow);
}

static void open_root(struct sandbox_root *root)
{
	const uint64_t links = root->follow ? 0 : RESOLVE_NO_SYMLINKS;
	struct stat status;

	root->fd = openat2_path(root->path, RESOLVE_NO_MAGICLINKS | links);
	root->is_missing = (uint32_t)leads_nowhere(root);
	if (root->fd < 0)
		return;
	if (fstat(root->fd, &status)) {
		const int error = errno;

		(void)close(root->fd); /* nothing was written through an O_PATH descriptor */
		root->fd = -error;
		return;
	}
	root->is_directory = S_ISDIR(status.st_mode);
	root->device = status.st_dev;
	root->inode = status.st_ino;
}

void sandbox_open_roots(struct sandbox_root *roots, size_t n_roots)
{
	for (size_t i = 0; i < n_roots; i++)
		open_root(&roots[i]);
}

static int add_root(int ruleset_fd, const struct sandbox_root *root, uint64_t handled_fs)
{
	const uint64_t rights = sandbox_rights(root->access, (int)root->is_directory);
	const struct ll_path_beneath_attr attr = {
		.allowed_access = rights & handled_fs,
		.parent_fd = root->fd,
	};

	if (!attr.allowed_access) /* the kernel answers ENOMSG to a rule that grants nothing */
		return 0;
	return (int)raw4(NR_landlock_add_rule, ruleset_fd, LL_RULE_PATH_BENEATH, (long)&attr, 0);
}

int sandbox_add_roots(int ruleset_fd, const struct sandbox_root *roots, size_t n_roots,
		      uint64_t handled_fs, struct sandbox_failure *reterr_failure)
{
	for (size_t i = 0; i < n_roots; i++) {
		int error;

		if (roots[i].fd < 0 || !roots[i].access)
			continue;
		error = add_root(ruleset_fd, &roots[i], handled_fs);
		if (error) {
			reterr_failure->stage = SANDBOX_STAGE_RULE;
			reterr_failure->error = -error;
			reterr_failure->index = (int64_t)i;
			return error;
		}
	}
	return 0;
}

void sandbox_close_roots(struct sandbox_root *roots, size_t n_roots)
{
	for (size_t i = 0; i < n_roots; i++) {
		if (roots[i].fd < 0)
			continue;
		(void)close(roots[i].fd); /* nothing was written through an O_PATH descriptor */
		roots[i].fd = -1;
	}
}

static int is_same(const struct sandbox_root *root)
{
	struct stat status;

	if (stat(root->path, &status))
		return (int)root->is_missing;
	return !root->is_missing && root->device == status.st_dev && root->inode == status.st_ino;
}

size_t sandbox_stale_root(const struct sandbox_root *roots, size_t n_roots, int all)
{
	for (size_t i = 0; i < n_roots; i++) {
		if ((all || !roots[i].stable) && !is_same(&roots[i]))
			return i;
	}
	return n_roots;
}
