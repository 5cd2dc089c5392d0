/* SPDX-License-Identifier: Apache-2.0
 *
 * Landlock: what this kernel offers, and rulesets made of opened roots.
 *
 * Owns the table of rights by ABI.  Leaves opening roots to the caller (a ruleset binds inodes, so
 * a path is never resolved here) and enforcing to spawn.c.
 */
#include <errno.h>
#include <sys/stat.h>

#include "internal.h"
#include "kernel.h"

/* Rights that mean something on a file; the kernel answers EINVAL to the others there. */
#define FILE_RIGHTS                                                                              \
	(LL_FS_EXECUTE | LL_FS_WRITE_FILE | LL_FS_READ_FILE | LL_FS_TRUNCATE | LL_FS_IOCTL_DEV | \
	 LL_FS_RESOLVE_UNIX)

/* Never MAKE_CHAR or MAKE_BLOCK: root could make the disk's node inside a writable root and read
 * it. */
#define WRITE_RIGHTS                                                                            \
	(LL_FS_WRITE_FILE | LL_FS_TRUNCATE | LL_FS_REMOVE_DIR | LL_FS_REMOVE_FILE |             \
	 LL_FS_MAKE_DIR | LL_FS_MAKE_REG | LL_FS_MAKE_SOCK | LL_FS_MAKE_FIFO | LL_FS_MAKE_SYM | \
	 LL_FS_REFER)

static const struct {
	int32_t abi;
	uint64_t fs, net, scoped;
} rights_by_abi[] = {
	{1, (1ULL << 13) - 1, 0, 0},
	{2, LL_FS_REFER, 0, 0},
	{3, LL_FS_TRUNCATE, 0, 0},
	{4, 0, LL_NET_BIND_TCP | LL_NET_CONNECT_TCP, 0},
	{5, LL_FS_IOCTL_DEV, 0, 0},
	{6, 0, 0, LL_SCOPE_ABSTRACT_UNIX | LL_SCOPE_SIGNAL},
	/* 7: audit flags; 8: TSYNC; neither adds a right */
	{9, LL_FS_RESOLVE_UNIX, 0, 0},
};

int sandbox_status(uint32_t max_abi, struct sandbox_status *ret_status)
{
	struct sandbox_status status = {0};
	long abi = raw3(NR_landlock_create_ruleset, 0, 0, LL_CREATE_RULESET_VERSION);
	if (abi < 0)
		return (int)abi;
	status.kernel_abi = (int32_t)abi;
	status.abi = abi < SANDBOX_ABI_NEWEST ? (int32_t)abi : SANDBOX_ABI_NEWEST;
	if (max_abi && status.abi > (int32_t)max_abi)
		status.abi = (int32_t)max_abi;
	/* Kernels without the flag answer EINVAL: nothing reported is not the same as nothing
	 * wrong. */
	long errata = raw3(NR_landlock_create_ruleset, 0, 0, LL_CREATE_RULESET_ERRATA);
	status.errata = errata > 0 ? (uint32_t)errata : 0;
	for (size_t i = 0; i < sizeof rights_by_abi / sizeof *rights_by_abi; i++) {
		if (rights_by_abi[i].abi > status.abi)
			break;
		status.handled_fs |= rights_by_abi[i].fs;
		status.handled_net |= rights_by_abi[i].net;
		status.scoped |= rights_by_abi[i].scoped;
	}
	*ret_status = status;
	return status.abi < SANDBOX_ABI_FLOOR ? -ERANGE : 0;
}

uint64_t sandbox_rights(uint32_t access, int directory)
{
	uint64_t rights = 0;
	if (access & (SANDBOX_READ | SANDBOX_EXEC))
		rights |= LL_FS_READ_FILE | LL_FS_READ_DIR;
	if (access & SANDBOX_EXEC)
		rights |= LL_FS_EXECUTE;
	if (access & SANDBOX_WRITE)
		rights |= WRITE_RIGHTS;
	if (access & SANDBOX_DEVICE)
		rights |= LL_FS_IOCTL_DEV;
	return directory ? rights : rights & FILE_RIGHTS;
}

static int add_rule(int ruleset_fd, const struct sandbox_rule *rule, uint64_t handled)
{
	struct stat st;
	if (fstat(rule->fd, &st))
		return -errno;
	struct ll_path_beneath_attr attr = {
		.allowed_access = sandbox_rights(rule->access, S_ISDIR(st.st_mode)) & handled,
		.parent_fd = rule->fd,
	};
	if (!attr.allowed_access) /* nothing to grant, e.g. DEVICE alone below ABI 5; the kernel
				     says ENOMSG */
		return 0;
	return (int)raw4(NR_landlock_add_rule, ruleset_fd, LL_RULE_PATH_BENEATH, (long)&attr, 0);
}

static int fail(struct sandbox_failure *reterr_failure, int stage, int error, int64_t index)
{
	*reterr_failure = (struct sandbox_failure){.stage = stage, .error = -error, .index = index};
	return error;
}

int sandbox_ruleset(const struct sandbox_rule *rules, size_t n_rules, uint32_t flags,
		    uint32_t max_abi, uint64_t weaken_fs, int *ret_fd,
		    struct sandbox_failure *reterr_failure)
{
	struct sandbox_status status;
	int error = sandbox_status(max_abi, &status);
	if (error)
		return fail(reterr_failure, SANDBOX_STAGE_KERNEL, error, -1);
	struct ll_ruleset_attr attr = {
		.handled_access_fs = status.handled_fs & ~weaken_fs,
		.handled_access_net = flags & SANDBOX_NET_NONE ? status.handled_net : 0,
		.scoped = flags & SANDBOX_WEAK_SCOPE ? 0 : status.scoped,
	};
	/* An older kernel accepts the longer structure when the fields it does not know are zero.
	 */
	long fd = raw3(NR_landlock_create_ruleset, (long)&attr, sizeof attr, 0);
	if (fd < 0)
		return fail(reterr_failure, SANDBOX_STAGE_RULESET, (int)fd, -1);
	for (size_t i = 0; i < n_rules; i++) {
		error = add_rule((int)fd, &rules[i], attr.handled_access_fs);
		if (error) {
			raw1(SYS_close, fd);
			return fail(reterr_failure, SANDBOX_STAGE_RULE, error, (int64_t)i);
		}
	}
	*ret_fd = (int)fd;
	return 0;
}
