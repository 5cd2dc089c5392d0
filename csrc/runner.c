/* SPDX-License-Identifier: Apache-2.0
 *
 * The broker's supervisor: `confine --runner FD`, a small process that runs one confined command at
 * a time and owns everything about it: spawn, deadline, output, the end of the whole tree.  It is a
 * subreaper outside the command's Landlock domain.  Its broker's death is end of file on FD and
 * ends the run; its own death hands what is left to the broker, which is a subreaper too.
 *
 * Exit is two events, not one: the command ended, and its output was read to the end.  The tree is
 * killed between them, so a background child that holds the pipe delays nothing and loses nothing
 * it wrote before.
 */
#include <errno.h>
#include <fcntl.h>
#include <linux/keyctl.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "internal.h"
#include "runner.h"
#include "supervise.h"

#define DRAIN_LIMIT_MS                                                             \
	500 /* after the tree is dead; only a survivor can hold the pipe that long \
	     */
#define KILL_LIMIT_MS 2000
#define KILL_AGAIN_MS 100
#define REAP_AT_ONCE 64 /* then the deadline is looked at again */
#define BIG_PIPE_BYTES (1 << 20)
#define RUNNER_FAULT 70 /* EX_SOFTWARE: a broken request or a lost broker */

/* One captured stream: the first head_bytes, then a ring of the last tail_bytes. */
struct stream {
	int fd; /* -1: at its end */
	int widened;
	char *head, *tail;
	uint32_t head_capacity, tail_capacity, head_bytes;
	uint64_t total;
};

struct run {
	struct runner_request request;
	char *payload;
	int descriptors[RUNNER_MAX_DESCRIPTORS]; /* cwd, ruleset, cgroup; -1: none */
	struct sandbox_limit limits[RUNNER_MAX_LIMITS];
	const char **strings; /* path, argv… NULL, envp… NULL */
	const char *input;    /* what is left to write to the command's stdin */
	uint32_t input_bytes;
	int input_fd;
	struct stream streams[2];
	uint64_t started_ns, deadline_ms, kill_ms; /* 0: none */
	struct runner_reply reply;
	uint32_t kills; /* SIGKILLs sent to the command itself */
	int pidfd;      /* of the command */
	int more_dead;  /* the last reap may not have taken all */
	int leader_ended;
};

static int control, child_signals;
static struct supervise_tree tree = {.cgroup_fd = -1}; /* of the run that is on */
static struct sandbox_filter
	filters[4];   /* by SANDBOX_NET_NONE | SANDBOX_NAMESPACED, made when first needed */
static char *buffers; /* capture memory, kept between runs */
static size_t buffers_bytes;

static uint64_t now_ns(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000000ULL + (uint64_t)t.tv_nsec;
}

static uint64_t now_ms(void)
{
	return now_ns() / 1000000;
}

static __attribute__((noreturn)) void broker_gone(void)
{
	supervise_kill(&tree, KILL_LIMIT_MS);
	_exit(RUNNER_FAULT);
}

static void close_fd(int *fd)
{
	if (*fd >= 0)
		close(*fd);
	*fd = -1;
}

/* ---- requests ---- */

static void read_fully(char *into, size_t bytes)
{
	while (bytes) {
		ssize_t n = read(control, into, bytes);
		if (n < 0 && errno == EINTR)
			continue;
		if (n <= 0)
			broker_gone();
		into += n;
		bytes -= (size_t)n;
	}
}

/* The header and the descriptors that ride on it. */
static size_t receive_header(struct run *run)
{
	union {
		struct cmsghdr align;
		char space[CMSG_SPACE(RUNNER_MAX_DESCRIPTORS * sizeof(int))];
	} ancillary;
	struct iovec part = {&run->request, sizeof run->request};
	struct msghdr message = {.msg_iov = &part,
				 .msg_iovlen = 1,
				 .msg_control = &ancillary,
				 .msg_controllen = sizeof ancillary};
	ssize_t n;
	while ((n = recvmsg(control, &message, MSG_CMSG_CLOEXEC)) < 0 && errno == EINTR)
		;
	if (n <= 0)
		_exit(0); /* the broker closed an idle runner */
	read_fully((char *)&run->request + n, sizeof run->request - (size_t)n);
	struct cmsghdr *header = CMSG_FIRSTHDR(&message);
	if (!header || header->cmsg_type != SCM_RIGHTS || (message.msg_flags & MSG_CTRUNC))
		return 0;
	size_t n_descriptors = (header->cmsg_len - CMSG_LEN(0)) / sizeof(int);
	if (n_descriptors > RUNNER_MAX_DESCRIPTORS)
		_exit(RUNNER_FAULT);
	memcpy(run->descriptors, CMSG_DATA(header), n_descriptors * sizeof(int));
	return n_descriptors;
}

