/* SPDX-License-Identifier: Apache-2.0
 *
 * The default resource limits of --limits.
 *
 * They hold for each process, not for the tree: what many small processes use together only a
 * cgroup bounds.  Two are counted per user instead, over all of that user's processes: nproc, which
 * therefore is what runs already and a number more, and sigpending.  uid 0 is exempt from nproc.
 */
#include "rlimits.h"

#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#define KIB 1024ULL
#define MIB (1024 * KIB)
#define GIB (1024 * MIB)

static const struct {
	uint32_t resource;
	const char *name;
	uint64_t value;
} defaults[] = {
	{RLIMIT_AS, "as", 4 * GIB},
	{RLIMIT_CPU, "cpu", 120},          /* seconds; SIGXCPU, then SIGKILL */
	{RLIMIT_FSIZE, "fsize", 64 * MIB}, /* memfd too; SIGXFSZ */
	{RLIMIT_MEMLOCK, "memlock", 64 * KIB},
	{RLIMIT_MSGQUEUE, "msgqueue", 0},
	{RLIMIT_NICE, "nice", 0},
	{RLIMIT_NOFILE, "nofile", 1024},
	{RLIMIT_NPROC, "nproc", 256}, /* above what the user runs already */
	{RLIMIT_RTPRIO, "rtprio", 0},
	{RLIMIT_SIGPENDING, "sigpending", 1024},
};
#define N_DEFAULTS (sizeof(defaults) / sizeof(*defaults))
_Static_assert(N_DEFAULTS <= RLIMITS_MAX, "the caller has room for all");

/* The threads of the process in /proc/PID/stat: the 18th field after the command name, which may
 * hold anything and ends at the last ')'. */
static uint64_t threads_of(int proc_fd, const char *pid)
{
	char path[32], text[1024];

	(void)snprintf(path, sizeof(path), "%.20s/stat", pid);

	const int fd = openat(proc_fd, path, O_RDONLY | O_CLOEXEC);

	if (fd < 0)
		return 0; /* has ended */

	const ssize_t length = read(fd, text, sizeof(text) - 1);

	(void)close(fd);
	text[length > 0 ? length : 0] = 0;

	const char *field = strrchr(text, ')');

	for (int i = 0; field && i < 18; i++)
		field = strchr(field + 1, ' ');
	return field ? strtoull(field, NULL, 10) : 0;
}

/* How many threads this user has: what RLIMIT_NPROC counts. */
static uint64_t threads_of_user(void)
{
	const uid_t uid = getuid();
	DIR *proc = opendir("/proc");
	uint64_t threads = 0;
	struct stat status;

	if (!proc)
		return 0;
	for (const struct dirent *entry; (entry = readdir(proc));) {
		if (*entry->d_name < '0' || *entry->d_name > '9')
			continue;
		if (fstatat(dirfd(proc), entry->d_name, &status, 0) == 0 && status.st_uid == uid)
			threads += threads_of(dirfd(proc), entry->d_name);
	}
	(void)closedir(proc);
	return threads;
}

static uint64_t smaller(uint64_t a, uint64_t b)
{
	return a < b ? a : b;
}

size_t default_rlimits(struct sandbox_limit *limits)
{
	for (size_t i = 0; i < N_DEFAULTS; i++) {
		const uint32_t resource = defaults[i].resource;
		struct rlimit present = {RLIM_INFINITY, RLIM_INFINITY};
		uint64_t value = defaults[i].value;

		if (resource == RLIMIT_NPROC && getuid() != 0)
			value += threads_of_user();
		(void)getrlimit((int)resource, &present); /* fails for no resource of this table */
		limits[i] = (struct sandbox_limit){
			.resource = resource,
			.soft = smaller(value, present.rlim_cur),
			.hard = smaller(value, present.rlim_max),
		};
	}
	return N_DEFAULTS;
}

const char *rlimit_name(uint32_t resource)
{
	for (size_t i = 0; i < N_DEFAULTS; i++) {
		if (defaults[i].resource == resource)
			return defaults[i].name;
	}
	return "core";
}
