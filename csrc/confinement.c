/* SPDX-License-Identifier: Apache-2.0
 *
 * A request made ready to be enforced; see confinement.h.  Nothing here confines yet, and nothing
 * of the command is looked at.
 */
#include "confinement.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "arena.h"
#include "openroot.h"
#include "report.h"

extern char **environ;

#define SPARE_DESCRIPTORS 256 /* the baseline's, and some */

/* ---- what failed, and what to do about it ---- */

static const struct {
	int stage;
	int error; /* 0: any */
	const char *fix;
} fixes[] = {
	{SANDBOX_STAGE_KERNEL, ENOSYS,
	 "needs Linux 6.2 with CONFIG_SECURITY_LANDLOCK=y, or an outer sandbox hides it"},
	{SANDBOX_STAGE_KERNEL, EOPNOTSUPP,
	 "Landlock is built in but off: add 'landlock' to lsm= on the kernel command line"},
	{SANDBOX_STAGE_RULE, EBADFD,
	 "this file system cannot carry rules; name a directory above it"},
	{SANDBOX_STAGE_SESSION, EPERM, "start confine from a process that leads no process group"},
	{SANDBOX_STAGE_LANDLOCK, E2BIG,
	 "16 sandboxes are nested already, which is the kernel's limit"},
	{SANDBOX_STAGE_LIMITS, EPERM, "a hard limit in force is lower; drop --limits"},
	{SANDBOX_STAGE_SECCOMP, EINVAL, "needs a kernel with CONFIG_SECCOMP_FILTER=y"},
	{SANDBOX_STAGE_SECCOMP, EACCES, "an outer sandbox refuses seccomp filters"},
	{SANDBOX_STAGE_SECCOMP, 0, "an outer sandbox may refuse seccomp filters"},
};

static const char *fix_for(const struct sandbox_failure *failure)
{
	for (size_t i = 0; i < sizeof(fixes) / sizeof(*fixes); i++) {
		if (fixes[i].stage == failure->stage &&
		    (!fixes[i].error || fixes[i].error == failure->error))
			return fixes[i].fix;
	}
	return failure->error == EPERM ? "an outer sandbox or container may forbid it"
				       : "nothing was run";
}

static const char *subject_of(const struct confinement *confinement,
			      const struct sandbox_failure *failure)
{
	const size_t index = (size_t)failure->index;

	if (failure->stage == SANDBOX_STAGE_RULE && index < confinement->n_roots)
		return confinement->roots[index].path;
	if (failure->stage == SANDBOX_STAGE_LIMITS)
		return index < confinement->plan.n_limits
			       ? rlimit_name(confinement->limits[index].resource)
			       : "core";
	return NULL;
}

void refuse_failure(const struct confinement *confinement, const struct sandbox_failure *failure)
{
	const char *subject = subject_of(confinement, failure);
	const int kernel = failure->stage == SANDBOX_STAGE_KERNEL;

	refuse(kernel ? CONFINE_KERNEL : CONFINE_SETUP, "%s: %s%s%scannot confine: %s (%s); %s",
	       sandbox_stage_name(failure->stage), subject ? "'" : "", subject ? subject : "",
	       subject ? "': " : "", strerror(failure->error), errno_name(failure->error),
	       fix_for(failure));
}

void require_kernel(struct sandbox_status *ret_status)
{
	const struct sandbox_failure failure = {
		.stage = SANDBOX_STAGE_KERNEL,
		.error = -sandbox_status(0, ret_status),
		.index = -1,
	};

	if (failure.error == ERANGE)
		refuse(CONFINE_KERNEL,
		       "kernel: Landlock ABI %d is below the floor, ABI %d; upgrade to Linux 6.2 "
		       "or newer",
		       ret_status->kernel_abi, SANDBOX_ABI_FLOOR);
	if (failure.error)
		refuse_failure(NULL, &failure);
}

/* ---- roots ---- */

