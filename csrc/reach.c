/* SPDX-License-Identifier: Apache-2.0
 *
 * `confine --reach`: tries to reach Unix sockets by every route a confined process might have.
 *
 * Input is one endpoint a line, "CLASS TYPE ADDRESS": TYPE is `path` or `abstract`, ADDRESS the
 * bytes of the name in hexadecimal (of an abstract name without its leading zero byte).  Output is
 * one line for each, "CLASS REACHED route" or "CLASS REFUSED ERRNO", and never an address.  Run
 * bare it is the control, run through the real spawn path it is the check.
 *
 * Reaching is a connect that succeeds or a datagram that arrives.  Datagrams are empty: daemons
 * that listen on such sockets drop them.  Nothing here blocks.  Not tried: descriptors passed in
 * (spawning closes them), io_uring and foreign system call numbers (rows of the self-test), TCP.
 */
#include <errno.h>
#include <fcntl.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "internal.h"
#include "kernel.h"
#include "report.h"

#define CLASS_MAX 63
#define ADDRESS_MAX 4096 /* PATH_MAX */
#define LINE_BYTES (CLASS_MAX + 16 + 2 * ADDRESS_MAX)
#define DIRTY (1L << 32) /* the kernel reads the low 32 bits only */

struct endpoint {
	char class[CLASS_MAX + 1];
	int is_abstract;
	size_t length;
	char name[ADDRESS_MAX + 1]; /* abstract: without the zero byte */
};

struct address {
	struct sockaddr_un un;
	socklen_t length;
};

/* Ways of a socket that exists towards an address. All return 0 or a negative errno. */

static long by_connect(int fd, const struct address *to)
{
	return raw3(SYS_connect, fd, (long)&to->un, to->length);
}

static long by_sendto(int fd, const struct address *to)
{
	return raw6(SYS_sendto, fd, 0, 0, MSG_DONTWAIT | MSG_NOSIGNAL, (long)&to->un, to->length);
}

static long by_sendmsg(int fd, const struct address *to)
{
	struct msghdr message = {.msg_name = (void *)&to->un, .msg_namelen = to->length};
	return raw3(SYS_sendmsg, fd, (long)&message, MSG_DONTWAIT | MSG_NOSIGNAL);
}

/* In the order of how much a refusal says; the first refusal that is not about the type is
 * reported. Stream and seqpacket pairs cannot be aimed anew (EISCONN), datagram pairs can, and the
 * kernel takes SOCK_RAW for another spelling of SOCK_DGRAM. */
static const struct route {
	const char *name;
	long number; /* of the call that makes the socket */
	long family, type;
	long (*go)(int fd, const struct address *to);
} routes[] = {
	{"stream", SYS_socket, AF_UNIX, SOCK_STREAM, by_connect},
	{"datagram", SYS_socket, AF_UNIX, SOCK_DGRAM, by_connect},
	{"datagram-sendto", SYS_socket, AF_UNIX, SOCK_DGRAM, by_sendto},
	{"seqpacket", SYS_socket, AF_UNIX, SOCK_SEQPACKET, by_connect},
	{"raw", SYS_socket, AF_UNIX, SOCK_RAW, by_connect},
	{"stream-dirty", SYS_socket, AF_UNIX | DIRTY, SOCK_STREAM | DIRTY, by_connect},
	{"datagram-dirty", SYS_socket, AF_UNIX | DIRTY, SOCK_DGRAM | DIRTY, by_connect},
	{"pair-connect", SYS_socketpair, AF_UNIX, SOCK_DGRAM, by_connect},
	{"pair-sendto", SYS_socketpair, AF_UNIX, SOCK_DGRAM, by_sendto},
	{"pair-sendmsg", SYS_socketpair, AF_UNIX, SOCK_DGRAM, by_sendmsg},
	{"pair-raw", SYS_socketpair, AF_UNIX, SOCK_RAW, by_connect},
	{"pair-dirty", SYS_socketpair, AF_UNIX | DIRTY, SOCK_DGRAM | DIRTY, by_connect},
	{"pair-stream", SYS_socketpair, AF_UNIX, SOCK_STREAM, by_connect},
	{"pair-seqpacket", SYS_socketpair, AF_UNIX, SOCK_SEQPACKET, by_connect},
};
#define ROUTES (sizeof routes / sizeof *routes)

/* A full queue means that the way there is open. */
static long take(const struct route *route, const struct address *to)
{
	int fds[2] = {-1, -1};
	long type = route->type | SOCK_CLOEXEC | SOCK_NONBLOCK;
	long made = raw4(route->number, route->family, type, 0, (long)fds);
	if (made < 0)
		return made;
	if (route->number == SYS_socket)
		fds[0] = (int)made;
	long result = route->go(fds[0], to);
	for (int i = 0; i < 2; i++)
		if (fds[i] >= 0)
			raw1(SYS_close, fds[i]);
	return result == -EAGAIN || result == -EINPROGRESS ? 0 : result;
}

