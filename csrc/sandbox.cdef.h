/* SPDX-License-Identifier: Apache-2.0
 *
 * sandbox.h, roots.h and stdfd.h for cffi.  The C compiler checks every line against the headers:
 * values are `...` and parameters have no names, so that nothing is said twice.
 */

#define SANDBOX_ABI_FLOOR ...

enum sandbox_access { SANDBOX_READ, SANDBOX_WRITE, SANDBOX_EXEC, SANDBOX_DEVICE, ... };
enum sandbox_flags { SANDBOX_NET_NONE, SANDBOX_PDEATHSIG, ... };
enum sandbox_stage { SANDBOX_STAGE_KERNEL, SANDBOX_STAGE_LIMITS, SANDBOX_STAGE_EXEC, ... };

struct sandbox_failure {
	int32_t stage;
	int32_t error;
	int64_t index;
};

struct sandbox_status {
	int32_t abi;
	int32_t kernel_abi;
	uint32_t errata;
	uint64_t handled_fs;
	uint64_t handled_net;
	uint64_t scoped;
};
int sandbox_status(uint32_t, struct sandbox_status *);

struct sandbox_rule {
	int32_t fd;
	uint32_t access;
};
int sandbox_ruleset(const struct sandbox_rule *, size_t, uint32_t, uint32_t, uint64_t, int *,
		    struct sandbox_failure *);

struct sock_filter {
	uint16_t code;
	uint8_t jt;
	uint8_t jf;
	uint32_t k;
};
struct sandbox_filter {
	uint16_t length;
	struct sock_filter instructions[...];
};
int sandbox_filter(uint32_t, int, struct sandbox_filter *);

struct sandbox_limit {
	uint32_t resource;
	uint64_t soft, hard;
};
struct sandbox_plan {
	const char *path;
	const char *const *argv;
	const char *const *envp;
	int32_t cwd_fd;
	int32_t stdio[3];
	int32_t terminal_fd;
	int32_t cgroup_fd;
	int32_t ruleset_fd;
	uint32_t flags;
	uint32_t umask;
	const struct sandbox_filter *filter;
	const struct sandbox_limit *limits;
	size_t n_limits;
};
struct sandbox_child {
	int32_t pid;
	int32_t pidfd;
};
int sandbox_spawn(const struct sandbox_plan *, struct sandbox_child *, struct sandbox_failure *);
int sandbox_spawner(uint32_t, const struct sandbox_filter *, struct sandbox_failure *);

struct sandbox_weakness {
	int32_t omit_row;
	uint64_t weaken_fs;
	uint32_t keep;
};
struct sandbox_proof_row {
	const char *name;
	const char *claim;
	int32_t expected;
	int32_t confined;
	int32_t control;
	int32_t ok;
	int32_t skipped;
};
int sandbox_selftest(const char *, uint32_t, const struct sandbox_weakness *,
		     struct sandbox_proof_row *, size_t, size_t *);

const char *sandbox_stage_name(int);

struct sandbox_baseline_row {
	const char *path;
	uint32_t access;
	uint32_t resolve;
};
const struct sandbox_baseline_row *sandbox_baseline(size_t);

/* roots.h */
struct sandbox_root {
	const char *path;
	uint32_t follow;
	uint32_t stable;
	int32_t fd;
	uint32_t access;
	uint32_t is_directory;
	uint32_t is_missing;
	uint64_t device;
	uint64_t inode;
};
void sandbox_open_roots(struct sandbox_root *, size_t);
int sandbox_add_roots(int, const struct sandbox_root *, size_t, uint64_t, struct sandbox_failure *);
void sandbox_close_roots(struct sandbox_root *, size_t);
size_t sandbox_stale_root(const struct sandbox_root *, size_t, int);