static void refuse_link(const struct confine_root *root, const struct openroot_failure *failure)
{
	static const char why[] =
		"is a symbolic link that an earlier command may have made (ELOOP)";

	if (failure->target)
		refuse(CONFINE_SETUP,
		       "root: %s '%s': '%s' %s; if you mean where it leads, name '%s'",
		       root->option, root->path, failure->link, why, failure->target);
	refuse(CONFINE_SETUP, "root: %s '%s': '%s' %s; name a path without it", root->option,
	       root->path, failure->link, why);
}

static void refuse_root(const struct confine_root *root, int error,
			const struct openroot_failure *failure)
{
	const char *fix = "choose a path that you can reach";

	if (failure->link)
		refuse_link(root, failure);
	if (error == -ENOENT || error == -ENOTDIR)
		fix = "create it, or use --ro-opt, --rw-opt or --exec-opt where it may be missing";
	else if (error == -EMFILE || error == -ENFILE)
		fix = "raise the limit on open files";
	refuse(CONFINE_SETUP, "root: %s '%s': %s (%s); %s", root->option, root->path,
	       strerror(-error), errno_name(-error), fix);
}

/* Missing, or out of the caller's reach, and so out of the command's, which has no more rights. */
static int is_absent(int error)
{
	return error == -ENOENT || error == -ENOTDIR || error == -EACCES;
}

/* A row of the baseline that is a dangling or circular link is one that this system does not have.
 */
static int open_one(const struct confine_root *root, int *ret_fd)
{
	struct openroot_failure failure = {NULL, NULL};
	const int error = root->option ? openroot(root->path, ret_fd, &failure)
				       : openroot_system(root->path, ret_fd);

	if (error && !(root->optional && is_absent(error)) && (root->option || error != -ELOOP))
		refuse_root(root, error, &failure);
	return error;
}

static void add_root(struct confinement *confinement, const struct confine_root *root)
{
	int fd = -1;

	if (open_one(root, &fd)) {
		confinement->skipped[confinement->n_skipped++] = *root;
		return;
	}
	confinement->rules[confinement->n_roots] =
		(struct sandbox_rule){.fd = fd, .access = root->access};
	confinement->roots[confinement->n_roots++] = *root;
}

static void add_baseline(struct confinement *confinement)
{
	const struct sandbox_baseline_row *row;

	for (size_t i = 0; (row = sandbox_baseline(i))->path; i++) {
		const struct confine_root root = {.path = row->path,
						  .access = row->access,
						  .optional = 1};

		add_root(confinement, &root);
	}
}

static const struct {
	uint32_t flag;
	struct confine_root root;
} granted[] = {
	{CONFINE_SHM, {"/dev/shm", "--shm", SANDBOX_READ | SANDBOX_WRITE, 0}},
	{CONFINE_TTY, {"/dev/tty", "--tty", SANDBOX_READ | SANDBOX_WRITE | SANDBOX_DEVICE, 0}},
	{CONFINE_TTY, {"/dev/ptmx", "--tty", SANDBOX_READ | SANDBOX_WRITE | SANDBOX_DEVICE, 0}},
	{CONFINE_TTY, {"/dev/pts", "--tty", SANDBOX_READ | SANDBOX_WRITE | SANDBOX_DEVICE, 0}},
};
#define N_GRANTED (sizeof(granted) / sizeof(*granted))

static size_t baseline_rows(void)
{
	size_t n = 0;

	while (sandbox_baseline(n)->path)
		n++;
	return n;
}

static void open_roots(const struct confine_options *options, struct confinement *confinement)
{
	const size_t most = options->n_roots + baseline_rows() + N_GRANTED;

	confinement->roots = allocate(most, sizeof(struct confine_root));
	confinement->skipped = allocate(most, sizeof(struct confine_root));
	confinement->rules = allocate(most, sizeof(struct sandbox_rule));
	if (options->flags & CONFINE_BASELINE)
		add_baseline(confinement);
	for (size_t i = 0; i < options->n_roots; i++)
		add_root(confinement, &options->roots[i]);
	for (size_t i = 0; i < N_GRANTED; i++) {
		if (options->flags & granted[i].flag)
			add_root(confinement, &granted[i].root);
	}
	if (!confinement->n_roots && confinement->n_skipped)
		refuse(CONFINE_SETUP, "root: no usable root: '%s' and every other one is missing",
		       confinement->skipped[0].path);
}

