/* SPDX-License-Identifier: Apache-2.0
 *
 * probe files TREE   tries each operation on the tree that tests/sandbox/test_enforcement.py makes
 * probe move A B     renames and links from A to B
 * probe calls        tries system calls that the filter judges
 * probe nothing      exits 0
 * probe descriptors  prints the open descriptors
 *
 * Prints one line for each operation: its name and 0, an errno, or minus the signal that ended it.
 * Every operation has objects of its own, so that none depends on what another did.
 */
#include <errno.h>
#include <fcntl.h>
#include <linux/fs.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <sys/wait.h>
#include <unistd.h>

#ifndef RNDGETENTCNT
#define RNDGETENTCNT _IOR('R', 0x00, int)
#endif

struct operation {
	const char *name;
	int (*run)(void);
};

static pid_t outside; /* the process that started us */

static int errno_of(long result)
{
	return result < 0 ? errno : 0;
}

static int try_open(const char *path, int flags)
{
	const int fd = open(path, flags | O_CLOEXEC, 0600);
	const int error = errno_of(fd);

	if (fd >= 0)
		close(fd);
	return error;
}

/* ---- files; the working directory is the tree ---- */

static int op_read(void)
{
	return try_open("file", O_RDONLY);
}
static int op_write(void)
{
	return try_open("file", O_WRONLY);
}
static int op_append(void)
{
	return try_open("file", O_WRONLY | O_APPEND);
}
static int op_read_write(void)
{
	return try_open("file", O_RDWR);
}
static int op_list(void)
{
	return try_open(".", O_RDONLY | O_DIRECTORY);
}
static int op_truncate(void)
{
	return errno_of(truncate("short", 0));
}
static int op_open_truncate(void)
{
	return try_open("short", O_WRONLY | O_TRUNC);
}
static int op_create(void)
{
	return try_open("created", O_WRONLY | O_CREAT | O_EXCL);
}
static int op_unnamed(void)
{
	return try_open(".", O_WRONLY | O_TMPFILE);
}
static int op_mkdir(void)
{
	return errno_of(mkdir("made", 0700));
}
static int op_rmdir(void)
{
	return errno_of(rmdir("empty"));
}
static int op_unlink(void)
{
	return errno_of(unlink("victim"));
}
static int op_rename(void)
{
	return errno_of(rename("from", "to"));
}
static int op_rename_across(void)
{
	return errno_of(rename("mover", "sub/moved"));
}
static int op_rename_directory(void)
{
	return errno_of(rename("tree", "sub/tree"));
}
static int op_link(void)
{
	return errno_of(link("linked", "link"));
}
static int op_link_across(void)
{
	return errno_of(link("linked", "sub/link"));
}
static int op_symlink(void)
{
	return errno_of(symlink("file", "symlink"));
}
static int op_mkfifo(void)
{
	return errno_of(mkfifo("fifo", 0600));
}
static int op_mksock(void)
{
	return errno_of(mknod("sock", S_IFSOCK | 0600, 0));
}
static int op_mkchar(void)
{
	return errno_of(mknod("char", S_IFCHR | 0600, makedev(1, 3)));
}
static int op_mkblock(void)
{
	return errno_of(mknod("block", S_IFBLK | 0600, makedev(7, 250)));
}
static int op_stat(void)
{
	struct stat status;

	return errno_of(stat("file", &status));
}
static int op_chmod(void)
{
	return errno_of(chmod("file", 0644));
}

static int op_exchange(void)
{
	return errno_of(syscall(SYS_renameat2, AT_FDCWD, "one", AT_FDCWD, "two", RENAME_EXCHANGE));
}

static int op_reopen(void)
{
	char path[64];
	const int fd = open("file", O_PATH | O_CLOEXEC);

	if (fd < 0)
		return errno;
	snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
	return try_open(path, O_RDONLY);
}

