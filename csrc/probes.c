/* SPDX-License-Identifier: Apache-2.0
 *
 * The rows of the self-test: what is tried in a confined child and beside it in the control.
 *
 * Owns what is tried and the answer claimed.  Leaves the processes, the tree (names below are relative
 * to the root of one world's tree) and the judging to selftest.c.  Rows run in order within a world, the
 * sealed ones last; a few build on earlier ones.
 */
#include <elf.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/capability.h>
#include <linux/futex.h>
#include <linux/netlink.h>
#include <linux/prctl.h>
#include <linux/ptrace.h>
#include <linux/securebits.h>
#include <netinet/in.h>
#include <sched.h>
#include <signal.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/uio.h>

#include "kernel.h"
#include "probes.h"

#define DIRTY (1L << 32)                  /* the kernel reads the low 32 bits of an int */
#define SIGN_GARBAGE (0xffffffffL << 32)  /* the same, as a sign extension gone wrong */
#define X32 0x40000000L                   /* the x32 numbering */
#define NR32_SOCKET 359                   /* i386 numbers */
#define NR32_SOCKETCALL 102
#define NR32_GETPID 20

/* A static executable of one page: exit(0). Any load address will do. */
#define LOAD_ADDRESS 0x400000
#define PROGRAM_CODE "\xb8\x3c\x00\x00\x00\x31\xff\x0f\x05" /* mov $60,%eax; xor %edi,%edi; syscall */

static const struct program {
	Elf64_Ehdr header;
	Elf64_Phdr segment;
	char code[sizeof PROGRAM_CODE - 1];
} program = {
	.header = {
		.e_ident = { ELFMAG0, ELFMAG1, ELFMAG2, ELFMAG3, ELFCLASS64, ELFDATA2LSB, EV_CURRENT },
		.e_type = ET_EXEC,
		.e_machine = EM_X86_64,
		.e_version = EV_CURRENT,
		.e_entry = LOAD_ADDRESS + offsetof(struct program, code),
		.e_phoff = offsetof(struct program, segment),
		.e_ehsize = sizeof(Elf64_Ehdr),
		.e_phentsize = sizeof(Elf64_Phdr),
		.e_phnum = 1,
	},
	.segment = {
		.p_type = PT_LOAD,
		.p_flags = PF_R | PF_X,
		.p_vaddr = LOAD_ADDRESS,
		.p_paddr = LOAD_ADDRESS,
		.p_filesz = sizeof(struct program),
		.p_memsz = sizeof(struct program),
		.p_align = 0x1000,
	},
	.code = PROGRAM_CODE,
};
const void *const sandbox_program = &program;
const size_t sandbox_program_size = sizeof program;

static int32_t errno_of(long result) { return result < 0 ? (int32_t)-result : 0; }

/* call: number, arguments. What it opens stays open: the process ends soon. */
static int32_t call(const struct scene *scene, const struct probe *probe)
{
	const long *c = probe->call;
	(void)scene;
	return errno_of(raw6(c[0], c[1], c[2], c[3], c[4], c[5], c[6]));
}

/* ---- Unix sockets ---- */

static long connect_to(long fd, const struct scene *scene, long endpoint)
{
	const struct address *address = &scene->endpoints[endpoint];
	return raw3(SYS_connect, fd, (long)&address->un, address->length);
}

/* call: family, type, endpoint */
static int32_t make_and_connect(const struct scene *scene, const struct probe *probe)
{
	long fd = raw3(SYS_socket, probe->call[0], probe->call[1], 0);
	return errno_of(fd < 0 ? fd : connect_to(fd, scene, probe->call[2]));
}