/* cwd, ruleset and cgroup come in a row; put each in its place. */
static int place_descriptors(struct run *run, size_t n)
{
	int confined = !(run->request.flags & SANDBOX_UNCONFINED),
	    cgroup = run->request.has_cgroup != 0;
	if (n != (size_t)(1 + confined + cgroup))
		return -EINVAL;
	if (cgroup && !confined) {
		run->descriptors[2] = run->descriptors[1];
		run->descriptors[1] = -1;
	}
	return 0;
}

/* Cuts one NUL-terminated string off the payload. */
static const char *next_string(char **cursor, const char *end)
{
	char *string = *cursor, *nul = memchr(string, 0, (size_t)(end - string));
	if (!nul)
		return NULL;
	*cursor = nul + 1;
	return string;
}

static int take_strings(struct run *run, char **cursor, const char *end)
{
	const struct runner_request *q = &run->request;
	const uint32_t n = 1 + q->n_argv + 1 + q->n_envp + 1;
	run->strings = calloc(n, sizeof *run->strings);
	if (!run->strings)
		return -ENOMEM;
	for (uint32_t i = 0; i < n; i++) {
		if (i == 1 + q->n_argv || i == n - 1)
			continue; /* the NULL that ends argv or envp */
		if (!(run->strings[i] = next_string(cursor, end)))
			return -EINVAL;
	}
	return 0;
}

static int parse_payload(struct run *run)
{
	const struct runner_request *q = &run->request;
	char *cursor = run->payload;
	const char *end = run->payload + q->payload_bytes;
	const size_t limits_bytes = q->n_limits * 3 * sizeof(uint64_t);
	if (limits_bytes + q->stdin_bytes > q->payload_bytes)
		return -EINVAL;
	for (uint32_t i = 0; i < q->n_limits; i++) {
		uint64_t row[3];
		memcpy(row, cursor, sizeof row);
		cursor += sizeof row;
		run->limits[i] = (struct sandbox_limit){(uint32_t)row[0], row[1], row[2]};
	}
	int error = take_strings(run, &cursor, end - q->stdin_bytes);
	run->input = end - q->stdin_bytes;
	run->input_bytes = q->stdin_bytes;
	return error ? error : cursor == run->input ? 0 : -EINVAL;
}

static void receive(struct run *run)
{
	const struct runner_request *q = &run->request;
	size_t n = receive_header(run);
	if (q->magic != RUNNER_MAGIC || q->payload_bytes > RUNNER_MAX_PAYLOAD ||
	    q->n_limits > RUNNER_MAX_LIMITS || q->n_argv > RUNNER_MAX_STRINGS ||
	    q->n_envp > RUNNER_MAX_STRINGS || !q->n_argv || place_descriptors(run, n))
		_exit(RUNNER_FAULT);
	run->payload = malloc(q->payload_bytes + 1);
	if (!run->payload)
		_exit(RUNNER_FAULT);
	read_fully(run->payload, q->payload_bytes);
	if (parse_payload(run))
		_exit(RUNNER_FAULT);
}

/* ---- output ---- */

/* The memory of both streams in one mapping that is kept between runs; untouched pages cost
 * nothing. */
static int map_buffers(struct run *run)
{
	const size_t head = run->request.head_bytes, tail = run->request.tail_bytes,
		     bytes = 2 * (head + tail);
	if (bytes > buffers_bytes) {
		if (buffers)
			munmap(buffers, buffers_bytes);
		buffers = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1,
			       0);
		buffers_bytes = buffers == MAP_FAILED ? 0 : bytes;
		if (!buffers_bytes) {
			buffers = NULL;
			return -ENOMEM;
		}
	}
	for (size_t i = 0; i < 2; i++) {
		struct stream *s = &run->streams[i];
		s->head_capacity = run->request.head_bytes;
		s->tail_capacity = run->request.tail_bytes;
		s->head = buffers + i * (head + tail);
		s->tail = s->head + head;
	}
	return 0;
}