/* The errors that say only "this route does not fit that socket", so that another one may. */
static int is_about_type(long error)
{
	return error == -EPROTOTYPE || error == -EISCONN || error == -ENOTCONN ||
	       error == -EOPNOTSUPP;
}

/* Returns the route that led there, or NULL and the negative errno that says why none did. */
static const struct route *reach(const struct address *to, long *reterr_error)
{
	long error = 0;
	for (size_t i = 0; i < ROUTES; i++) {
		long result = take(&routes[i], to);
		if (result >= 0)
			return &routes[i];
		if (!error || (is_about_type(error) && !is_about_type(result)))
			error = result;
	}
	*reterr_error = error;
	return NULL;
}

/* A name longer than sun_path is reached from the directory it is in. */
static long approach(const struct endpoint *endpoint, struct address *ret_to)
{
	const char *name = endpoint->name;
	size_t length = endpoint->length, offset = endpoint->is_abstract ? 1 : 0;
	char directory[ADDRESS_MAX + 1];
	const char *slash = strrchr(name, '/');
	if (!endpoint->is_abstract && length > sizeof ret_to->un.sun_path && slash &&
	    slash != name) {
		size_t prefix = (size_t)(slash - name);
		memcpy(directory, name, prefix);
		directory[prefix] = 0;
		long error = raw1(SYS_chdir, (long)directory);
		if (error)
			return error;
		name = slash + 1;
		length -= prefix + 1;
	}
	if (length + offset > sizeof ret_to->un.sun_path)
		return -ENAMETOOLONG;
	*ret_to = (struct address){.un = {.sun_family = AF_UNIX}};
	memcpy(ret_to->un.sun_path + offset, name, length);
	ret_to->length = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + offset + length);
	return 0;
}

static void try_endpoint(const struct endpoint *endpoint)
{
	struct address to;
	const struct route *route = NULL;
	long error = approach(endpoint, &to);
	if (!error)
		route = reach(&to, &error);
	if (route)
		printf("%s REACHED %s\n", endpoint->class, route->name);
	else
		printf("%s REFUSED %s\n", endpoint->class, errno_name((int)-error));
}

static int hex_digit(char c)
{
	static const char digits[] = "0123456789abcdef";
	const char *found = c ? strchr(digits, c) : NULL;
	return found ? (int)(found - digits) : -1;
}

/* Lowercase pairs only. A zero byte ends a path, so inside one it is an error. */
static int parse_name(const char *hex, struct endpoint *endpoint)
{
	size_t digits = strlen(hex);
	if (digits == 0 || digits % 2 || digits / 2 > ADDRESS_MAX)
		return -1;
	for (size_t i = 0; i < digits / 2; i++) {
		int high = hex_digit(hex[2 * i]), low = hex_digit(hex[2 * i + 1]);
		if (high < 0 || low < 0 || (!endpoint->is_abstract && !high && !low))
			return -1;
		endpoint->name[i] = (char)(high << 4 | low);
	}
	endpoint->length = digits / 2;
	endpoint->name[endpoint->length] = 0;
	return 0;
}

static int parse_line(char *line, struct endpoint *ret_endpoint)
{
	static const char class_bytes[] = "abcdefghijklmnopqrstuvwxyz0123456789_-.";
	char *rest = line, *class = strsep(&rest, " "), *type = strsep(&rest, " ");
	if (!type || !rest)
		return -1;
	size_t length = strlen(class);
	if (length == 0 || length > CLASS_MAX || strspn(class, class_bytes) != length)
		return -1;
	memcpy(ret_endpoint->class, class, length + 1);
	ret_endpoint->is_abstract = strcmp(type, "abstract") == 0;
	if (!ret_endpoint->is_abstract && strcmp(type, "path") != 0)
		return -1;
	return parse_name(rest, ret_endpoint);
}

static int read_line(char line[LINE_BYTES])
{
	if (!fgets(line, LINE_BYTES, stdin))
		return 0;
	size_t length = strcspn(line, "\n");
	if (line[length] != '\n')
		line[0] = 0; /* too long, or cut off: cannot be parsed */
	line[length] = 0;
	return 1;
}

/* Returns 0 when every endpoint was tried. Stops at the first malformed line, with another status:
 * nobody may take silence for a refusal. */
int reach_main(int argc, char **argv)
{
	static char line[LINE_BYTES];
	static struct endpoint endpoint;
	(void)argv;
	if (argc > 1) {
		report("--reach takes no arguments; it reads endpoints from stdin");
		return CONFINE_USAGE;
	}
	for (unsigned long number = 1; read_line(line); number++) {
		if (parse_line(line, &endpoint)) {
			report("--reach: line %lu is not 'CLASS path|abstract HEX'", number);
			return CONFINE_USAGE;
		}
		try_endpoint(&endpoint);
	}
	return ferror(stdin) || fflush(stdout) ? CONFINE_SETUP : 0;
}