/* call: family, type, endpoint, number of the call that aims one end of the pair at it */
static int32_t aim_pair(const struct scene *scene, const struct probe *probe)
{
	const long *c = probe->call;
	const struct address *to = &scene->endpoints[c[2]];
	struct msghdr message = { .msg_name = (void *)&to->un, .msg_namelen = to->length };
	int fds[2];
	long error = raw4(SYS_socketpair, c[0], c[1], 0, (long)fds);
	if (error)
		return errno_of(error);
	if (c[3] == SYS_connect)
		return errno_of(connect_to(fds[0], scene, c[2]));
	if (c[3] == SYS_sendto)
		return errno_of(raw6(SYS_sendto, fds[0], 0, 0, MSG_DONTWAIT, (long)&to->un, to->length));
	return errno_of(raw3(SYS_sendmsg, fds[0], (long)&message, MSG_DONTWAIT));
}

/* call: type, endpoint; with a socket made before the confinement */
static int32_t connect_held(const struct scene *scene, const struct probe *probe)
{
	int32_t fd = probe->call[0] == SOCK_STREAM ? scene->stream_fd : scene->datagram_fd;
	return errno_of(connect_to(fd, scene, probe->call[1]));
}

/* ---- foreign numberings ---- */

static long int80(long number, long a, long b, long c)
{
	long result;
	__asm__ volatile("int $0x80"
			 : "=a"(result)
			 : "a"(number), "b"(a), "c"(b), "d"(c)
			 : "memory", "r8", "r9", "r10", "r11");
	return (int32_t)result;
}

/* call: number, arguments */
static int32_t call32(const struct scene *scene, const struct probe *probe)
{
	const long *c = probe->call;
	(void)scene;
	return errno_of(int80(c[0], c[1], c[2], c[3]));
}

/* socketcall takes its arguments from memory, by a 32-bit address. */
static int32_t socketcall32(const struct scene *scene, const struct probe *probe)
{
	const int sys_socket = 1;
	const uint32_t arguments[3] = { AF_UNIX, SOCK_STREAM, 0 };
	long page = raw6(SYS_mmap, 0, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_32BIT, -1, 0);
	(void)scene;
	if (page < 0)
		return errno_of(page);
	memcpy((void *)page, arguments, sizeof arguments);
	return errno_of(int80(probe->call[0], sys_socket, page, 0));
}

/* ---- programs, processes, threads ---- */

/* call: path */
static int32_t execute(const struct scene *scene, const struct probe *probe)
{
	const char *const argv[] = { "program", NULL }, *const envp[] = { NULL };
	(void)scene;
	return errno_of(raw3(SYS_execve, probe->call[0], (long)argv, (long)envp));
}

static int32_t fork_and_wait(const struct scene *scene, const struct probe *probe)
{
	int status = 0;
	long pid = raw0(SYS_fork);
	(void)scene, (void)probe;
	if (pid == 0)
		for (;;)
			raw1(SYS_exit_group, 0);
	long waited = pid < 0 ? pid : raw4(SYS_wait4, pid, (long)&status, 0, 0);
	return waited < 0 ? errno_of(waited) : status;
}

/* The thread ends at once; the kernel then clears its id and wakes who waits for that. */
static int32_t thread(const struct scene *scene, const struct probe *probe)
{
	static char stack[256] __attribute__((aligned(16)));
	const long flags = CLONE_VM | CLONE_FS | CLONE_FILES | CLONE_SIGHAND | CLONE_THREAD | CLONE_SYSVSEM |
			   CLONE_CHILD_CLEARTID;
	volatile int32_t id = 1;
	long result;
	register volatile int32_t *r10 __asm__("r10") = &id;
	register long r8 __asm__("r8") = 0;
	(void)scene, (void)probe;
	__asm__ volatile("syscall\n\t"
			 "test %%rax, %%rax\n\t"
			 "jnz 1f\n\t"
			 "mov %[exit], %%eax\n\t"
			 "xor %%edi, %%edi\n\t"
			 "syscall\n"
			 "1:"
			 : "=a"(result)
			 : "a"(SYS_clone), "D"(flags), "S"(stack + sizeof stack), "d"(0), "r"(r10), "r"(r8),
			   [exit] "i"(SYS_exit)
			 : "rcx", "r11", "memory");
	if (result < 0)
		return errno_of(result);
	while (id)
		raw4(SYS_futex, (long)&id, FUTEX_WAIT, 1, 0);
	return 0;
}

