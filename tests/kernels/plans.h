/* SPDX-License-Identifier: Apache-2.0
 *
 * What each guest must answer, one row a command.  A denial stands beside its control: the same
 * probe run bare, which must work.  A status is an exit code (of probe: an errno) or 128 + signal.
 */
#ifndef TESTS_KERNELS_PLANS_H
#define TESTS_KERNELS_PLANS_H

#include <errno.h>
#include <signal.h>

#define SAYS_MAX 4
#define INSIDE "/tmp/inside"
#define OUTSIDE "/tmp/outside"
#define VICTIM "/run/victim.sock"    /* stream */
#define VICTIM_LOG "/run/victim.log" /* datagram */
#define USER 61234

#define EXIT_NO_FLOOR 91
#define KILLED_BY_FILTER (128 + SIGSYS)

struct row {
	const char *name;
	unsigned int uid;
	const char *argv[12];
	int expected;
	const char *says[SAYS_MAX]; /* every one must occur in what the command printed */
	const char *leaves;         /* must exist afterwards */
	const char *never_made;     /* must not exist afterwards */
	int show;                   /* print the output also when the row holds */
};

struct plan {
	const char *name;
	int abi; /* what landlock_create_ruleset(2) answers when asked for its version */
	const struct row *rows;
};

#define CONFINE "/bin/confine", "--exec", "/bin", "--rw", INSIDE, "--"
#define PROBE "/bin/probe"

/* The same operation bare and confined, as one uid. */
#define CONTROLLED(what, who, denial, ...)                                          \
	{.name = what ": bare it works", .uid = who, .argv = {PROBE, __VA_ARGS__}}, \
	{                                                                           \
		.name = what ": confined it is refused", .uid = who,                \
		.argv = {CONFINE, PROBE, __VA_ARGS__}, .expected = denial           \
	}

#define BOTH(what, denial, ...) \
	CONTROLLED(what, 0, denial, __VA_ARGS__), CONTROLLED(what, USER, denial, __VA_ARGS__)

/* x32 is alive (syscall.x32=y), Landlock has scopes. */
static const struct row enforce_rows[] = {
	{.name = "the self-test passes", .argv = {"/bin/confine", "--selftest"}, .show = 1},
	{.name = "the self-test passes", .uid = USER, .argv = {"/bin/confine", "--selftest"}},
	{.name = "confine reports the ABI",
	 .argv = {"/bin/confine", "--exec", "/bin", "--print"},
	 .says = {"\"kernel_abi\": 6"},
	 .show = 1},
	BOTH("a Unix socket by the x32 number", EPERM, "x32", VICTIM),
	{.name = "a filter of native numbers only stops the native number",
	 .uid = USER,
	 .argv = {PROBE, "naive", "native", VICTIM},
	 .expected = EPERM},
	{.name = "a filter of native numbers only is walked around by the x32 number",
	 .uid = USER,
	 .argv = {PROBE, "naive", "x32", VICTIM}},
	BOTH("a Unix socket by the i386 entry", KILLED_BY_FILTER, "int80", VICTIM),
	BOTH("a Unix socket by the native number", EPERM, "unix", VICTIM),
	BOTH("a datagram from a pair to a path", EPROTONOSUPPORT, "datagram", VICTIM_LOG),
	BOTH("io_uring", ENOSYS, "io_uring"),
	CONTROLLED("a signal to a process outside", 0, EPERM, "signal", "1"),
	BOTH("reading outside", EACCES, "read", OUTSIDE "/file"),
	BOTH("writing outside", EACCES, "write", OUTSIDE "/file"),
	BOTH("emptying a file outside", EACCES, "truncate", OUTSIDE "/file"),
	{.name = "creating outside: confined it is refused",
	 .uid = USER,
	 .argv = {CONFINE, PROBE, "create", OUTSIDE "/new"},
	 .expected = EACCES,
	 .never_made = OUTSIDE "/new"},
	{.name = "creating outside: bare it works",
	 .uid = USER,
	 .argv = {PROBE, "create", OUTSIDE "/new"},
	 .leaves = OUTSIDE "/new"},
	{.name = "reading inside works",
	 .uid = USER,
	 .argv = {CONFINE, PROBE, "read", INSIDE "/file"}},
	{.name = "a move between directories inside works",
	 .uid = USER,
	 .argv = {CONFINE, PROBE, "move", INSIDE "/a/moved", INSIDE "/b/moved"},
	 .leaves = INSIDE "/b/moved"},
	{.name = NULL},
};

#define REFUSED(who, made, ...)                                                                   \
	{.name = "a command is not run",                                                          \
	 .uid = who,                                                                              \
	 .argv = {"/bin/confine", "--exec", "/bin", "--rw", INSIDE, "--", PROBE, "create", made}, \
	 .expected = EXIT_NO_FLOOR,                                                               \
	 .says = {__VA_ARGS__},                                                                   \
	 .never_made = made,                                                                      \
	 .show = 1},                                                                              \
		{.name = "the same command runs bare",                                            \
		 .uid = who,                                                                      \
		 .argv = {PROBE, "create", made},                                                 \
		 .leaves = made},                                                                 \
	{                                                                                         \
		.name = "the self-test refuses", .uid = who,                                      \
		.argv = {"/bin/confine", "--selftest"}, .expected = EXIT_NO_FLOOR, .says = {      \
			__VA_ARGS__                                                               \
		}                                                                                 \
	}

/* Landlock is there but cannot forbid truncate(2): below the floor. */
static const struct row refuse_rows[] = {
	REFUSED(0, INSIDE "/by-root", "ABI 2", "3"),
	REFUSED(USER, INSIDE "/by-user", "ABI 2", "3"),
	{.name = NULL},
};

/* Landlock is built in but left out of the list given at boot. */
static const struct row disabled_rows[] = {
	REFUSED(0, INSIDE "/by-root", "built in but off", "lsm="),
	REFUSED(USER, INSIDE "/by-user", "built in but off", "lsm="),
	{.name = NULL},
};

static const struct plan plans[] = {
	{"enforce", 6, enforce_rows},
	{"refuse", 2, refuse_rows},
	{"disabled", -EOPNOTSUPP, disabled_rows},
};

#endif
