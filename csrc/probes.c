/* SPDX-License-Identifier: Apache-2.0
 *
 * The rows of the self-test: what is tried in a confined child and beside it in the control.
 *
 * Owns what is tried and the answer claimed.  Leaves the processes, the tree (names below are
 * relative to the root of one world's tree) and the judging to selftest.c.  Rows run in order
 * within a world, the sealed ones last; a few build on earlier ones.
 */
#include <elf.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/btrfs.h>
#include <linux/capability.h>
#include <linux/fs.h>
#include <linux/fscrypt.h>
#include <linux/fsverity.h>
#include <linux/futex.h>
#include <linux/ioprio.h>
#include <linux/netlink.h>
#include <linux/personality.h>
#include <linux/prctl.h>
#include <linux/ptrace.h>
#include <linux/sched.h>
#include <linux/securebits.h>
#include <netinet/in.h>
#include <signal.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <time.h>

#include "kernel.h"
#include "probes.h"

#define DIRTY (1L << 32)                 /* the kernel reads the low 32 bits of an int */
#define SIGN_GARBAGE (0xffffffffL << 32) /* the same, as a sign extension gone wrong */
#define X32 0x40000000L                  /* the x32 numbering */
#define NR32_SOCKET 359                  /* i386 numbers */
#define NR32_SOCKETCALL 102
#define NR32_GETPID 20

/* A static executable of one page: exit(0). Any load address will do. */
#define LOAD_ADDRESS 0x400000
#define PROGRAM_CODE \
	"\xb8\x3c\x00\x00\x00\x31\xff\x0f\x05" /* mov $60,%eax; xor %edi,%edi; syscall */