static int32_t pipe_through(const struct scene *scene, const struct probe *probe)
{
	int fds[2];
	char byte = 'x';
	long error = raw2(SYS_pipe2, (long)fds, O_CLOEXEC);
	(void)scene, (void)probe;
	if (error || (error = raw3(SYS_write, fds[1], (long)&byte, 1)) < 0)
		return errno_of(error);
	return errno_of(raw3(SYS_read, fds[0], (long)&byte, 1));
}

/* ---- the process outside ---- */

/* SIGWINCH is ignored by default. */
static int32_t signal_host(const struct scene *scene, const struct probe *probe)
{
	(void)probe;
	return errno_of(raw2(SYS_kill, scene->host_pid, SIGWINCH));
}

/* Seizing stops nothing, and ends with the process that did it. */
static int32_t trace_host(const struct scene *scene, const struct probe *probe)
{
	(void)probe;
	return errno_of(raw4(SYS_ptrace, PTRACE_SEIZE, scene->host_pid, 0, 0));
}

/* The host is a fork of the same process: the table lies at the same address there. */
static int32_t read_host(const struct scene *scene, const struct probe *probe)
{
	struct probe copy;
	struct iovec to = { &copy, sizeof copy }, from = { (void *)probe, sizeof *probe };
	return errno_of(raw6(SYS_process_vm_readv, scene->host_pid, (long)&to, 1, (long)&from, 1, 0));
}

/* ---- terminal, devices, keys ---- */

/* call: request. On a controlling terminal, where a kernel that still has it allows it to anyone. */
static int32_t push_input(const struct scene *scene, const struct probe *probe)
{
	const char byte = 'x';
	raw0(SYS_setsid); /* in the control; the confined child leads a session already */
	raw3(SYS_ioctl, scene->terminal_fd, TIOCSCTTY, 0);
	return errno_of(raw3(SYS_ioctl, scene->terminal_fd, probe->call[0], (long)&byte));
}

/* call: path, request */
static int32_t device_ioctl(const struct scene *scene, const struct probe *probe)
{
	char buffer[256];
	long fd = raw4(SYS_openat, AT_FDCWD, probe->call[0], O_RDONLY | O_CLOEXEC, 0);
	(void)scene;
	return errno_of(fd < 0 ? fd : raw3(SYS_ioctl, fd, probe->call[1], (long)buffer));
}

/* /proc/keys is lines that start with a serial of eight hexadecimal digits. */
static int32_t find_key(long fd, uint32_t wanted)
{
	char buffer[1024];
	uint32_t serial = 0;
	long n, column = 0;
	while ((n = raw3(SYS_read, fd, (long)buffer, sizeof buffer)) > 0)
		for (long i = 0; i < n; i++) {
			char c = buffer[i];
			if (column == 8 && serial == wanted)
				return 0;
			if (column < 8)
				serial = serial << 4 | (uint32_t)(c <= '9' ? c - '0' : c - 'a' + 10);
			column = c == '\n' ? 0 : column + 1;
		}
	return ENOKEY;
}

static int32_t find_planted_key(const struct scene *scene, const struct probe *probe)
{
	(void)probe;
	if (!scene->planted_key)
		return ENOKEY;
	long fd = raw4(SYS_openat, AT_FDCWD, (long)"/proc/keys", O_RDONLY | O_CLOEXEC, 0);
	return fd < 0 ? errno_of(fd) : find_key(fd, (uint32_t)scene->planted_key);
}

/* ---- the state of the process: 0 if as claimed, EPERM if not ---- */

static int32_t claim(int holds) { return holds ? 0 : EPERM; }

static int32_t session_leader(const struct scene *scene, const struct probe *probe)
{
	(void)scene, (void)probe;
	return claim(raw1(SYS_getsid, 0) == raw0(SYS_getpid));
}

