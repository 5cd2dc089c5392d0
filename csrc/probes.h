/* SPDX-License-Identifier: Apache-2.0
 *
 * What the self-test tries (probes.c) and how it is told where it is (selftest.c).
 */
#ifndef SANDBOX_PROBES_H
#define SANDBOX_PROBES_H

#include <stddef.h>
#include <stdint.h>
#include <sys/socket.h>
#include <sys/un.h>

/* Where a probe runs. Each world is one process. */
enum world {
	WORLD_CONFINED, /* as sandbox_spawn confines with the network open */
	WORLD_OFFLINE,  /* the same with SANDBOX_NET_NONE */
	WORLD_SEALED,   /* the filter alone, with the seal behind it (selftest.c) */
	WORLD_CONTROL,  /* not confined; for sealed probes, the seal alone */
	WORLD_COUNT,
};

enum probe_kind {
	PROBE_DENIED,   /* gives `expected`, and something else unconfined */
	PROBE_SURVIVES, /* gives `expected` confined and unconfined alike */
	PROBE_STATE,    /* gives `expected`; the control may be in that state already */
};

enum probe_flags {
	PROBE_APART = 1,   /* in a process of its own: it may be killed, or change its process */
	PROBE_SEALED = 2,  /* in WORLD_SEALED instead of WORLD_CONFINED */
	PROBE_OFFLINE = 4, /* in WORLD_OFFLINE instead of WORLD_CONFINED */
	PROBE_OUTER =
		8, /* a container's filter, or the kernel's configuration, may refuse it too */
	PROBE_SETPCAP = 16, /* about what only CAP_SETPCAP can change */
	PROBE_ENTRY32 = 32, /* needs the kernel's 32-bit entry */
};

/* Sockets of the host process, outside. */
enum endpoint {
	PATH_STREAM,
	PATH_SEQPACKET,
	PATH_DATAGRAM,
	ABSTRACT_STREAM,
	ABSTRACT_DATAGRAM,
	ENDPOINT_COUNT,
};

struct address {
	struct sockaddr_un un;
	socklen_t length;
};

/* What a probe may use. Descriptors were opened before the confinement; -1: this kernel has none.
 */
struct scene {
	int32_t host_pid;    /* a process outside, of the same uid */
	int32_t terminal_fd; /* slave of a pty of our own */
	int32_t stream_fd, datagram_fd, inet_fd;
	int32_t planted_key;    /* in the session keyring left behind; 0: could not be planted */
	uint64_t core_hard_max; /* RLIMIT_CORE before */
	struct address endpoints[ENDPOINT_COUNT];
};

struct probe {
	const char *name;
	const char *claim;
	/* Returns 0, a positive errno, or minus the signal that killed a PROBE_APART. Raw system
	 * calls only: it runs in a child forked from a process that may have threads. */
	int32_t (*run)(const struct scene *scene, const struct probe *probe);
	int32_t expected;
	uint8_t kind, flags, abi; /* abi: Landlock ABI it needs, 0: any */
	long call[7];             /* number and arguments, or what `run` reads there */
};

extern const struct probe sandbox_probes[];
extern const size_t sandbox_probe_count;

/* Program of a root: does nothing and ends with 0. */
extern const void *const sandbox_program;
extern const size_t sandbox_program_size;

#endif