/* One read, straight into place. Returns what read(2) returned. */
static ssize_t read_some(struct stream *s)
{
	static char discard[65536];
	const uint64_t beyond = s->total - s->head_bytes;
	char *into = discard;
	size_t room = sizeof discard;
	if (s->head_bytes < s->head_capacity) {
		into = s->head + s->head_bytes;
		room = s->head_capacity - s->head_bytes;
	} else if (s->tail_capacity) {
		into = s->tail + beyond % s->tail_capacity;
		room = s->tail_capacity - (size_t)(beyond % s->tail_capacity);
	}
	ssize_t n = read(s->fd, into, room);
	if (n <= 0)
		return n;
	s->total += (uint64_t)n;
	if (into == s->head + s->head_bytes && s->head_bytes < s->head_capacity)
		s->head_bytes += (uint32_t)n;
	return n;
}

/* Reads what is there. A writer that fills the pipe gets a larger one: fewer wake-ups for the same
 * bytes. */
static void drain_stream(struct stream *s)
{
	for (;;) {
		ssize_t n = read_some(s);
		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0 && errno == EAGAIN)
			return;
		if (n <= 0) {
			close_fd(&s->fd);
			return;
		}
		if (n >= 65536 && !s->widened) {
			s->widened = 1;
			(void)fcntl(s->fd, F_SETPIPE_SZ,
				    BIG_PIPE_BYTES); /* beyond the user's quota it stays as it is */
		}
		if (n < 4096)
			return;
		if (s->total >
		    (1ULL << 20)) /* a flood must not keep the deadline from being seen */
			return;
	}
}

static uint32_t tail_length(const struct stream *s)
{
	const uint64_t beyond = s->total - s->head_bytes;
	return beyond < s->tail_capacity ? (uint32_t)beyond : s->tail_capacity;
}

/* The kept tail in order: the ring from its oldest byte on. */
static int tail_parts(const struct stream *s, struct iovec parts[2])
{
	const uint64_t beyond = s->total - s->head_bytes;
	if (beyond <= s->tail_capacity) {
		parts[0] = (struct iovec){s->tail, (size_t)beyond};
		return 1;
	}
	const size_t oldest = (size_t)(beyond % s->tail_capacity);
	parts[0] = (struct iovec){s->tail + oldest, s->tail_capacity - oldest};
	parts[1] = (struct iovec){s->tail, oldest};
	return 2;
}

static void write_fully(struct iovec *parts, int n)
{
	while (n) {
		ssize_t written = writev(control, parts, n);
		if (written < 0 && errno == EINTR)
			continue;
		if (written < 0)
			broker_gone();
		while (n && (size_t)written >= parts->iov_len) {
			written -= (ssize_t)parts->iov_len;
			parts++;
			n--;
		}
		if (n) {
			parts->iov_base = (char *)parts->iov_base + written;
			parts->iov_len -= (size_t)written;
		}
	}
}

static void send_reply(struct run *run)
{
	struct iovec parts[8] = {{&run->reply, sizeof run->reply}};
	int n = 1;
	run->reply.magic = RUNNER_MAGIC;
	run->reply.duration_ns = now_ns() - run->started_ns;
	run->reply.user_us = (uint64_t)tree.usage.ru_utime.tv_sec * 1000000 +
			     (uint64_t)tree.usage.ru_utime.tv_usec;
	run->reply.system_us = (uint64_t)tree.usage.ru_stime.tv_sec * 1000000 +
			       (uint64_t)tree.usage.ru_stime.tv_usec;
	run->reply.max_rss_kib = (uint64_t)tree.usage.ru_maxrss;
	for (int i = 0; i < 2; i++) {
		const struct stream *s = &run->streams[i];
		run->reply.total_bytes[i] = s->total;
		run->reply.head_bytes[i] = s->head_bytes;
		run->reply.tail_bytes[i] = tail_length(s);
		if (s->head_bytes)
			parts[n++] = (struct iovec){s->head, s->head_bytes};
		if (tail_length(s))
			n += tail_parts(s, parts + n);
	}
	write_fully(parts, n);
}