/* call: option, value */
static int32_t process_control(const struct scene *scene, const struct probe *probe)
{
	(void)scene;
	return claim(raw5(SYS_prctl, probe->call[0], 0, 0, 0, 0) == probe->call[1]);
}

static int32_t securebits(const struct scene *scene, const struct probe *probe)
{
	const long wanted = SECBIT_NOROOT | SECBIT_NOROOT_LOCKED | SECBIT_NO_SETUID_FIXUP |
			    SECBIT_NO_SETUID_FIXUP_LOCKED | SECBIT_KEEP_CAPS_LOCKED | SECBIT_NO_CAP_AMBIENT_RAISE |
			    SECBIT_NO_CAP_AMBIENT_RAISE_LOCKED;
	(void)scene, (void)probe;
	return claim(raw1(SYS_prctl, PR_GET_SECUREBITS) == wanted);
}

static int32_t capability_sets(const struct scene *scene, const struct probe *probe)
{
	struct __user_cap_header_struct header = { .version = _LINUX_CAPABILITY_VERSION_3 };
	struct __user_cap_data_struct data[2] = { { 0 }, { 0 } };
	long error = raw2(SYS_capget, (long)&header, (long)data);
	uint32_t any = 0;
	(void)scene, (void)probe;
	for (int i = 0; i < 2; i++)
		any |= data[i].effective | data[i].permitted | data[i].inheritable;
	for (long capability = 0; capability < 64; capability++)
		any |= raw4(SYS_prctl, PR_CAP_AMBIENT, PR_CAP_AMBIENT_IS_SET, capability, 0) == 1;
	return error ? errno_of(error) : claim(!any);
}

static int32_t bounding_set(const struct scene *scene, const struct probe *probe)
{
	int any = 0;
	(void)scene, (void)probe;
	for (long capability = 0; capability < 64; capability++)
		any |= raw2(SYS_prctl, PR_CAPBSET_READ, capability) == 1;
	return claim(!any);
}

/* 1, or the 0 that was the hard limit before and could not be raised. A write claims to work and is
 * not done: `ulimit -c 0` goes on working. */
static int32_t core_limit(const struct scene *scene, const struct probe *probe)
{
	const uint64_t nothing[2] = { 0, 0 };
	const uint64_t wanted = scene->core_hard_max < 1 ? 0 : 1;
	uint64_t now[2] = { 9, 9 };
	(void)probe;
	long error = raw4(SYS_prlimit64, 0, RLIMIT_CORE, (long)nothing, 0);
	if (error || (error = raw4(SYS_prlimit64, 0, RLIMIT_CORE, 0, (long)now)))
		return errno_of(error);
	return claim(now[1] <= 1 && now[0] <= 1 && now[1] >= wanted && now[0] >= wanted);
}

/* ---- the network ---- */

static const struct sockaddr_in loopback = {
	.sin_family = AF_INET,
	.sin_port = 0,
	.sin_addr = { 0x0100007f }, /* 127.0.0.1 as it lies in memory */
};

/* call: number of the call, made on the socket from before the confinement. Nobody listens at port 0. */
static int32_t use_held_inet(const struct scene *scene, const struct probe *probe)
{
	return errno_of(raw3(probe->call[0], scene->inet_fd, (long)&loopback, sizeof loopback));
}

/* What a resolver does before it sends: read its configuration, aim a datagram socket. */
static int32_t resolver(const struct scene *scene, const struct probe *probe)
{
	struct sockaddr_in server = loopback;
	char byte;
	long fd = raw4(SYS_openat, AT_FDCWD, (long)"/etc/resolv.conf", O_RDONLY | O_CLOEXEC, 0);
	long error = fd < 0 ? fd : raw3(SYS_read, fd, (long)&byte, 1);
	(void)scene, (void)probe;
	if (error < 0)
		return errno_of(error);
	server.sin_port = 53 << 8;
	fd = raw3(SYS_socket, AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
	return errno_of(fd < 0 ? fd : raw3(SYS_connect, fd, (long)&server, sizeof server));
}
