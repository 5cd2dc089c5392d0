/* SPDX-License-Identifier: Apache-2.0
 *
 * Opens roots; see openroot.h.
 *
 * Theory of operation.  A path without any link, which is nearly every path, is one openat2(2).
 * Only when the kernel finds a link is the path walked here, component by component, each opened
 * relative to the one before: what was judged is what is used, whatever is renamed meanwhile.  A
 * link is followed when root owns it and the directory it lies in, nobody else can write that
 * directory, and the directory is one of the system's own.  The last condition is for commands that
 * run as root: they can plant a link owned by root in any writable root, but have no business in
 * those places.
 */
#include "openroot.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/openat2.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "kernel.h"

#define MAX_LINKS 40 /* as many as the kernel follows (path_resolution(7)) */

static const struct {
	const char *directory; /* "" is / itself */
	int below;             /* also in the directories below it */
} trusted_places[] = {
	{"", 0},     /* /bin -> usr/bin */
	{"/dev", 0}, /* /dev/ptmx -> pts/ptmx */
	{"/run", 0}, /* /run/current-system */
	{"/var", 0}, /* /var/run -> /run */
	{"/etc", 1}, /* /etc/localtime, /etc/alternatives/... */
	{"/usr", 1}, /* /usr/bin/python3 -> python3.11; see is_trusted_place about /usr/local */
	{"/nix", 1}, {"/gnu", 1},
};

/* A path on the way: the directory reached, its name without any link in it, and what is left. */
struct walk {
	int fd;
	int links;
	char where[PATH_MAX]; /* "" is / */
	char rest[PATH_MAX];
};

static int openat2_path(const char *path, uint64_t resolve)
{
	const struct open_how how = {
		.flags = O_PATH | O_CLOEXEC,
		.resolve = resolve | RESOLVE_NO_MAGICLINKS,
	};

	return (int)raw4(NR_openat2, AT_FDCWD, (long)path, (long)&how, (long)sizeof(how));
}

static int is_below(const char *path, const char *directory)
{
	const size_t length = strlen(directory);

	return !strncmp(path, directory, length) && (path[length] == 0 || path[length] == '/');
}

static int is_trusted_place(const char *where)
{
	if (is_below(where, "/usr/local")) /* often the operator's, and a root to write in */
		return 0;
	for (size_t i = 0; i < sizeof(trusted_places) / sizeof(*trusted_places); i++) {
		const char *directory = trusted_places[i].directory;

		if (!strcmp(where, directory) ||
		    (trusted_places[i].below && is_below(where, directory)))
			return 1;
	}
	return 0;
}

static int is_roots_own(const struct stat *status)
{
	return status->st_uid == 0 &&
	       (S_ISLNK(status->st_mode) || !(status->st_mode & (S_IWGRP | S_IWOTH)));
}

static int is_trusted_link(const struct walk *walk, const struct stat *link)
{
	struct stat directory;

	return is_trusted_place(walk->where) && is_roots_own(link) &&
	       fstat(walk->fd, &directory) == 0 && is_roots_own(&directory);
}

static int move_to(struct walk *walk, int fd)
{
	if (fd < 0)
		return -errno;
	(void)close(walk->fd); /* O_PATH: nothing to lose */
	walk->fd = fd;
	return 0;
}

/* Cuts the first component off walk->rest; "" when there is none left. */
static const char *next_component(struct walk *walk, char component[NAME_MAX + 1])
{
	const char *start = walk->rest + strspn(walk->rest, "/");
	const size_t length = strcspn(start, "/");

	if (length > NAME_MAX)
		return NULL;
	memcpy(component, start, length);
	component[length] = 0;
	memmove(walk->rest, start + length, strlen(start + length) + 1);
	return component;
}

/* ".." of a followed link: its parent is known by name, so it is opened by no name of its own. */
static int go_up(struct walk *walk)
{
	char *slash = strrchr(walk->where, '/');

	if (slash)
		*slash = 0;
	return move_to(walk, openat(walk->fd, "..", O_PATH | O_DIRECTORY | O_CLOEXEC));
}