/* ---- the run ---- */

struct pipes {
	int in[2], out[2], err[2];
};

static int open_pipes(const struct run *run, struct pipes *p)
{
	*p = (struct pipes){{-1, -1}, {-1, -1}, {-1, -1}};
	if (run->request.stdin_bytes && pipe2(p->in, O_CLOEXEC))
		return -errno;
	if (pipe2(p->out, O_CLOEXEC) || pipe2(p->err, O_CLOEXEC))
		return -errno;
	/* only our ends: the command must see ordinary blocking pipes */
	if (fcntl(p->out[0], F_SETFL, O_NONBLOCK) || fcntl(p->err[0], F_SETFL, O_NONBLOCK))
		return -errno;
	return p->in[1] >= 0 && fcntl(p->in[1], F_SETFL, O_NONBLOCK) ? -errno : 0;
}

static void close_pipes(struct pipes *p)
{
	int *all[] = {&p->in[0], &p->in[1], &p->out[0], &p->out[1], &p->err[0], &p->err[1]};
	for (size_t i = 0; i < sizeof all / sizeof *all; i++)
		close_fd(all[i]);
}

/* The filter for a run, and the thread that already is under it. */
static const struct sandbox_filter *ready_filter(uint32_t flags,
						 struct sandbox_failure *reterr_failure)
{
	const uint32_t variant = flags & (SANDBOX_NET_NONE | SANDBOX_NAMESPACED);
	struct sandbox_filter *filter = &filters[variant];
	if (filter->length)
		return filter;
	int error = sandbox_filter(variant, -1, filter);
	if (error)
		*reterr_failure = (struct sandbox_failure){SANDBOX_STAGE_FILTER, -error, -1};
	else
		error = sandbox_spawner(variant, filter, reterr_failure);
	if (error)
		filter->length = 0;
	return error ? NULL : filter;
}

static int spawn(struct run *run, struct pipes *p, struct sandbox_failure *reterr_failure)
{
	const struct runner_request *q = &run->request;
	struct sandbox_child child;
	const int confined = !(q->flags & SANDBOX_UNCONFINED);
	const struct sandbox_filter *filter =
		confined ? ready_filter(q->flags, reterr_failure) : NULL;
	if (confined && !filter)
		return -reterr_failure->error;
	const struct sandbox_plan plan = {
		.path = run->strings[0],
		.argv = run->strings + 1,
		.envp = run->strings + 2 + q->n_argv,
		.cwd_fd = run->descriptors[0],
		.stdio = {p->in[0], p->out[1], p->err[1]},
		.terminal_fd = -1,
		.cgroup_fd = -1, /* born in the runner's */
		.ruleset_fd = run->descriptors[1],
		.flags = q->flags | SANDBOX_KEEP_KEYRING,
		.umask = q->umask,
		.filter = filter,
		.limits = run->limits,
		.n_limits = q->n_limits,
	};
	int error = sandbox_spawn(&plan, &child, reterr_failure);
	if (error)
		return error;
	run->reply.pid = child.pid;
	run->pidfd = child.pidfd;
	tree = (struct supervise_tree){.leader = child.pid, .cgroup_fd = run->descriptors[2]};
	return 0;
}

static int start(struct run *run)
{
	struct sandbox_failure failure = {.stage = SANDBOX_STAGE_DESCRIPTORS, .index = -1};
	struct pipes p;
	int error = open_pipes(run, &p);
	if (!error)
		error = map_buffers(run);
	if (error)
		failure.error = -error;
	else
		error = spawn(run, &p, &failure);
	if (!error) {
		run->streams[0].fd = p.out[0];
		run->streams[1].fd = p.err[0];
		run->input_fd = p.in[1];
		p.out[0] = p.err[0] = p.in[1] = -1;
	} else {
		run->reply.reason = RUNNER_SPAWN_FAILED;
		run->reply.stage = failure.stage;
		run->reply.error = failure.error;
		run->reply.index = failure.index;
	}
	close_pipes(&p);
	return error;
}