static const struct program {
	Elf64_Ehdr header;
	Elf64_Phdr segment;
	char code[sizeof PROGRAM_CODE];
} program = {
	.header =
		{
			.e_ident = {ELFMAG0, ELFMAG1, ELFMAG2, ELFMAG3, ELFCLASS64, ELFDATA2LSB,
				    EV_CURRENT},
			.e_type = ET_EXEC,
			.e_machine = EM_X86_64,
			.e_version = EV_CURRENT,
			.e_entry = LOAD_ADDRESS + offsetof(struct program, code),
			.e_phoff = offsetof(struct program, segment),
			.e_ehsize = sizeof(Elf64_Ehdr),
			.e_phentsize = sizeof(Elf64_Phdr),
			.e_phnum = 1,
		},
	.segment =
		{
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

static int32_t claim(int holds)
{
	return holds ? 0 : EPERM;
}
static int32_t errno_of(long result)
{
	return result < 0 ? (int32_t)-result : 0;
}

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
	struct msghdr message = {.msg_name = (void *)&to->un, .msg_namelen = to->length};
	int fds[2];
	long error = raw4(SYS_socketpair, c[0], c[1], 0, (long)fds);
	if (error)
		return errno_of(error);
	if (c[3] == SYS_connect)
		return errno_of(connect_to(fds[0], scene, c[2]));
	if (c[3] == SYS_sendto)
		return errno_of(
			raw6(SYS_sendto, fds[0], 0, 0, MSG_DONTWAIT, (long)&to->un, to->length));
	return errno_of(raw3(SYS_sendmsg, fds[0], (long)&message, MSG_DONTWAIT));
}

/* call: type */
static int32_t make_pair(const struct scene *scene, const struct probe *probe)
{
	int fds[2];
	(void)scene;
	return errno_of(raw4(SYS_socketpair, AF_UNIX, probe->call[0], 0, (long)fds));
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
	const uint32_t arguments[3] = {AF_UNIX, SOCK_STREAM, 0};
	long page = raw6(SYS_mmap, 0, 4096, PROT_READ | PROT_WRITE,
			 MAP_PRIVATE | MAP_ANONYMOUS | MAP_32BIT, -1, 0);
	(void)scene;
	if (page < 0)
		return errno_of(page);
	memcpy((void *)page, arguments, sizeof arguments);
	return errno_of(int80(probe->call[0], sys_socket, page, 0));
}

/* ---- programs, processes, threads ---- */

/* The cgroup descriptor is not one: the call fails late in the control, and makes no process. */
static int32_t clone_into_cgroup(const struct scene *scene, const struct probe *probe)
{
	struct clone_args args = {.flags = KERNEL_CLONE_INTO_CGROUP,
				  .exit_signal = SIGCHLD,
				  .cgroup = INT32_MAX};
	(void)scene, (void)probe;
	return errno_of(raw2(NR_clone3, (long)&args, sizeof args));
}

/* call: path */
static int32_t execute(const struct scene *scene, const struct probe *probe)
{
	const char *const argv[] = {"program", NULL}, *const envp[] = {NULL};
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

/* The scope that stops signals must leave those among the child's own. */
static int32_t signal_child(const struct scene *scene, const struct probe *probe)
{
	const struct timespec patience = {.tv_sec = 10}; /* should nobody end it */
	int status = 0;
	long pid = raw0(SYS_fork);
	(void)scene, (void)probe;
	if (pid == 0) {
		raw4(SYS_ppoll, 0, 0, (long)&patience, 0);
		raw1(SYS_exit_group, 0);
	}
	long error = pid < 0 ? pid : raw2(SYS_kill, pid, SIGKILL);
	if (!error)
		error = raw4(SYS_wait4, pid, (long)&status, 0, 0);
	return error < 0 ? errno_of(error) : claim(status == SIGKILL);
}

/* The thread ends at once; the kernel then clears its id and wakes who waits for that. */
static int32_t thread(const struct scene *scene, const struct probe *probe)
{
	static char stack[256] __attribute__((aligned(16)));
	const long flags = CLONE_VM | CLONE_FS | CLONE_FILES | CLONE_SIGHAND | CLONE_THREAD |
			   CLONE_SYSVSEM | CLONE_CHILD_CLEARTID;
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
			 : "a"(SYS_clone), "D"(flags), "S"(stack + sizeof stack), "d"(0), "r"(r10),
			   "r"(r8), [exit] "i"(SYS_exit)
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
	struct iovec to = {&copy, sizeof copy}, from = {(void *)probe, sizeof *probe};
	return errno_of(
		raw6(SYS_process_vm_readv, scene->host_pid, (long)&to, 1, (long)&from, 1, 0));
}

/* ---- terminal, devices, keys ---- */

/* call: request. On a controlling terminal, where a kernel that still has it allows it to anyone.
 */
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
				serial =
					serial << 4 | (uint32_t)(c <= '9' ? c - '0' : c - 'a' + 10);
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
			    SECBIT_NO_SETUID_FIXUP_LOCKED | SECBIT_KEEP_CAPS_LOCKED |
			    SECBIT_NO_CAP_AMBIENT_RAISE | SECBIT_NO_CAP_AMBIENT_RAISE_LOCKED;
	(void)scene, (void)probe;
	return claim(raw1(SYS_prctl, PR_GET_SECUREBITS) == wanted);
}

static int32_t capability_sets(const struct scene *scene, const struct probe *probe)
{
	struct __user_cap_header_struct header = {.version = _LINUX_CAPABILITY_VERSION_3};
	struct __user_cap_data_struct data[2] = {{0}, {0}};
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
	const uint64_t nothing[2] = {0, 0};
	const uint64_t wanted = scene->core_hard_max < 1 ? 0 : 1;
	uint64_t now[2] = {9, 9};
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
	.sin_addr = {0x0100007f}, /* 127.0.0.1 as it lies in memory */
};

/* call: number of the call, made on the socket from before the confinement. Nobody listens at port
 * 0. */
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

/* ---- the table ---- */

/* A name relative to the root of the world's tree, as arguments. */
#define AT(path) AT_FDCWD, (long)(path)
#define NAME(path) (long)(path)
#define UNIX_FLAGS (SOCK_CLOEXEC | SOCK_NONBLOCK)

/* Positional: name, claim, run, then `expected` where it is not 0. */
#define DENIED(id, what, ...)         \
	{                             \
		id, what, __VA_ARGS__ \
	}
#define STATE(id, what, ...)                               \
	{                                                  \
		id, what, .kind = PROBE_STATE, __VA_ARGS__ \
	}
#define WORKS(id, what, ...)                                  \
	{                                                     \
		id, what, .kind = PROBE_SURVIVES, __VA_ARGS__ \
	}
#define DOES(id, what, ...) WORKS(id, what, .run = call, .call = {__VA_ARGS__})
#define OUTSIDE(id, what, ...)                                  \
	{                                                       \
		id, what, call, EACCES, .call = { __VA_ARGS__ } \
	}
#define SEALED(id, error, ...)                                                \
	{                                                                     \
		"filter_" #id, "the filter itself answers " #id, call, error, \
			.flags = PROBE_SEALED, .call = {                      \
				__VA_ARGS__                                   \
			}                                                     \
	}
#define REFUSED(id) SEALED(id, EPERM, SYS_##id)
#define UNKNOWN(id, number) SEALED(id, ENOSYS, number)

/* clang-format off */
const struct probe sandbox_probes[] = {
	/* The state of the process. */
	STATE("own_session", "the child leads a session of its own", .run = session_leader),
	STATE("no_new_privs", "no_new_privs is set", .run = process_control,
	      .call = {PR_GET_NO_NEW_PRIVS, 1}),
	STATE("filter_mode", "a seccomp filter is in force", .run = process_control,
	      .call = {PR_GET_SECCOMP, 2}),
	STATE("capability_sets", "no capability is effective, permitted, inheritable or ambient",
	      .run = capability_sets),
	STATE("bounding_set", "the capability bounding set is empty", .run = bounding_set,
	      .flags = PROBE_SETPCAP),
	STATE("securebits", "securebits are set and locked: uid 0 has no power", .run = securebits,
	      .flags = PROBE_SETPCAP),
	STATE("core_limit", "RLIMIT_CORE is frozen at 1: no dump is piped to a host program",
	      .run = core_limit),
	DENIED("session_keyring", "keys of the session that was left cannot be seen",
	       find_planted_key, ENOKEY, .flags = PROBE_OUTER),

	/* Unix sockets: below Landlock ABI 9 the filter is the only wall. */
	DENIED("unix_stream", "a Unix stream socket to a path is refused",
	       make_and_connect, EPERM, .call = {AF_UNIX, SOCK_STREAM, PATH_STREAM}),
	DENIED("unix_stream_flags", "a Unix stream socket with flags in its type is refused",
	       make_and_connect, EPERM, .call = {AF_UNIX, SOCK_STREAM | UNIX_FLAGS, PATH_STREAM}),
	DENIED("unix_stream_abstract", "a Unix stream socket to an abstract name is refused",
	       make_and_connect, EPERM, .call = {AF_UNIX, SOCK_STREAM, ABSTRACT_STREAM}),
	DENIED("unix_datagram", "a Unix datagram socket to a path is refused",
	       make_and_connect, EPERM, .call = {AF_UNIX, SOCK_DGRAM, PATH_DATAGRAM}),
	DENIED("unix_datagram_abstract", "a Unix datagram socket to an abstract name is refused",
	       make_and_connect, EPERM, .call = {AF_UNIX, SOCK_DGRAM, ABSTRACT_DATAGRAM}),
	DENIED("unix_seqpacket", "a Unix seqpacket socket is refused",
	       make_and_connect, EPERM, .call = {AF_UNIX, SOCK_SEQPACKET, PATH_SEQPACKET}),
	DENIED("unix_raw", "a Unix raw socket, which is a datagram socket, is refused",
	       make_and_connect, EPERM, .call = {AF_UNIX, SOCK_RAW, PATH_DATAGRAM}),
	DENIED("unix_protocol", "a Unix socket with its protocol spelled out is refused",
	       call, EPERM, .call = {SYS_socket, AF_UNIX, SOCK_STREAM, PF_UNIX}),
	DENIED("unix_dirty_family", "bits above 32 in the family hide nothing",
	       make_and_connect, EPERM, .call = {AF_UNIX | DIRTY, SOCK_STREAM, PATH_STREAM}),
	DENIED("unix_sign_garbage", "a sign-extended family hides nothing",
	       make_and_connect, EPERM, .call = {AF_UNIX | SIGN_GARBAGE, SOCK_STREAM, PATH_STREAM}),
	DENIED("pair_datagram_connect", "no datagram pair can be connected anew",
	       aim_pair, EPROTONOSUPPORT, .call = {AF_UNIX, SOCK_DGRAM, PATH_DATAGRAM, SYS_connect}),
	DENIED("pair_datagram_sendto", "no datagram pair can send elsewhere",
	       aim_pair, EPROTONOSUPPORT,
	       .call = {AF_UNIX, SOCK_DGRAM, ABSTRACT_DATAGRAM, SYS_sendto}),
	DENIED("pair_datagram_sendmsg", "no datagram pair can send a message elsewhere",
	       aim_pair, EPROTONOSUPPORT,
	       .call = {AF_UNIX, SOCK_DGRAM | UNIX_FLAGS, PATH_DATAGRAM, SYS_sendmsg}),
	DENIED("pair_raw", "a raw pair, which is a datagram pair, is refused",
	       aim_pair, EPROTONOSUPPORT, .call = {AF_UNIX, SOCK_RAW, PATH_DATAGRAM, SYS_connect}),
	DENIED("pair_dirty", "bits above 32 hide no datagram pair",
	       aim_pair, EPROTONOSUPPORT,
	       .call = {AF_UNIX | DIRTY, SOCK_DGRAM | DIRTY, PATH_DATAGRAM, SYS_connect}),
	DENIED("pair_sign_garbage", "sign extension hides no datagram pair",
	       aim_pair, EPROTONOSUPPORT,
	       .call = {AF_UNIX | SIGN_GARBAGE, SOCK_DGRAM | SIGN_GARBAGE, PATH_DATAGRAM,
			SYS_connect}),
	DENIED("scope_abstract_stream", "a stream socket from before reaches no abstract name",
	       connect_held, EPERM, .abi = 6, .call = {SOCK_STREAM, ABSTRACT_STREAM}),
	DENIED("scope_abstract_datagram", "a datagram socket from before reaches no abstract name",
	       connect_held, EPERM, .abi = 6, .call = {SOCK_DGRAM, ABSTRACT_DATAGRAM}),
	DENIED("resolve_unix", "a socket from before reaches no path outside",
	       connect_held, EACCES, .abi = 9, .call = {SOCK_DGRAM, PATH_DATAGRAM}),

	/* Other doors to the same calls. A kernel without x32 answers ENOSYS to it. */
	DENIED("x32_socket", "socket by its x32 number is refused",
	       call, EPERM, .call = {X32 | SYS_socket, AF_UNIX, SOCK_STREAM, 0}),
	DENIED("x32_getpid", "any other x32 number is refused",
	       call, EPERM, .call = {X32 | SYS_getpid}),
	DENIED("x32_execve", "the numbers that only x32 has are refused",
	       call, EPERM, .call = {X32 | 520, 0, 0, 0}),
	DENIED("int80_socket", "socket by int 0x80 ends the process", call32, -SIGSYS,
	       .flags = PROBE_APART | PROBE_ENTRY32,
	       .call = {NR32_SOCKET, AF_UNIX, SOCK_STREAM, 0}),
	DENIED("int80_socketcall", "socketcall by int 0x80 ends the process", socketcall32, -SIGSYS,
	       .flags = PROBE_APART | PROBE_ENTRY32, .call = {NR32_SOCKETCALL}),
	DENIED("int80_getpid", "any call by int 0x80 ends the process", call32, -SIGSYS,
	       .flags = PROBE_APART | PROBE_ENTRY32, .call = {NR32_GETPID}),
	DENIED("io_uring_setup", "there are no rings, which open sockets unseen by the filter",
	       call, ENOSYS, .flags = PROBE_OUTER, .call = {SYS_io_uring_setup, 1, 0}),
	DENIED("clone3_into_cgroup", "there is no clone3, which can leave a cgroup",
	       clone_into_cgroup, ENOSYS, .flags = PROBE_OUTER),

	/* Processes, namespaces and terminals outside. */
	DENIED("trace_outside", "a process outside cannot be traced",
	       trace_host, EPERM, .flags = PROBE_APART | PROBE_OUTER),
	DENIED("read_outside_memory", "the memory of a process outside cannot be read",
	       read_host, EPERM, .flags = PROBE_OUTER),
	DENIED("signal_outside", "a process outside cannot be signalled",
	       signal_host, EPERM, .abi = 6),
	DENIED("new_user_namespace", "no user namespace can be made",
	       call, EPERM, .flags = PROBE_APART | PROBE_OUTER, .call = {SYS_unshare, CLONE_NEWUSER}),
	DENIED("terminal_input", "nothing can be typed into a terminal",
	       push_input, EPERM, .call = {TIOCSTI}),
	DENIED("terminal_input_dirty", "bits above 32 in the request hide nothing",
	       push_input, EPERM, .call = {TIOCSTI | DIRTY}),

	/* Files. EXDEV instead of EACCES where only the right to move between directories is missing. */
	OUTSIDE("read_outside", "no file outside can be read",
		SYS_openat, AT("outside/file"), O_RDONLY),
	OUTSIDE("write_outside", "no file outside can be written",
		SYS_openat, AT("outside/file"), O_WRONLY),
	OUTSIDE("create_outside", "no file can be created outside",
		SYS_openat, AT("outside/new"), O_WRONLY | O_CREAT, 0600),
	OUTSIDE("list_outside", "no directory outside can be listed",
		SYS_openat, AT("outside"), O_RDONLY | O_DIRECTORY),
	OUTSIDE("truncate_outside", "no file outside can be truncated",
		SYS_truncate, NAME("outside/file"), 0),
	DENIED("execute_outside", "no program outside can be executed", execute, EACCES,
	       .flags = PROBE_APART | PROBE_OUTER, .call = {NAME("outside/program")}),
	OUTSIDE("make_file_outside", "no file can be made outside by mknod",
		SYS_mknodat, AT("outside/reg"), S_IFREG | 0600, 0),
	OUTSIDE("make_directory_outside", "no directory can be made outside",
		SYS_mkdirat, AT("outside/dir"), 0700),
	OUTSIDE("make_symlink_outside", "no symlink can be made outside",
		SYS_symlinkat, NAME("file"), AT("outside/symlink")),
	OUTSIDE("make_fifo_outside", "no fifo can be made outside",
		SYS_mknodat, AT("outside/fifo"), S_IFIFO | 0600, 0),
	OUTSIDE("make_socket_outside", "no socket node can be made outside",
		SYS_mknodat, AT("outside/socket"), S_IFSOCK | 0600, 0),
	OUTSIDE("unlink_outside", "no file outside can be removed",
		SYS_unlinkat, AT("outside/doomed"), 0),
	OUTSIDE("rmdir_outside", "no directory outside can be removed",
		SYS_unlinkat, AT("outside/directory"), AT_REMOVEDIR),
	OUTSIDE("rename_outwards", "no file can be renamed out",
		SYS_renameat, AT("inside/leaving"), AT("outside/left")),
	OUTSIDE("rename_inwards", "no file can be renamed in",
		SYS_renameat, AT("outside/program"), AT("inside/in")),
	OUTSIDE("link_outwards", "no file can be linked out",
		SYS_linkat, AT("inside/file"), AT("outside/link"), 0),
	DENIED("link_inwards", "no file can be linked in", call, EXDEV,
	       .call = {SYS_linkat, AT("outside/file"), AT("inside/link"), 0}),
	DENIED("link_readonly", "no file of a read-only root can be linked into a writable one",
	       call, EXDEV, .call = {SYS_linkat, AT("readonly/file"), AT("inside/rolink"), 0}),
	OUTSIDE("write_readonly", "no file of a read-only root can be written",
		SYS_openat, AT("readonly/file"), O_WRONLY),
	OUTSIDE("truncate_readonly", "no file of a read-only root can be truncated",
		SYS_truncate, NAME("readonly/file"), 0),
	DENIED("execute_readonly", "no program of a root without exec can be executed",
	       execute, EACCES, .flags = PROBE_APART | PROBE_OUTER,
	       .call = {NAME("readonly/program")}),
	/* 1:3 is /dev/null; 0:0 is a whiteout, which 6.12.117 allows wherever a file may be made. */
	OUTSIDE("make_char_inside", "no character device can be made, even in a writable root",
		SYS_mknodat, AT("inside/char"), S_IFCHR | 0600, 0x103),
	OUTSIDE("make_block_inside", "no block device can be made, even in a writable root",
		SYS_mknodat, AT("inside/block"), S_IFBLK | 0600, 0),
	DENIED("device_ioctl", "a device granted for reading takes no ioctl",
	       device_ioctl, EACCES, .abi = 5, .call = {NAME("/dev/null"), TCGETS}),

	/* With the network off. */
	DENIED("offline_inet", "offline, an IPv4 socket is refused", call, EPERM,
	       .flags = PROBE_OFFLINE, .call = {SYS_socket, AF_INET, SOCK_STREAM, 0}),
	DENIED("offline_inet6", "offline, an IPv6 socket is refused", call, EPERM,
	       .flags = PROBE_OFFLINE, .call = {SYS_socket, AF_INET6, SOCK_DGRAM, 0}),
	DENIED("offline_connect", "offline, a TCP socket from before cannot connect",
	       use_held_inet, EACCES, .flags = PROBE_OFFLINE, .abi = 4, .call = {SYS_connect}),
	DENIED("offline_bind", "offline, a TCP socket from before cannot bind",
	       use_held_inet, EACCES, .flags = PROBE_OFFLINE, .abi = 4, .call = {SYS_bind}),

	/* What must go on working. */
	DOES("inet_stream", "TCP over IPv4 works", SYS_socket, AF_INET, SOCK_STREAM, IPPROTO_TCP),
	DOES("inet_datagram", "UDP over IPv4 works", SYS_socket, AF_INET, SOCK_DGRAM, 0),
	DOES("inet6_stream", "TCP over IPv6 works", SYS_socket, AF_INET6, SOCK_STREAM, 0),
	DOES("inet6_datagram", "UDP over IPv6 works",
	     SYS_socket, AF_INET6, SOCK_DGRAM, IPPROTO_UDP),
	DOES("netlink_route", "interfaces and routes can be asked for",
	     SYS_socket, AF_NETLINK, SOCK_RAW, NETLINK_ROUTE),
	WORKS("resolver", "the resolver's configuration and its socket work", .run = resolver),
	WORKS("pair_stream", "stream pairs work", .run = make_pair,
	      .call = {SOCK_STREAM | SOCK_CLOEXEC}),
	WORKS("pair_seqpacket", "seqpacket pairs work", .run = make_pair, .call = {SOCK_SEQPACKET}),
	WORKS("pipe", "pipes work", .run = pipe_through),
	WORKS("fork", "fork and wait work", .run = fork_and_wait),
	WORKS("signal_child", "an own child can be signalled", .run = signal_child),
	WORKS("trace_me", "an own child can be traced", .run = call, .flags = PROBE_APART,
	      .call = {SYS_ptrace, PTRACE_TRACEME, 0, 0, 0}),
	WORKS("thread", "threads work", .run = thread),
	WORKS("execute", "a program of an executable root runs", .run = execute,
	      .flags = PROBE_APART, .call = {NAME("programs/program")}),
	WORKS("number_minus_one", "the number by which a tracer skips a call gets through",
	      .run = call, .expected = ENOSYS, .call = {-1}),
	DOES("personality", "the personality can be asked for", SYS_personality, 0xffffffff),
	DOES("read_readonly", "a read-only root can be read",
	     SYS_openat, AT("readonly/file"), O_RDONLY),
	DOES("list_readonly", "a read-only root can be listed",
	     SYS_openat, AT("readonly"), O_RDONLY | O_DIRECTORY),
	DOES("create", "a file can be created inside",
	     SYS_openat, AT("inside/new"), O_RDWR | O_CREAT | O_EXCL, 0600),
	DOES("truncate", "it can be truncated", SYS_truncate, NAME("inside/new"), 0),
	DOES("rename", "it can be renamed", SYS_renameat, AT("inside/new"), AT("inside/renamed")),
	DOES("unlink", "it can be removed", SYS_unlinkat, AT("inside/renamed"), 0),
	DOES("rename_across", "a file can be renamed across directories inside",
	     SYS_renameat, AT("inside/one/moving"), AT("inside/two/moved")),
	DOES("link_across", "a file can be linked across directories inside",
	     SYS_linkat, AT("inside/file"), AT("inside/two/linked"), 0),
	DOES("make_directory", "a directory can be made inside",
	     SYS_mkdirat, AT("inside/directory"), 0700),
	DOES("rmdir", "it can be removed", SYS_unlinkat, AT("inside/directory"), AT_REMOVEDIR),
	DOES("make_symlink", "a symlink can be made inside",
	     SYS_symlinkat, NAME("file"), AT("inside/symlink")),
	DOES("make_fifo", "a fifo can be made inside",
	     SYS_mknodat, AT("inside/fifo"), S_IFIFO | 0600, 0),
	DOES("make_socket", "a socket node can be made inside",
	     SYS_mknodat, AT("inside/socket"), S_IFSOCK | 0600, 0),

	/* The filter's own answers, every row of its table. The low words decide. */
	UNKNOWN(unassigned_first, 337),
	UNKNOWN(unassigned_last, 423),
	UNKNOWN(unjudged_first, 471),
	UNKNOWN(unjudged_last, X32 - 1),
	SEALED(x32_first, EPERM, X32),
	SEALED(x32_last, EPERM, 0xfffffffe),
	SEALED(socket_unspec, EAFNOSUPPORT, SYS_socket, AF_UNSPEC, SOCK_STREAM, 0),
	SEALED(socket_alg, EAFNOSUPPORT, SYS_socket, AF_ALG, SOCK_SEQPACKET, 0),
	SEALED(socket_packet, EAFNOSUPPORT, SYS_socket, AF_PACKET, SOCK_RAW, 0),
	SEALED(socket_vsock, EAFNOSUPPORT, SYS_socket, AF_VSOCK, SOCK_STREAM, 0),
	SEALED(socket_netlink_diag, EPROTONOSUPPORT,
	       SYS_socket, AF_NETLINK, SOCK_RAW, NETLINK_SOCK_DIAG),
	SEALED(socket_netlink_xfrm, EPROTONOSUPPORT, SYS_socket, AF_NETLINK, SOCK_RAW, NETLINK_XFRM),
	SEALED(socket_mptcp, EPROTONOSUPPORT, SYS_socket, AF_INET, SOCK_STREAM, IPPROTO_MPTCP),
	SEALED(socket_sctp, EPROTONOSUPPORT, SYS_socket, AF_INET6, SOCK_STREAM, IPPROTO_SCTP),
	SEALED(socket_inet_raw, EPERM, SYS_socket, AF_INET, SOCK_RAW, IPPROTO_ICMP),
	SEALED(socket_inet_seqpacket, EPERM, SYS_socket, AF_INET, SOCK_SEQPACKET, 0),
	SEALED(socket_inet_packet, EPERM, SYS_socket, AF_INET, SOCK_PACKET, 0),
	SEALED(socketpair_tipc, EAFNOSUPPORT, SYS_socketpair, AF_TIPC, SOCK_STREAM, 0),
	SEALED(socketpair_datagram, EPROTONOSUPPORT, SYS_socketpair, AF_UNIX, SOCK_DGRAM, 0),
	UNKNOWN(io_uring_setup, SYS_io_uring_setup),
	UNKNOWN(io_uring_enter, SYS_io_uring_enter),
	UNKNOWN(io_uring_register, SYS_io_uring_register),
	UNKNOWN(clone3, NR_clone3),
	SEALED(clone_newns, EPERM, SYS_clone, CLONE_NEWNS | SIGCHLD),
	SEALED(clone_newcgroup, EPERM, SYS_clone, CLONE_NEWCGROUP | SIGCHLD),
	SEALED(clone_newuts, EPERM, SYS_clone, CLONE_NEWUTS | SIGCHLD),
	SEALED(clone_newipc, EPERM, SYS_clone, CLONE_NEWIPC | SIGCHLD),
	SEALED(clone_newuser, EPERM, SYS_clone, CLONE_NEWUSER | SIGCHLD),
	SEALED(clone_newpid, EPERM, SYS_clone, CLONE_NEWPID | SIGCHLD),
	SEALED(clone_newnet, EPERM, SYS_clone, CLONE_NEWNET | SIGCHLD),
	SEALED(clone_parent, EPERM, SYS_clone, CLONE_PARENT | SIGCHLD),
	SEALED(unshare_newns, EPERM, SYS_unshare, CLONE_NEWNS),
	SEALED(unshare_newtime, EPERM, SYS_unshare, CLONE_NEWTIME),
	SEALED(unshare_beyond, EPERM, SYS_unshare, DIRTY),
	REFUSED(setns),
	REFUSED(mount), REFUSED(umount2), REFUSED(pivot_root), REFUSED(chroot),
	SEALED(open_tree, EPERM, 428), SEALED(move_mount, EPERM, 429), SEALED(fsopen, EPERM, 430),
	SEALED(fsconfig, EPERM, 431), SEALED(fsmount, EPERM, 432), SEALED(fspick, EPERM, 433),
	SEALED(mount_setattr, EPERM, 442),
	UNKNOWN(statmount, 457), UNKNOWN(listmount, 458), UNKNOWN(open_tree_attr, 467),
	UNKNOWN(listns, 470),
	REFUSED(name_to_handle_at), REFUSED(open_by_handle_at),
	REFUSED(fanotify_init), REFUSED(fanotify_mark),
	UNKNOWN(setxattrat, 463), UNKNOWN(getxattrat, 464), UNKNOWN(listxattrat, 465),
	UNKNOWN(removexattrat, 466), UNKNOWN(file_getattr, 468), UNKNOWN(file_setattr, 469),
	UNKNOWN(lsm_get_self_attr, 459), UNKNOWN(lsm_set_self_attr, 460),
	UNKNOWN(lsm_list_modules, 461),
	REFUSED(quotactl), SEALED(quotactl_fd, EPERM, 443), REFUSED(acct),
	REFUSED(swapon), REFUSED(swapoff),
	REFUSED(create_module), REFUSED(init_module), REFUSED(delete_module),
	REFUSED(get_kernel_syms), REFUSED(query_module), REFUSED(finit_module),
	REFUSED(reboot), REFUSED(kexec_load), SEALED(kexec_file_load, EPERM, 320),
	REFUSED(sethostname), REFUSED(setdomainname),
	REFUSED(settimeofday), REFUSED(adjtimex), REFUSED(clock_settime), REFUSED(clock_adjtime),
	REFUSED(syslog), REFUSED(vhangup),
	REFUSED(iopl), REFUSED(ioperm), REFUSED(modify_ldt),
	REFUSED(bpf), REFUSED(perf_event_open), REFUSED(userfaultfd),
	UNKNOWN(memfd_secret, 447),
	REFUSED(add_key), REFUSED(request_key), REFUSED(keyctl),
	REFUSED(migrate_pages), REFUSED(move_pages), REFUSED(kcmp), REFUSED(pidfd_getfd),
	REFUSED(process_madvise), SEALED(process_mrelease, EPERM, 448),
	REFUSED(uselib), REFUSED(ustat), REFUSED(sysfs), REFUSED(_sysctl), REFUSED(nfsservctl),
	REFUSED(getpmsg), REFUSED(putpmsg), REFUSED(afs_syscall), REFUSED(tuxcall),
	REFUSED(security), REFUSED(lookup_dcookie), REFUSED(vserver),
	SEALED(tiocsti, EPERM, SYS_ioctl, -1, TIOCSTI),
	SEALED(tioclinux, EPERM, SYS_ioctl, -1, TIOCLINUX),
	SEALED(tioccons, EPERM, SYS_ioctl, -1, TIOCCONS),
	SEALED(tiocsetd, EPERM, SYS_ioctl, -1, TIOCSETD | DIRTY),
	SEALED(ioctl_setflags, EPERM, SYS_ioctl, -1, FS_IOC_SETFLAGS),
	SEALED(ioctl_fssetxattr, EPERM, SYS_ioctl, -1, FS_IOC_FSSETXATTR),
	SEALED(ioctl_setversion, EPERM, SYS_ioctl, -1, FS_IOC_SETVERSION),
	SEALED(ioctl_enable_verity, EPERM, SYS_ioctl, -1, FS_IOC_ENABLE_VERITY),
	SEALED(ioctl_encryption, EPERM, SYS_ioctl, -1, FS_IOC_SET_ENCRYPTION_POLICY),
	SEALED(ioctl_add_key, EPERM, SYS_ioctl, -1, FS_IOC_ADD_ENCRYPTION_KEY),
	SEALED(ioctl_remove_key, EPERM, SYS_ioctl, -1, FS_IOC_REMOVE_ENCRYPTION_KEY),
	SEALED(ioctl_remove_key_all, EPERM, SYS_ioctl, -1, FS_IOC_REMOVE_ENCRYPTION_KEY_ALL_USERS),
	SEALED(tiocexcl, EPERM, SYS_ioctl, -1, TIOCEXCL),
	SEALED(ioctl_subvolume, EPERM, SYS_ioctl, -1, BTRFS_IOC_SUBVOL_CREATE),
	SEALED(fcntl_setlease, EPERM, SYS_fcntl, -1, F_SETLEASE),
	SEALED(fcntl_notify, EPERM, SYS_fcntl, -1, F_NOTIFY),
	SEALED(personality_exec, EPERM, SYS_personality, READ_IMPLIES_EXEC),
	REFUSED(shmget), REFUSED(shmat), REFUSED(shmctl),
	REFUSED(semget), REFUSED(semop), REFUSED(semctl), REFUSED(semtimedop),
	REFUSED(msgget), REFUSED(msgsnd), REFUSED(msgrcv), REFUSED(msgctl),
	REFUSED(mq_open), REFUSED(mq_unlink), REFUSED(mq_timedsend), REFUSED(mq_timedreceive),
	REFUSED(mq_notify), REFUSED(mq_getsetattr),
	SEALED(prlimit_other, EPERM, SYS_prlimit64, 1, RLIMIT_NOFILE),
	SEALED(setpriority_other, EPERM, SYS_setpriority, PRIO_PROCESS, 1),
	SEALED(setpriority_user, EPERM, SYS_setpriority, PRIO_USER, 0),
	SEALED(ioprio_other, EPERM, SYS_ioprio_set, IOPRIO_WHO_PROCESS, 1),
	SEALED(ioprio_user, EPERM, SYS_ioprio_set, IOPRIO_WHO_USER, 0),
	SEALED(sched_setparam, EPERM, SYS_sched_setparam, 1),
	SEALED(sched_setscheduler, EPERM, SYS_sched_setscheduler, 1),
	SEALED(sched_setattr, EPERM, SYS_sched_setattr, 1),
	SEALED(core_prlimit, 0, SYS_prlimit64, 0, RLIMIT_CORE, 1),
	SEALED(core_setrlimit, 0, SYS_setrlimit, RLIMIT_CORE),
};
/* clang-format on */
const size_t sandbox_probe_count = sizeof sandbox_probes / sizeof *sandbox_probes;
