/* SPDX-License-Identifier: Apache-2.0
 *
 * What the broker and its runners say to each other over a stream socketpair, in native byte order.
 * Both ends are built from this tree and started by the same daemon; the socket never reaches a
 * confined child.
 */
#ifndef SANDBOX_RUNNER_H
#define SANDBOX_RUNNER_H

#include <stdint.h>

#define RUNNER_MAGIC 0x31524248U /* "HBR1" */
#define RUNNER_MAX_PAYLOAD (8U << 20)
#define RUNNER_MAX_STRINGS 65536U
#define RUNNER_MAX_LIMITS 16U
#define RUNNER_MAX_DESCRIPTORS 3

/* Request: this header, n_limits times {resource, soft, hard} as u64, then path, argv…, envp… each
 * NUL-terminated, then stdin_bytes.  Descriptors ride on its first byte: cwd, then the ruleset
 * unless UNCONFINED, then the cgroup directory if there is one. */
struct runner_request {
	uint32_t magic;
	uint32_t payload_bytes; /* everything after this header */
	uint32_t flags;         /* enum sandbox_flags */
	uint32_t umask;
	uint32_t n_limits, n_argv, n_envp;
	uint32_t stdin_bytes;            /* 0: /dev/null */
	uint32_t head_bytes, tail_bytes; /* kept of each output stream */
	uint32_t timeout_ms, grace_ms;
	uint32_t kill_on_limit; /* end the run when a stream exceeds head + tail */
	uint32_t has_cgroup;
};

enum runner_reason { /* why the run ended */
		     RUNNER_EXITED = 1,
		     RUNNER_SIGNALED = 2,
		     RUNNER_TIMEOUT = 3,
		     RUNNER_OUTPUT_LIMIT = 4,
		     RUNNER_CANCELLED = 5,
		     RUNNER_SPAWN_FAILED = 6,
};

/* Reply: this header, then the kept bytes: stdout head, stdout tail, stderr head, stderr tail. */
struct runner_reply {
	uint32_t magic;
	uint32_t reason;
	int32_t wait_status;  /* wait(2) encoding of the command itself */
	int32_t stage, error; /* SPAWN_FAILED: struct sandbox_failure */
	int32_t pid;
	uint32_t orphans_killed;
	uint32_t drained;     /* both streams read to their end */
	uint32_t survivors;   /* 1: something could not be ended (uninterruptible) */
	uint32_t left_cgroup; /* 1: not in its cgroup any more; such a runner is not used again */
	uint32_t exit_known;  /* 1: wait_status was received; 0: the command ended unseen, or not at
				 all */
	uint32_t reserved;
	int64_t index;
	uint64_t duration_ns, user_us, system_us, max_rss_kib;
	uint64_t total_bytes[2];
	uint32_t head_bytes[2], tail_bytes[2];
};

/* While a run is on, the broker may send one byte; end of file means the broker is gone: kill
 * everything, exit. */
enum runner_command {
	RUNNER_CANCEL = 'C', /* TERM, grace, KILL */
};

#endif