static void feed_input(struct run *run)
{
	ssize_t n = write(run->input_fd, run->input, run->input_bytes);
	if (n < 0 && (errno == EINTR || errno == EAGAIN))
		return;
	if (n < 0) /* EPIPE: the command closed its stdin, which is its right */
		run->input_bytes = 0;
	else {
		run->input += n;
		run->input_bytes -= (uint32_t)n;
	}
	if (!run->input_bytes)
		close_fd(&run->input_fd);
}

/* The ladder: TERM now, KILL after the grace. A second reason does not replace the first. */
static void begin_end(struct run *run, uint32_t reason)
{
	if (run->kill_ms)
		return;
	run->reply.reason = reason;
	run->kill_ms = now_ms() + run->request.grace_ms;
	if (!run->kill_ms)
		run->kill_ms = 1;
	supervise_hurry(1); /* until kill_tree is through, or a storm of forks leaves us no time */
	supervise_signal(SIGTERM);
	supervise_signal(SIGCONT); /* a stopped process acts on TERM only when it goes on */
}

static void kill_tree(struct run *run)
{
	run->reply.survivors |= supervise_kill(&tree, KILL_LIMIT_MS) < 0;
	run->reply.orphans_killed = (uint32_t)tree.killed;
	run->reply.left_cgroup = (uint32_t)tree.left_cgroup;
}

/* The command's own end, which may have been seen only when its tracer was dead. */
static void note_exit(struct run *run)
{
	run->reply.exit_known = (uint32_t)tree.leader_reaped;
	run->reply.wait_status = tree.leader_status;
	if (!run->reply.reason)
		run->reply.reason = tree.leader_reaped && WIFSIGNALED(tree.leader_status)
					    ? RUNNER_SIGNALED
					    : RUNNER_EXITED;
}

static void reap(struct run *run)
{
	struct signalfd_siginfo ignored[16];
	int reaped;
	while (read(child_signals, ignored, sizeof ignored) > 0)
		;
	supervise_reap(&tree, REAP_AT_ONCE, &reaped);
	run->leader_ended = tree.leader_reaped;
	run->more_dead = reaped > 0; /* one call takes a bounded number: look again at once */
}

static void obey(struct run *run)
{
	char command;
	ssize_t n = read(control, &command, 1);
	if (n < 0 && (errno == EINTR || errno == EAGAIN))
		return;
	if (n <= 0)
		broker_gone();
	begin_end(run, RUNNER_CANCELLED);
	(void)command; /* there is one: RUNNER_CANCEL */
}

static int time_left(const struct run *run)
{
	if (run->more_dead)
		return 0;
	const uint64_t next = run->kill_ms ? run->kill_ms : run->deadline_ms, now = now_ms();
	if (!next)
		return -1;
	return next <= now ? 0 : next - now > 60000 ? 60000 : (int)(next - now);
}

static void check_limits(struct run *run)
{
	const uint64_t kept = (uint64_t)run->request.head_bytes + run->request.tail_bytes;
	if (run->request.kill_on_limit &&
	    (run->streams[0].total > kept || run->streams[1].total > kept))
		begin_end(run, RUNNER_OUTPUT_LIMIT);
	if (!run->kill_ms && run->deadline_ms && now_ms() >= run->deadline_ms)
		begin_end(run, RUNNER_TIMEOUT);
	if (!run->kill_ms || now_ms() < run->kill_ms)
		return;
	kill(run->reply.pid, SIGKILL); /* unreaped, so it is ours; the rest follows in kill_tree */
	run->kill_ms = now_ms() + KILL_AGAIN_MS;
	if (++run->kills >
	    KILL_LIMIT_MS /
		    KILL_AGAIN_MS) { /* uninterruptible: say so instead of waiting with it */
		run->leader_ended = 1;
		run->reply.survivors = 1;
	}
}