/* A thousand roots are a thousand descriptors for a moment. Returns the limit as it was. */
static struct rlimit make_room(size_t n_roots)
{
	struct rlimit before = {RLIM_INFINITY, RLIM_INFINITY};

	(void)getrlimit(RLIMIT_NOFILE, &before); /* cannot fail; if raising does, opening says so */
	if (before.rlim_cur < n_roots + SPARE_DESCRIPTORS) {
		const struct rlimit raised = {before.rlim_max, before.rlim_max};

		(void)setrlimit(RLIMIT_NOFILE, &raised);
	}
	return before;
}

/* ---- the rest of the plan ---- */

static size_t name_length(const char *variable)
{
	return strcspn(variable, "=");
}

/* Puts a variable into the list, in place of an earlier one of that name. */
static void set_variable(char **list, char *variable)
{
	const size_t length = name_length(variable);

	while (*list && (name_length(*list) != length || strncmp(*list, variable, length) != 0))
		list++;
	*list = variable;
}

static char *find_variable(const char *name)
{
	const size_t length = strlen(name);

	for (char **at = environ; *at; at++) {
		if (!strncmp(*at, name, length) && (*at)[length] == '=')
			return *at;
	}
	return NULL;
}

/* The caller's environment as it is; with --env exactly the variables named. */
static char **build_environment(const struct confine_options *options)
{
	char **list;

	if (!options->n_env && !(options->flags & CONFINE_CLEAR_ENV))
		return environ;
	list = allocate(options->n_env + 1, sizeof(char *));
	for (size_t i = 0; i < options->n_env; i++) {
		const char *given = options->env[i];
		char *variable = strchr(given, '=') ? (char *)given : find_variable(given);

		if (variable)
			set_variable(list, variable);
	}
	return list;
}

static int open_cwd(const char *path)
{
	if (!path)
		return -1;

	const int fd = open(path, O_PATH | O_DIRECTORY | O_CLOEXEC);

	if (fd < 0)
		refuse(CONFINE_SETUP, "cwd: '%s': %s (%s); name a directory that exists", path,
		       strerror(errno), errno_name(errno));
	return fd;
}

/* At least as strict as 022: what a command leaves behind is not for every user to change. */
static uint32_t strict_umask(void)
{
	return (uint32_t)umask(022) | 022;
}

static void make_plan(const struct confine_options *options, struct confinement *confinement,
		      uint32_t flags)
{
	confinement->plan = (struct sandbox_plan){
		.cwd_fd = open_cwd(options->cwd),
		.terminal_fd = -1,
		.cgroup_fd = -1,
		.ruleset_fd = -1,
		.flags = flags | (options->flags & CONFINE_TTY ? SANDBOX_KEEP_SESSION : 0),
		.umask = strict_umask(),
		.filter = &confinement->filter,
		.limits = confinement->limits,
		.n_limits =
			options->flags & CONFINE_LIMITS ? default_rlimits(confinement->limits) : 0,
	};
	confinement->environment = build_environment(options);
}

void prepare_confinement(const struct confine_options *options, struct confinement *ret_confinement)
{
	const uint32_t flags = options->flags & CONFINE_NET_NONE ? SANDBOX_NET_NONE : 0;
	struct sandbox_failure failure = {.index = -1};
	int error;

	require_kernel(&ret_confinement->status);
	make_plan(options, ret_confinement, flags); /* limits as the caller has them */

	const struct rlimit files = make_room(options->n_roots);

	open_roots(options, ret_confinement);
	error = sandbox_filter(flags, -1, &ret_confinement->filter);
	if (error) {
		failure.stage = SANDBOX_STAGE_FILTER;
		failure.error = -error;
		refuse_failure(ret_confinement, &failure);
	}
	if (sandbox_ruleset(ret_confinement->rules, ret_confinement->n_roots, flags, 0, 0,
			    &ret_confinement->plan.ruleset_fd, &failure))
		refuse_failure(ret_confinement, &failure);
	if (files.rlim_cur < options->n_roots + SPARE_DESCRIPTORS)
		(void)setrlimit(RLIMIT_NOFILE, &files); /* lowering is always allowed */
}