static int op_execute(void)
{
	int status;
	const pid_t child = fork();

	if (child == 0) {
		execl("program", "program", "nothing", NULL);
		_exit(errno);
	}
	waitpid(child, &status, 0);
	return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}

static int op_device_ioctl(void)
{
	int bits, error;
	const int fd = open("/dev/urandom", O_RDONLY | O_CLOEXEC);

	if (fd < 0)
		return errno;
	error = errno_of(ioctl(fd, RNDGETENTCNT, &bits));
	close(fd);
	return error;
}

static int op_signal_outside(void)
{
	return errno_of(kill(outside, SIGURG));
}

static const struct operation files[] = {
	{"read", op_read},
	{"write", op_write},
	{"append", op_append},
	{"read_write", op_read_write},
	{"list", op_list},
	{"truncate", op_truncate},
	{"open_truncate", op_open_truncate},
	{"create", op_create},
	{"unnamed", op_unnamed},
	{"mkdir", op_mkdir},
	{"rmdir", op_rmdir},
	{"unlink", op_unlink},
	{"rename", op_rename},
	{"rename_across", op_rename_across},
	{"rename_directory", op_rename_directory},
	{"exchange", op_exchange},
	{"link", op_link},
	{"link_across", op_link_across},
	{"symlink", op_symlink},
	{"mkfifo", op_mkfifo},
	{"mksock", op_mksock},
	{"mkchar", op_mkchar},
	{"mkblock", op_mkblock},
	{"stat", op_stat},
	{"reopen", op_reopen},
	{"execute", op_execute},
	{"device_ioctl", op_device_ioctl},
	{"signal_outside", op_signal_outside},
	{"chmod", op_chmod},
	{NULL, NULL},
};

/* ---- system calls; none of the arguments could do harm if let through ---- */

#define DIRTY (1L << 32)

static int raw(long number, long a, long b, long c)
{
	return errno_of(syscall(number, a, b, c));
}

static int int80(int number, int a, int b, int c)
{
	int result;

	__asm__ volatile("int $0x80"
			 : "=a"(result)
			 : "a"(number), "b"(a), "c"(b), "d"(c)
			 : "memory");
	return result < 0 ? -result : 0;
}

static int op_unix_stream(void)
{
	return raw(SYS_socket, AF_UNIX, SOCK_STREAM, 0);
}
static int op_unix_dgram(void)
{
	return raw(SYS_socket, AF_UNIX, SOCK_DGRAM, 0);
}
static int op_unix_seqpacket(void)
{
	return raw(SYS_socket, AF_UNIX, SOCK_SEQPACKET, 0);
}
static int op_unix_raw(void)
{
	return raw(SYS_socket, AF_UNIX, SOCK_RAW, 0);
}
static int op_unix_dirty(void)
{
	return raw(SYS_socket, AF_UNIX | DIRTY, SOCK_STREAM, 0);
}
static int op_unix_negative(void)
{
	return raw(SYS_socket, AF_UNIX | -DIRTY, SOCK_STREAM, 0);
}
static int op_inet_stream(void)
{
	return raw(SYS_socket, AF_INET, SOCK_STREAM, 0);
}
static int op_inet6_dgram(void)
{
	return raw(SYS_socket, AF_INET6, SOCK_DGRAM, 0);
}
static int op_x32_socket(void)
{
	return raw(0x40000000 + SYS_socket, AF_UNIX, SOCK_STREAM, 0);
}
static int op_x32_getpid(void)
{
	return raw(0x40000000 + SYS_getpid, 0, 0, 0);
}
static int op_int80_socket(void)
{
	return int80(359, AF_UNIX, SOCK_STREAM, 0);
}
static int op_int80_getpid(void)
{
	return int80(20, 0, 0, 0) < 0;
}
static int op_io_uring_setup(void)
{
	return raw(425, 1, 0, 0);
}
static int op_clone3(void)
{
	return raw(435, 0, 0, 0);
}
static int op_keyctl(void)
{
	return raw(SYS_keyctl, 0, -3, 0);
}

