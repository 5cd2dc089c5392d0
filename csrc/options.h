/* SPDX-License-Identifier: Apache-2.0
 *
 * The command line of confine, parsed: what it asks for, nothing of it tried yet.
 */
#ifndef CONFINE_OPTIONS_H
#define CONFINE_OPTIONS_H

#include <stddef.h>
#include <stdint.h>

enum confine_action {
	CONFINE_RUN,
	CONFINE_PRINT,
	CONFINE_SELFTEST,
	CONFINE_VERSION,
	CONFINE_HELP,
};

enum confine_flags {
	CONFINE_BASELINE = 1,
	CONFINE_SHM = 2,
	CONFINE_TTY = 4,
	CONFINE_SUPERVISE = 8,
	CONFINE_LIMITS = 16,
	CONFINE_JSON = 32,
	CONFINE_NET_NONE = 64,
	CONFINE_CLEAR_ENV = 128,
};

struct confine_root {
	const char *path;
	const char *option; /* "--ro", for messages; NULL for a row of the baseline */
	uint32_t access;    /* enum sandbox_access */
	int optional;
};

/* Every string is borrowed from argv, the arrays belong to the process. */
struct confine_options {
	enum confine_action action;
	uint32_t flags; /* enum confine_flags */
	struct confine_root *roots;
	size_t n_roots;
	const char *cwd;  /* absolute; NULL: the caller's */
	const char **env; /* of each --env its "K" or "K=V" */
	size_t n_env;
	char **command; /* NULL-terminated, from argv; NULL when there is none */
};

/* Ends the process with CONFINE_USAGE and one line that names the mistake when there is one. */
void parse_options(int argc, char **argv, struct confine_options *ret_options);

/* The text of --help, on stdout. */
void print_help(void);

#endif
