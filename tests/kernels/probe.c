/* SPDX-License-Identifier: Apache-2.0
 *
 * One operation per run: `probe VERB ARGS` tries it and exits with its errno, 0 when it worked. Run
 * bare it is the control, run under confine(1) it is the test; tests/bench runs it under others.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/io_uring.h>
#include <linux/seccomp.h>
#include <signal.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <unistd.h>

#define X32_BIT 0x40000000L
#define I386_SOCKET 359L

typedef int (*verb)(char **arguments);
typedef long (*socket_call)(void);

static long socket_native(void)
{
	return syscall(SYS_socket, AF_UNIX, SOCK_STREAM, 0);
}

/* The same kernel function by its x32 number; no pointer is passed, so no x32 program is needed. */
static long socket_x32(void)
{
	return syscall(X32_BIT + SYS_socket, AF_UNIX, SOCK_STREAM, 0);
}

/* The i386 entry, open to 64-bit programs as well. */
static long socket_i386(void)
{
	long result;

	__asm__ volatile("int $0x80"
			 : "=a"(result)
			 : "a"(I386_SOCKET), "b"((long)AF_UNIX), "c"((long)SOCK_STREAM), "d"(0L)
			 : "memory", "r8", "r9", "r10", "r11");
	if (result < 0) {
		errno = (int)-result;
		return -1;
	}
	return result;
}

static struct sockaddr_un address_of(const char *path)
{
	struct sockaddr_un address = {.sun_family = AF_UNIX};

	strncpy(address.sun_path, path, sizeof(address.sun_path) - 1);
	return address;
}

/* Reaching the listener is the point: a descriptor alone would not show an AF_UNIX socket. */
static int reach(socket_call make, const char *path)
{
	struct sockaddr_un address = address_of(path);
	long fd = make();

	if (fd < 0)
		return errno;
	return connect((int)fd, (struct sockaddr *)&address, sizeof(address)) == 0 ? 0 : errno;
}

static int verb_unix(char **arguments)
{
	return reach(socket_native, arguments[0]);
}

static int verb_x32(char **arguments)
{
	return reach(socket_x32, arguments[0]);
}

static int verb_int80(char **arguments)
{
	return reach(socket_i386, arguments[0]);
}

/* A filter that knows only the native number of socket(2), as many in the field do. */
static int install_naive_filter(void)
{
	struct sock_filter code[] = {
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_socket, 0, 1),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
	};
	struct sock_fprog program = {.len = sizeof(code) / sizeof(code[0]), .filter = code};

	if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0)
		return errno;
	return prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program, 0, 0) == 0 ? 0 : errno;
}

static int verb_naive(char **arguments)
{
	int error = install_naive_filter();

	if (error != 0)
		return error;
	return strcmp(arguments[0], "x32") == 0 ? reach(socket_x32, arguments[1])
						: reach(socket_native, arguments[1]);
}

/* One end of a datagram pair can be pointed at any datagram socket: the journal, sd_notify. */
static int verb_datagram(char **arguments)
{
	struct sockaddr_un address = address_of(arguments[0]);
	int pair[2];

	if (socketpair(AF_UNIX, SOCK_DGRAM, 0, pair) != 0)
		return errno;
	return sendto(pair[0], "x", 1, MSG_DONTWAIT, (struct sockaddr *)&address,
		      sizeof(address)) == 1
		       ? 0
		       : errno;
}

static int verb_io_uring(char **arguments)
{
	struct io_uring_params parameters = {0};

	(void)arguments;
	return syscall(SYS_io_uring_setup, 1, &parameters) >= 0 ? 0 : errno;
}

static int verb_signal(char **arguments)
{
	return kill(atoi(arguments[0]), 0) == 0 ? 0 : errno;
}

static int verb_read(char **arguments)
{
	return open(arguments[0], O_RDONLY | O_CLOEXEC) >= 0 ? 0 : errno;
}

static int verb_write(char **arguments)
{
	return open(arguments[0], O_WRONLY | O_CLOEXEC) >= 0 ? 0 : errno;
}

static int verb_truncate(char **arguments)
{
	return truncate(arguments[0], 0) == 0 ? 0 : errno;
}

static int verb_chmod(char **arguments)
{
	return chmod(arguments[0], 0600) == 0 ? 0 : errno;
}

static int verb_create(char **arguments)
{
	return open(arguments[0], O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600) >= 0 ? 0 : errno;
}

/* Makes a file in one directory and moves it to another: REFER is needed, and two layers break it.
 */
static int verb_move(char **arguments)
{
	int error = verb_create(arguments);

	if (error != 0)
		return error;
	return rename(arguments[0], arguments[1]) == 0 ? 0 : errno;
}

static const struct {
	const char *name;
	int n_arguments;
	verb run;
} verbs[] = {
	{"unix", 1, verb_unix},         {"x32", 1, verb_x32},
	{"int80", 1, verb_int80},       {"naive", 2, verb_naive},
	{"datagram", 1, verb_datagram}, {"io_uring", 0, verb_io_uring},
	{"signal", 1, verb_signal},     {"read", 1, verb_read},
	{"write", 1, verb_write},       {"truncate", 1, verb_truncate},
	{"chmod", 1, verb_chmod},       {"create", 1, verb_create},
	{"move", 2, verb_move},
};

int main(int argc, char **argv)
{
	for (size_t i = 0; argc >= 2 && i < sizeof(verbs) / sizeof(verbs[0]); i++)
		if (strcmp(argv[1], verbs[i].name) == 0 && argc == 2 + verbs[i].n_arguments)
			return verbs[i].run(argv + 2);
	fprintf(stderr, "probe: no such verb or wrong number of arguments\n");
	return 255;
}