static int op_int80_socketcall(void)
{
	static int arguments[3] = {AF_UNIX, SOCK_STREAM, 0};

	/* socketcall reads its arguments from a 32-bit address, which this may not be: EFAULT then
	 */
	return int80(102, 1, (int)(long)arguments, 0);
}

static int try_pair(long family, long type)
{
	int pair[2] = {-1, -1};

	return errno_of(syscall(SYS_socketpair, family, type, 0, pair));
}

static int op_pair_stream(void)
{
	return try_pair(AF_UNIX, SOCK_STREAM);
}
static int op_pair_dgram(void)
{
	return try_pair(AF_UNIX, SOCK_DGRAM);
}
static int op_pair_dgram_dirty(void)
{
	return try_pair(AF_UNIX | DIRTY, SOCK_DGRAM | DIRTY);
}

static const struct operation calls[] = {
	{"unix_stream", op_unix_stream},
	{"unix_dgram", op_unix_dgram},
	{"unix_seqpacket", op_unix_seqpacket},
	{"unix_raw", op_unix_raw},
	{"unix_dirty", op_unix_dirty},
	{"unix_negative", op_unix_negative},
	{"inet_stream", op_inet_stream},
	{"inet6_dgram", op_inet6_dgram},
	{"pair_stream", op_pair_stream},
	{"pair_dgram", op_pair_dgram},
	{"pair_dgram_dirty", op_pair_dgram_dirty},
	{"x32_socket", op_x32_socket},
	{"x32_getpid", op_x32_getpid},
	{"int80_socket", op_int80_socket},
	{"int80_socketcall", op_int80_socketcall},
	{"int80_getpid", op_int80_getpid},
	{"io_uring_setup", op_io_uring_setup},
	{"clone3", op_clone3},
	{"keyctl", op_keyctl},
	{NULL, NULL},
};

/* ---- between two directories ---- */

static const char *from, *to;

static int in(const char *directory, const char *name, char *ret_path)
{
	return snprintf(ret_path, 4096, "%s/%s", directory, name);
}

static int op_move(void)
{
	char source[4096], target[4096];

	in(from, "mover", source);
	in(to, "moved", target);
	return errno_of(rename(source, target));
}

static int op_link_to(void)
{
	char source[4096], target[4096];

	in(from, "linked", source);
	in(to, "link", target);
	return errno_of(link(source, target));
}

static const struct operation moves[] = {
	{"rename", op_move},
	{"link", op_link_to},
	{NULL, NULL},
};

/* Each in a child: some end the process that tries them. */
static void run_all(const struct operation *operation)
{
	for (; operation->name; operation++) {
		int status;
		pid_t child;

		fflush(stdout);
		child = fork();
		if (child == 0)
			_exit(operation->run());
		waitpid(child, &status, 0);
		printf("%s %d\n", operation->name,
		       WIFSIGNALED(status) ? -WTERMSIG(status) : WEXITSTATUS(status));
	}
}

static void print_descriptors(void)
{
	for (int fd = 0; fd < 1 << 16; fd++) {
		if (fcntl(fd, F_GETFD) >= 0)
			printf("%d\n", fd);
	}
}

int main(int argc, char **argv)
{
	outside = getppid();
	if (argc == 3 && !strcmp(argv[1], "files")) {
		if (chdir(argv[2]))
			return 1;
		run_all(files);
	} else if (argc == 4 && !strcmp(argv[1], "move")) {
		from = argv[2];
		to = argv[3];
		run_all(moves);
	} else if (argc == 2 && !strcmp(argv[1], "calls")) {
		run_all(calls);
	} else if (argc == 2 && !strcmp(argv[1], "descriptors")) {
		print_descriptors();
	} else if (argc != 2 || strcmp(argv[1], "nothing")) {
		return 2;
	}
	return 0;
}