static void watch(struct run *run)
{
	while (!run->leader_ended) {
		struct pollfd fds[] = {
			{control, POLLIN, 0},
			{child_signals, POLLIN, 0},
			{run->streams[0].fd, POLLIN, 0},
			{run->streams[1].fd, POLLIN, 0},
			{run->input_fd, POLLOUT, 0},
			{run->pidfd, POLLIN, 0},
		};
		if (poll(fds, 6, time_left(run)) < 0 && errno != EINTR)
			_exit(RUNNER_FAULT);
		for (int i = 0; i < 2; i++)
			if (fds[2 + i].revents)
				drain_stream(&run->streams[i]);
		if (fds[4].revents)
			feed_input(run);
		if (fds[0].revents)
			obey(run);
		if (fds[1].revents || fds[5].revents || run->more_dead)
			reap(run);
		if (fds[5].revents) /* its end, though a tracer may be the only one who is shown it
				     */
			run->leader_ended = 1;
		if (!run->leader_ended)
			check_limits(run);
	}
}

/* Nobody of the tree is left, so the ends come at once, except where a survivor holds a pipe. */
static void drain(struct run *run)
{
	const uint64_t deadline = now_ms() + DRAIN_LIMIT_MS;
	close_fd(&run->input_fd);
	while (run->streams[0].fd >= 0 || run->streams[1].fd >= 0) {
		struct pollfd fds[] = {{run->streams[0].fd, POLLIN, 0},
				       {run->streams[1].fd, POLLIN, 0}};
		const uint64_t now = now_ms();
		if (now >= deadline || poll(fds, 2, (int)(deadline - now)) == 0)
			break;
		for (int i = 0; i < 2; i++)
			if (fds[i].revents)
				drain_stream(&run->streams[i]);
	}
	run->reply.drained = run->streams[0].fd < 0 && run->streams[1].fd < 0;
	close_fd(&run->streams[0].fd);
	close_fd(&run->streams[1].fd);
}

static void release(struct run *run)
{
	close_fd(&run->pidfd);
	for (int i = 0; i < RUNNER_MAX_DESCRIPTORS; i++)
		close_fd(&run->descriptors[i]);
	free(run->strings);
	free(run->payload);
	if (buffers && run->streams[0].total + run->streams[1].total > 65536)
		madvise(buffers, buffers_bytes, MADV_DONTNEED); /* an idle runner stays small */
}

static void serve_one(void)
{
	struct run run = {.descriptors = {-1, -1, -1},
			  .input_fd = -1,
			  .pidfd = -1,
			  .streams = {{.fd = -1}, {.fd = -1}}};
	receive(&run);
	run.started_ns = now_ns();
	if (run.request.timeout_ms)
		run.deadline_ms = run.started_ns / 1000000 + run.request.timeout_ms;
	if (!start(&run)) {
		watch(&run);
		kill_tree(&run);
		note_exit(&run);
		drain(&run);
	}
	send_reply(&run);
	release(&run);
	if (run.reply.survivors) /* never hand a tree that is not empty to the next run */
		_exit(RUNNER_FAULT);
}

/* Outside the command's domain, not readable by it, and gone with its broker. */
static int prepare(void)
{
	sigset_t blocked;
	sigfillset(&blocked);
	if (prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) || prctl(PR_SET_DUMPABLE, 0, 0, 0, 0) ||
	    prctl(PR_SET_NAME, "host-broker-run", 0, 0, 0) ||
	    sigprocmask(SIG_SETMASK, &blocked, NULL))
		return -errno;
	/* Once for all its runs: no command may use keys, so an empty keyring may be shared among
	 * them, and a fresh one per run would exhaust an ordinary user's quota of keys. */
	if (syscall(SYS_keyctl, KEYCTL_JOIN_SESSION_KEYRING, NULL) < 0 && errno != ENOSYS &&
	    errno != EPERM)
		return -errno;
	sigset_t chld;
	sigemptyset(&chld);
	sigaddset(&chld, SIGCHLD);
	child_signals = signalfd(-1, &chld, SFD_CLOEXEC | SFD_NONBLOCK);
	return child_signals < 0 ? -errno : sandbox_reserve();
}

int runner_main(int control_fd)
{
	control = fcntl(control_fd, F_DUPFD_CLOEXEC, 3);
	if (control < 0 || prepare())
		return RUNNER_FAULT;
	close(control_fd);
	for (;;)
		serve_one();
}