static int append(char *path, const char *component)
{
	const size_t used = strlen(path);

	if (used + 1 + strlen(component) >= PATH_MAX)
		return -ENAMETOOLONG;
	path[used] = '/';
	memcpy(path + used + 1, component, strlen(component) + 1);
	return 0;
}

/* Puts the link's target in front of what is left of the path. */
static int follow(struct walk *walk, int link_fd)
{
	char target[PATH_MAX];
	const ssize_t length = readlinkat(link_fd, "", target, sizeof(target) - 1);

	if (length < 0)
		return -errno;
	target[length] = 0;
	if (append(target, walk->rest))
		return -ENAMETOOLONG;
	memcpy(walk->rest, target, strlen(target) + 1);
	if (*target != '/')
		return 0;
	*walk->where = 0;
	return move_to(walk, open("/", O_PATH | O_DIRECTORY | O_CLOEXEC));
}

static int enter_link(struct walk *walk, const char *component, int link_fd,
		      const struct stat *link)
{
	const int trusted = is_trusted_link(walk, link);
	int error = -ELOOP;

	if (trusted && ++walk->links <= MAX_LINKS)
		error = follow(walk, link_fd);
	else if (append(walk->where, component)) /* the link's own name, for the message */
		error = -ENAMETOOLONG;
	(void)close(link_fd);
	return error;
}

static int step(struct walk *walk, const char *component)
{
	struct stat status;

	if (!strcmp(component, "."))
		return 0;
	if (!strcmp(component, ".."))
		return go_up(walk);

	const int fd = openat(walk->fd, component, O_PATH | O_NOFOLLOW | O_CLOEXEC);

	if (fd < 0 || fstat(fd, &status) < 0)
		return -errno;
	if (S_ISLNK(status.st_mode))
		return enter_link(walk, component, fd, &status);
	return append(walk->where, component) ? -ENAMETOOLONG : move_to(walk, fd);
}

static int walk_path(struct walk *walk, const char *path)
{
	char component[NAME_MAX + 1];
	int error = 0;

	if (strlen(path) >= sizeof(walk->rest))
		return -ENAMETOOLONG;
	memcpy(walk->rest, path, strlen(path) + 1);
	walk->fd = open("/", O_PATH | O_DIRECTORY | O_CLOEXEC);
	if (walk->fd < 0)
		return -errno;
	while (!error) {
		if (!next_component(walk, component))
			error = -ENAMETOOLONG;
		else if (!*component)
			return 0;
		else
			error = step(walk, component);
	}
	(void)close(walk->fd);
	return error;
}

int openroot(const char *path, int *ret_fd, struct openroot_failure *reterr_failure)
{
	static struct walk walk;
	static char target[PATH_MAX];
	int error = openat2_path(path, RESOLVE_NO_SYMLINKS);

	if (error >= 0) {
		*ret_fd = error;
		return 0;
	}
	walk = (struct walk){.fd = -1};
	/* ELOOP: a link. ENOSYS, EPERM: an outer filter that does not know openat2. */
	if (error == -ELOOP || error == -ENOSYS || error == -EPERM)
		error = walk_path(&walk, path);
	if (!error) {
		*ret_fd = walk.fd;
		return 0;
	}
	reterr_failure->link = error == -ELOOP ? walk.where : NULL;
	reterr_failure->target = error == -ELOOP ? realpath(path, target) : NULL;
	return error;
}

int openroot_system(const char *path, int *ret_fd)
{
	int fd = openat2_path(path, 0);

	if (fd == -ENOSYS || fd == -EPERM) {
		fd = open(path, O_PATH | O_CLOEXEC);
		fd = fd < 0 ? -errno : fd;
	}
	if (fd < 0)
		return fd;
	*ret_fd = fd;
	return 0;
}
