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
#include <linux/fs.h>
#include <linux/futex.h>
#include <linux/netlink.h>
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
	const uint32_t arguments[3] = { AF_UNIX, SOCK_STREAM, 0 };
	long page = raw6(SYS_mmap, 0, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_32BIT, -1, 0);
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
	struct clone_args args = { .flags = KERNEL_CLONE_INTO_CGROUP, .exit_signal = SIGCHLD, .cgroup = INT32_MAX };
	(void)scene, (void)probe;
	return errno_of(raw2(NR_clone3, (long)&args, sizeof args));
}

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

/* ---- the table ---- */

/* A path relative to the world's root, as an argument. */
#define AT(path) AT_FDCWD, (long)(path)
#define UNIX_FLAGS (SOCK_CLOEXEC | SOCK_NONBLOCK)

/* A call that only the filter may refuse, and that must not be made for real. */
#define SEALED(id, error, ...)                                                                     \
	{                                                                                          \
		.name = "filter_" #id, .claim = "the filter itself answers " #id, .run = call,     \
		.expected = error, .flags = PROBE_SEALED | PROBE_OUTER, .call = { __VA_ARGS__ }    \
	}
#define REFUSED(id) SEALED(id, EPERM, SYS_##id)

const struct probe sandbox_probes[] = {
	/* The state of the process. */
	{ "own_session", "the child leads a session of its own", session_leader, .kind = PROBE_STATE },
	{ "no_new_privs", "no_new_privs is set", process_control, .kind = PROBE_STATE,
	  .call = { PR_GET_NO_NEW_PRIVS, 1 } },
	{ "filter_mode", "a seccomp filter is in force", process_control, .kind = PROBE_STATE,
	  .call = { PR_GET_SECCOMP, 2 } },
	{ "capability_sets", "no capability is effective, permitted, inheritable or ambient",
	  capability_sets, .kind = PROBE_STATE },
	{ "bounding_set", "the capability bounding set is empty", bounding_set, .kind = PROBE_STATE,
	  .flags = PROBE_SETPCAP },
	{ "securebits", "securebits are set and locked: uid 0 means nothing", securebits,
	  .kind = PROBE_STATE, .flags = PROBE_SETPCAP },
	{ "core_limit", "RLIMIT_CORE is 1 and stays: no dump goes to a handler", core_limit,
	  .kind = PROBE_STATE },
	{ "session_keyring", "keys of the caller's session keyring are out of reach", find_planted_key,
	  ENOKEY, .flags = PROBE_OUTER },

	/* Unix sockets: the one wall below Landlock ABI 9. */
	{ "unix_stream", "no Unix stream socket to a path", make_and_connect, EPERM,
	  .call = { AF_UNIX, SOCK_STREAM, PATH_STREAM } },
	{ "unix_stream_flags", "flags in the type do not hide it", make_and_connect, EPERM,
	  .call = { AF_UNIX, SOCK_STREAM | UNIX_FLAGS, PATH_STREAM } },
	{ "unix_stream_abstract", "no Unix stream socket to an abstract name", make_and_connect, EPERM,
	  .call = { AF_UNIX, SOCK_STREAM, ABSTRACT_STREAM } },
	{ "unix_datagram", "no Unix datagram socket to a path", make_and_connect, EPERM,
	  .call = { AF_UNIX, SOCK_DGRAM, PATH_DATAGRAM } },
	{ "unix_datagram_abstract", "no Unix datagram socket to an abstract name", make_and_connect, EPERM,
	  .call = { AF_UNIX, SOCK_DGRAM, ABSTRACT_DATAGRAM } },
	{ "unix_seqpacket", "no Unix seqpacket socket to a path", make_and_connect, EPERM,
	  .call = { AF_UNIX, SOCK_SEQPACKET, PATH_SEQPACKET } },
	{ "unix_raw", "no Unix raw socket, which is a datagram socket", make_and_connect, EPERM,
	  .call = { AF_UNIX, SOCK_RAW, PATH_DATAGRAM } },
	{ "unix_protocol", "protocol 1 is another spelling of 0", call, EPERM,
	  .call = { SYS_socket, AF_UNIX, SOCK_STREAM, PF_UNIX } },
	{ "unix_dirty_family", "bits above 32 in the family do not hide it", make_and_connect, EPERM,
	  .call = { AF_UNIX | DIRTY, SOCK_STREAM, PATH_STREAM } },
	{ "unix_sign_garbage", "a sign-extended family does not hide it", make_and_connect, EPERM,
	  .call = { AF_UNIX | SIGN_GARBAGE, SOCK_STREAM, PATH_STREAM } },
	{ "pair_datagram_connect", "no datagram pair to connect anew", aim_pair, EPROTONOSUPPORT,
	  .call = { AF_UNIX, SOCK_DGRAM, PATH_DATAGRAM, SYS_connect } },
	{ "pair_datagram_sendto", "no datagram pair to send elsewhere", aim_pair, EPROTONOSUPPORT,
	  .call = { AF_UNIX, SOCK_DGRAM, ABSTRACT_DATAGRAM, SYS_sendto } },
	{ "pair_datagram_sendmsg", "no datagram pair to send elsewhere by message", aim_pair,
	  EPROTONOSUPPORT, .call = { AF_UNIX, SOCK_DGRAM | UNIX_FLAGS, PATH_DATAGRAM, SYS_sendmsg } },
	{ "pair_raw", "no raw pair, which is a datagram pair", aim_pair, EPROTONOSUPPORT,
	  .call = { AF_UNIX, SOCK_RAW, PATH_DATAGRAM, SYS_connect } },
	{ "pair_dirty", "bits above 32 do not hide a datagram pair", aim_pair, EPROTONOSUPPORT,
	  .call = { AF_UNIX | DIRTY, SOCK_DGRAM | DIRTY, PATH_DATAGRAM, SYS_connect } },
	{ "pair_sign_garbage", "sign extension does not hide a datagram pair", aim_pair, EPROTONOSUPPORT,
	  .call = { AF_UNIX | SIGN_GARBAGE, SOCK_DGRAM | SIGN_GARBAGE, PATH_DATAGRAM, SYS_connect } },
	{ "scope_abstract_stream", "a stream socket made before cannot reach an abstract name", connect_held,
	  EPERM, .abi = 6, .call = { SOCK_STREAM, ABSTRACT_STREAM } },
	{ "scope_abstract_datagram", "a datagram socket made before cannot reach an abstract name",
	  connect_held, EPERM, .abi = 6, .call = { SOCK_DGRAM, ABSTRACT_DATAGRAM } },
	{ "resolve_unix", "a socket made before cannot reach a path outside", connect_held, EACCES, .abi = 9,
	  .call = { SOCK_DGRAM, PATH_DATAGRAM } },

	/* Other ways to the same calls. */
	{ "x32_socket", "socket by its x32 number is refused, not unknown", call, EPERM,
	  .call = { X32 | SYS_socket, AF_UNIX, SOCK_STREAM, 0 } },
	{ "x32_getpid", "any x32 number is refused", call, EPERM, .call = { X32 | SYS_getpid } },
	{ "x32_execve", "numbers only x32 has are refused", call, EPERM, .call = { X32 | 520, 0, 0, 0 } },
	{ "int80_socket", "socket by int 0x80 ends the process", call32, -SIGSYS,
	  .flags = PROBE_APART | PROBE_ENTRY32, .call = { NR32_SOCKET, AF_UNIX, SOCK_STREAM, 0 } },
	{ "int80_socketcall", "socketcall by int 0x80 ends the process", socketcall32, -SIGSYS,
	  .flags = PROBE_APART | PROBE_ENTRY32, .call = { NR32_SOCKETCALL } },
	{ "int80_getpid", "any call by int 0x80 ends the process", call32, -SIGSYS,
	  .flags = PROBE_APART | PROBE_ENTRY32, .call = { NR32_GETPID } },
	{ "number_minus_one", "the number a tracer skips a call with gets through", call, ENOSYS,
	  .kind = PROBE_SURVIVES, .call = { -1 } },
	{ "io_uring_setup", "no ring, which makes sockets unseen by the filter", call, ENOSYS,
	  .flags = PROBE_OUTER, .call = { SYS_io_uring_setup, 1, 0 } },
	{ "clone3_into_cgroup", "no clone3: its flags lie in memory, and it can enter a cgroup", clone_into_cgroup,
	  ENOSYS, .flags = PROBE_OUTER },

	/* The process outside. */
	{ "trace_outside", "no tracing of a process outside", trace_host, EPERM,
	  .flags = PROBE_APART | PROBE_OUTER },
	{ "read_outside_memory", "no reading of memory outside", read_host, EPERM, .flags = PROBE_OUTER },
	{ "signal_outside", "no signal to a process outside", signal_host, EPERM, .abi = 6 },
	{ "new_user_namespace", "no user namespace", call, EPERM, .flags = PROBE_APART | PROBE_OUTER,
	  .call = { SYS_unshare, CLONE_NEWUSER } },
	{ "terminal_input", "no input pushed into a terminal", push_input, EPERM, .call = { TIOCSTI } },
	{ "terminal_input_dirty", "bits above 32 do not hide it", push_input, EPERM,
	  .call = { TIOCSTI | DIRTY } },

	/* Files outside. */
	{ "read_outside", "no reading outside", call, EACCES, .call = { SYS_openat, AT("outside/file"), O_RDONLY } },
	{ "write_outside", "no writing outside", call, EACCES, .call = { SYS_openat, AT("outside/file"), O_WRONLY } },
	{ "create_outside", "no file made by open outside", call, EACCES,
	  .call = { SYS_openat, AT("outside/new"), O_WRONLY | O_CREAT, 0600 } },
	{ "list_outside", "no listing outside", call, EACCES, .call = { SYS_openat, AT("outside"), O_RDONLY | O_DIRECTORY } },
	{ "truncate_outside", "no truncating outside", call, EACCES, .call = { SYS_truncate, (long)"outside/file", 0 } },
	{ "execute_outside", "no program run outside", execute, EACCES, .flags = PROBE_APART | PROBE_OUTER,
	  .call = { (long)"outside/program" } },
	{ "make_file_outside", "no file made outside", call, EACCES, .call = { SYS_mknodat, AT("outside/reg"), S_IFREG | 0600, 0 } },
	{ "make_directory_outside", "no directory made outside", call, EACCES, .call = { SYS_mkdirat, AT("outside/dir"), 0700 } },
	{ "make_symlink_outside", "no symlink made outside", call, EACCES,
	  .call = { SYS_symlinkat, (long)"file", AT("outside/symlink") } },
	{ "make_fifo_outside", "no fifo made outside", call, EACCES, .call = { SYS_mknodat, AT("outside/fifo"), S_IFIFO | 0600, 0 } },
	{ "make_socket_outside", "no socket node made outside", call, EACCES,
	  .call = { SYS_mknodat, AT("outside/socket"), S_IFSOCK | 0600, 0 } },
	{ "unlink_outside", "no file removed outside", call, EACCES, .call = { SYS_unlinkat, AT("outside/doomed"), 0 } },
	{ "rmdir_outside", "no directory removed outside", call, EACCES,
	  .call = { SYS_unlinkat, AT("outside/directory"), AT_REMOVEDIR } },
	{ "rename_outwards", "nothing renamed out", call, EACCES, .call = { SYS_renameat, AT("inside/leaving"), AT("outside/left") } },
	{ "rename_inwards", "nothing renamed in", call, EACCES, .call = { SYS_renameat, AT("outside/program"), AT("inside/in") } },
	{ "link_outwards", "nothing linked out", call, EACCES, .call = { SYS_linkat, AT("inside/file"), AT("outside/link"), 0 } },
	{ "link_inwards", "nothing linked in", call, EXDEV, .call = { SYS_linkat, AT("outside/file"), AT("inside/link"), 0 } },
	{ "link_readonly", "nothing linked from a read-only root to a writable one", call, EXDEV,
	  .call = { SYS_linkat, AT("readonly/file"), AT("inside/rolink"), 0 } },
	{ "write_readonly", "no writing in a read-only root", call, EACCES, .call = { SYS_openat, AT("readonly/file"), O_WRONLY } },
	{ "truncate_readonly", "no truncating in a read-only root", call, EACCES, .call = { SYS_truncate, (long)"readonly/file", 0 } },
	{ "execute_readonly", "no program run in a root without exec", execute, EACCES,
	  .flags = PROBE_APART | PROBE_OUTER, .call = { (long)"readonly/program" } },
	{ "make_char_inside", "no character device even in a writable root", call, EACCES,
	  .call = { SYS_mknodat, AT("inside/char"), S_IFCHR | 0600, 0 } },
	{ "make_block_inside", "no block device even in a writable root", call, EACCES,
	  .call = { SYS_mknodat, AT("inside/block"), S_IFBLK | 0600, 0 } },
	{ "device_ioctl", "no ioctl on a device granted for reading only", device_ioctl, EACCES, .abi = 5,
	  .call = { (long)"/dev/null", TCGETS } },

	/* Offline. */
	{ "offline_inet", "offline, no IPv4 socket", call, EPERM, .flags = PROBE_OFFLINE,
	  .call = { SYS_socket, AF_INET, SOCK_STREAM, 0 } },
	{ "offline_inet6", "offline, no IPv6 socket", call, EPERM, .flags = PROBE_OFFLINE,
	  .call = { SYS_socket, AF_INET6, SOCK_DGRAM, 0 } },
	{ "offline_connect", "offline, a socket made before cannot connect", use_held_inet, EACCES,
	  .flags = PROBE_OFFLINE, .abi = 4, .call = { SYS_connect } },
	{ "offline_bind", "offline, a socket made before cannot bind", use_held_inet, EACCES,
	  .flags = PROBE_OFFLINE, .abi = 4, .call = { SYS_bind } },

	/* Every row of the filter, by the calls it refuses. */
	SEALED(unassigned_first, ENOSYS, 337), SEALED(unassigned_last, ENOSYS, 423),
	SEALED(unjudged_first, ENOSYS, 471), SEALED(unjudged_last, ENOSYS, X32 - 1),
	SEALED(x32_first, EPERM, X32), SEALED(x32_last, EPERM, 0xfffffffeL),
	SEALED(socket_unspec, EAFNOSUPPORT, SYS_socket, AF_UNSPEC, SOCK_STREAM, 0),
	SEALED(socket_alg, EAFNOSUPPORT, SYS_socket, AF_ALG, SOCK_SEQPACKET, 0),
	SEALED(socket_packet, EAFNOSUPPORT, SYS_socket, AF_PACKET, SOCK_RAW, 0),
	SEALED(socket_vsock, EAFNOSUPPORT, SYS_socket, AF_VSOCK, SOCK_STREAM, 0),
	SEALED(socket_netlink_diag, EPROTONOSUPPORT, SYS_socket, AF_NETLINK, SOCK_RAW, NETLINK_SOCK_DIAG),
	SEALED(socket_mptcp, EPROTONOSUPPORT, SYS_socket, AF_INET, SOCK_STREAM, IPPROTO_MPTCP),
	SEALED(socket_sctp, EPROTONOSUPPORT, SYS_socket, AF_INET6, SOCK_STREAM, IPPROTO_SCTP),
	SEALED(socket_inet_seqpacket, EPERM, SYS_socket, AF_INET, SOCK_SEQPACKET, 0),
	SEALED(socket_inet_packet, EPERM, SYS_socket, AF_INET, 10, 0),
	SEALED(socketpair_tipc, EAFNOSUPPORT, SYS_socketpair, AF_TIPC, SOCK_STREAM, 0),
	SEALED(socketpair_dgram, EPROTONOSUPPORT, SYS_socketpair, AF_UNIX, SOCK_DGRAM, 0),
	SEALED(io_uring_setup, ENOSYS, SYS_io_uring_setup), SEALED(io_uring_enter, ENOSYS, SYS_io_uring_enter),
	SEALED(io_uring_register, ENOSYS, SYS_io_uring_register), SEALED(clone3, ENOSYS, NR_clone3),
	SEALED(clone_newuser, EPERM, SYS_clone, CLONE_NEWUSER | SIGCHLD),
	SEALED(clone_newns, EPERM, SYS_clone, CLONE_NEWNS | SIGCHLD),
	SEALED(clone_parent, EPERM, SYS_clone, CLONE_PARENT | SIGCHLD),
	SEALED(unshare_newns, EPERM, SYS_unshare, CLONE_NEWNS),
	SEALED(unshare_newtime, EPERM, SYS_unshare, 0x80),
	SEALED(unshare_beyond, EPERM, SYS_unshare, DIRTY),
	REFUSED(setns), REFUSED(mount), REFUSED(umount2), REFUSED(pivot_root), REFUSED(chroot),
	SEALED(open_tree, EPERM, 428), SEALED(move_mount, EPERM, 429), SEALED(fsopen, EPERM, 430),
	SEALED(fsconfig, EPERM, 431), SEALED(fsmount, EPERM, 432), SEALED(fspick, EPERM, 433),
	SEALED(mount_setattr, EPERM, 442), SEALED(statmount, ENOSYS, 457), SEALED(listmount, ENOSYS, 458),
	SEALED(open_tree_attr, ENOSYS, 467), SEALED(listns, ENOSYS, 470),
	REFUSED(name_to_handle_at), REFUSED(open_by_handle_at), REFUSED(fanotify_init), REFUSED(fanotify_mark),
	SEALED(setxattrat, ENOSYS, 463), SEALED(getxattrat, ENOSYS, 464), SEALED(listxattrat, ENOSYS, 465),
	SEALED(removexattrat, ENOSYS, 466), SEALED(file_getattr, ENOSYS, 468), SEALED(file_setattr, ENOSYS, 469),
	SEALED(lsm_get_self_attr, ENOSYS, 459), SEALED(lsm_set_self_attr, ENOSYS, 460),
	SEALED(lsm_list_modules, ENOSYS, 461),
	REFUSED(quotactl), SEALED(quotactl_fd, EPERM, 443), REFUSED(acct), REFUSED(swapon), REFUSED(swapoff),
	REFUSED(init_module), REFUSED(finit_module), REFUSED(delete_module),
	REFUSED(reboot), REFUSED(kexec_load), SEALED(kexec_file_load, EPERM, 320),
	REFUSED(sethostname), REFUSED(setdomainname), REFUSED(settimeofday), REFUSED(adjtimex),
	REFUSED(clock_settime), REFUSED(clock_adjtime), REFUSED(syslog), REFUSED(vhangup),
	REFUSED(iopl), REFUSED(ioperm), REFUSED(modify_ldt), REFUSED(bpf), REFUSED(perf_event_open),
	REFUSED(userfaultfd), SEALED(memfd_secret, ENOSYS, 447),
	REFUSED(add_key), REFUSED(request_key), REFUSED(keyctl),
	REFUSED(migrate_pages), REFUSED(move_pages), REFUSED(kcmp), REFUSED(pidfd_getfd),
	REFUSED(process_madvise), SEALED(process_mrelease, EPERM, 448),
	REFUSED(uselib), REFUSED(ustat), REFUSED(sysfs), REFUSED(_sysctl), REFUSED(nfsservctl),
	REFUSED(lookup_dcookie), REFUSED(vserver),
	SEALED(tioclinux, EPERM, SYS_ioctl, -1, TIOCLINUX), SEALED(tioccons, EPERM, SYS_ioctl, -1, TIOCCONS),
	SEALED(tiocsetd, EPERM, SYS_ioctl, -1, TIOCSETD | DIRTY), SEALED(tiocsti, EPERM, SYS_ioctl, -1, TIOCSTI),
	SEALED(ioctl_setflags, EPERM, SYS_ioctl, -1, FS_IOC_SETFLAGS),
	SEALED(ioctl_fssetxattr, EPERM, SYS_ioctl, -1, FS_IOC_FSSETXATTR),
	SEALED(ioctl_subvolume, EPERM, SYS_ioctl, -1, _IOC(_IOC_WRITE, 0x94, 14, 4096)),
	SEALED(fcntl_setlease, EPERM, SYS_fcntl, -1, F_SETLEASE), SEALED(fcntl_notify, EPERM, SYS_fcntl, -1, F_NOTIFY),
	SEALED(personality_read_implies_exec, EPERM, SYS_personality, 0x0400000),
	REFUSED(shmget), REFUSED(shmat), REFUSED(shmctl), REFUSED(semget), REFUSED(semop), REFUSED(semctl),
	REFUSED(semtimedop), REFUSED(msgget), REFUSED(msgsnd), REFUSED(msgrcv), REFUSED(msgctl),
	REFUSED(mq_open), REFUSED(mq_unlink),
	SEALED(prlimit_other, EPERM, SYS_prlimit64, 1, RLIMIT_NOFILE), SEALED(setpriority_other, EPERM, SYS_setpriority, PRIO_PROCESS, 1),
	SEALED(setpriority_user, EPERM, SYS_setpriority, PRIO_USER, 0), SEALED(ioprio_other, EPERM, SYS_ioprio_set, 1, 1),
	SEALED(ioprio_user, EPERM, SYS_ioprio_set, 3, 0), SEALED(sched_setparam, EPERM, SYS_sched_setparam, 1),
	SEALED(sched_setscheduler, EPERM, SYS_sched_setscheduler, 1), SEALED(sched_setattr, EPERM, SYS_sched_setattr, 1),
	SEALED(core_prlimit, 0, SYS_prlimit64, 0, RLIMIT_CORE, 1), SEALED(core_setrlimit, 0, SYS_setrlimit, RLIMIT_CORE),

	/* What must go on working. */
#define SURVIVES(id, what, ...) { .name = id, .claim = what, .kind = PROBE_SURVIVES, __VA_ARGS__ }
	SURVIVES("inet_stream", "TCP over IPv4", .run = call, .call = { SYS_socket, AF_INET, SOCK_STREAM, IPPROTO_TCP }),
	SURVIVES("inet_datagram", "UDP over IPv4", .run = call, .call = { SYS_socket, AF_INET, SOCK_DGRAM, 0 }),
	SURVIVES("inet6_stream", "TCP over IPv6", .run = call, .call = { SYS_socket, AF_INET6, SOCK_STREAM, 0 }),
	SURVIVES("inet6_datagram", "UDP over IPv6", .run = call, .call = { SYS_socket, AF_INET6, SOCK_DGRAM, IPPROTO_UDP }),
	SURVIVES("netlink_route", "asking for interfaces", .run = call, .call = { SYS_socket, AF_NETLINK, SOCK_RAW, NETLINK_ROUTE }),
	SURVIVES("resolver", "the resolver's configuration and socket", .run = resolver),
	SURVIVES("pair_stream", "stream pairs", .run = make_pair, .call = { SOCK_STREAM | SOCK_CLOEXEC }),
	SURVIVES("pair_seqpacket", "seqpacket pairs", .run = make_pair, .call = { SOCK_SEQPACKET }),
	SURVIVES("pipe", "pipes", .run = pipe_through),
	SURVIVES("fork", "fork and wait", .run = fork_and_wait),
	SURVIVES("thread", "threads", .run = thread),
	SURVIVES("execute", "a program of an executable root", .run = execute, .flags = PROBE_APART,
		 .call = { (long)"programs/program" }),
	SURVIVES("read_readonly", "reading in a read-only root", .run = call, .call = { SYS_openat, AT("readonly/file"), O_RDONLY }),
	SURVIVES("list_readonly", "listing a read-only root", .run = call, .call = { SYS_openat, AT("readonly"), O_RDONLY | O_DIRECTORY }),
	SURVIVES("create", "making a file", .run = call, .call = { SYS_openat, AT("inside/new"), O_RDWR | O_CREAT | O_EXCL, 0600 }),
	SURVIVES("truncate", "truncating it", .run = call, .call = { SYS_truncate, (long)"inside/new", 0 }),
	SURVIVES("rename", "renaming it", .run = call, .call = { SYS_renameat, AT("inside/new"), AT("inside/renamed") }),
	SURVIVES("unlink", "removing it", .run = call, .call = { SYS_unlinkat, AT("inside/renamed"), 0 }),
	SURVIVES("rename_across", "renaming across directories", .run = call,
		 .call = { SYS_renameat, AT("inside/one/moving"), AT("inside/two/moved") }),
	SURVIVES("link_across", "linking across directories", .run = call,
		 .call = { SYS_linkat, AT("inside/file"), AT("inside/two/linked"), 0 }),
	SURVIVES("mkdir", "making a directory", .run = call, .call = { SYS_mkdirat, AT("inside/directory"), 0700 }),
	SURVIVES("rmdir", "removing it again", .run = call, .call = { SYS_unlinkat, AT("inside/directory"), AT_REMOVEDIR }),
	SURVIVES("make_symlink", "making a symlink", .run = call, .call = { SYS_symlinkat, (long)"file", AT("inside/symlink") }),
	SURVIVES("make_fifo", "making a fifo", .run = call, .call = { SYS_mknodat, AT("inside/fifo"), S_IFIFO | 0600, 0 }),
	SURVIVES("make_socket", "making a socket node", .run = call, .call = { SYS_mknodat, AT("inside/socket"), S_IFSOCK | 0600, 0 }),
};
const size_t sandbox_probe_count = sizeof sandbox_probes / sizeof *sandbox_probes;
