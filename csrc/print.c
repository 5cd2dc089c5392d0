/* SPDX-License-Identifier: Apache-2.0
 *
 * --print and --selftest: what would be enforced, and what was proved, for people and for programs.
 */
#include "print.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "internal.h"
#include "report.h"

#define MAX_ROWS 512

/* By bit, as in linux/landlock.h. */
static const char *const fs_rights[] = {
	"execute",   "write_file", "read_file", "read_dir",  "remove_dir",   "remove_file",
	"make_char", "make_dir",   "make_reg",  "make_sock", "make_fifo",    "make_block",
	"make_sym",  "refer",      "truncate",  "ioctl_dev", "resolve_unix",
};
static const char *const net_rights[] = {"bind_tcp", "connect_tcp"};
static const char *const scopes[] = {"abstract_unix_socket", "signal"};
static const char *const accesses[] = {"read", "write", "exec", "device"};

#define N(names) ((unsigned int)(sizeof(names) / sizeof(*(names))))

static void finish(void)
{
	putchar('\n');
	if (fflush(stdout) || ferror(stdout))
		refuse(CONFINE_SETUP, "print: cannot write to stdout: %s (%s)", strerror(errno),
		       errno_name(errno));
}

static void print_status(const struct sandbox_status *status, int net_none)
{
	printf("  \"version\": \"%s\",\n  \"abi\": %d,\n  \"kernel_abi\": %d,\n  \"errata\": %u,\n",
	       SANDBOX_VERSION, status->abi, status->kernel_abi, status->errata);
	printf("  \"handled_fs\": ");
	json_names(status->handled_fs, fs_rights, N(fs_rights));
	printf(",\n  \"handled_net\": ");
	json_names(net_none ? status->handled_net : 0, net_rights, N(net_rights));
	printf(",\n  \"scoped\": ");
	json_names(status->scoped, scopes, N(scopes));
}

static int is_directory(int fd)
{
	struct stat status;

	return fstat(fd, &status) == 0 && S_ISDIR(status.st_mode);
}

static void print_root(const struct confine_root *root, const struct sandbox_rule *rule,
		       uint64_t handled)
{
	printf("    {\"path\": ");
	json_string(root->path);
	printf(", \"from\": \"%s\", \"access\": ", root->option ? root->option : "--baseline");
	json_names(root->access, accesses, N(accesses));
	printf(", \"rights\": ");
	json_names(sandbox_rights(root->access, is_directory(rule->fd)) & handled, fs_rights,
		   N(fs_rights));
	putchar('}');
}

static void print_roots(const struct confinement *confinement)
{
	printf(",\n  \"roots\": [");
	for (size_t i = 0; i < confinement->n_roots; i++) {
		printf("%s\n", i ? "," : "");
		print_root(&confinement->roots[i], &confinement->rules[i],
			   confinement->status.handled_fs);
	}
	printf("%s],\n  \"skipped\": [", confinement->n_roots ? "\n  " : "");
	for (size_t i = 0; i < confinement->n_skipped; i++) {
		printf("%s", i ? ", " : "");
		json_string(confinement->skipped[i].path);
	}
	putchar(']');
}

static void print_number(uint64_t value)
{
	if (value == UINT64_MAX) /* RLIM_INFINITY */
		printf("null");
	else
		printf("%llu", (unsigned long long)value);
}

static void print_limits(const struct sandbox_plan *plan)
{
	printf(",\n  \"limits\": {");
	for (size_t i = 0; i < plan->n_limits; i++) {
		printf("%s\"%s\": ", i ? ", " : "", rlimit_name(plan->limits[i].resource));
		print_number(plan->limits[i].hard);
	}
	putchar('}');
}

/* Names only: values may be secrets. */
static void print_environment(char *const *environment)
{
	const char *separator = "";

	printf(",\n  \"environment\": [");
	for (; *environment; environment++) {
		char *name = strndup(*environment, strcspn(*environment, "="));

		printf("%s", separator);
		json_string(name ? name : "");
		free(name);
		separator = ", ";
	}
	putchar(']');
}

void print_confinement(const struct confine_options *options, const struct confinement *confinement)
{
	const int net_none = (options->flags & CONFINE_NET_NONE) != 0;

	printf("{\n");
	print_status(&confinement->status, net_none);
	printf(",\n  \"net\": \"%s\",\n  \"filter_length\": %u,\n  \"new_session\": %s,\n  "
	       "\"supervise\": %s",
	       net_none ? "none" : "open", confinement->filter.length,
	       options->flags & CONFINE_TTY ? "false" : "true",
	       options->flags & CONFINE_SUPERVISE ? "true" : "false");
	printf(",\n  \"umask\": %u,\n  \"cwd\": ", confinement->plan.umask);
	if (options->cwd)
		json_string(options->cwd);
	else
		printf("null");
	print_limits(&confinement->plan);
	print_environment(confinement->environment);
	print_roots(confinement);
	printf("\n}");
	finish();
}

static void print_row_json(const struct sandbox_proof_row *row)
{
	printf("    {\"name\": ");
	json_string(row->name);
	printf(", \"claim\": ");
	json_string(row->claim);
	printf(", \"expected\": %d, \"confined\": %d, \"control\": %d, \"ok\": %s, \"skipped\": "
	       "%s}",
	       row->expected, row->confined, row->control, row->ok ? "true" : "false",
	       row->skipped ? "true" : "false");
}

static void print_proof_json(const struct sandbox_status *status,
			     const struct sandbox_proof_row *rows, size_t n_rows, size_t failed)
{
	printf("{\n");
	print_status(status, 1);
	printf(",\n  \"ok\": %s,\n  \"rows\": [", failed || !n_rows ? "false" : "true");
	for (size_t i = 0; i < n_rows; i++) {
		printf("%s\n", i ? "," : "");
		print_row_json(&rows[i]);
	}
	printf("\n  ]\n}");
	finish();
}

/* An outcome of a row: 0, an errno, or a signal as a negative number. */
static void print_outcome(const char *label, int outcome)
{
	if (outcome < 0)
		printf("%s signal %d", label, -outcome);
	else
		printf("%s %s", label, outcome ? errno_name(outcome) : "success");
}

static void print_proof_text(const struct sandbox_proof_row *rows, size_t n_rows)
{
	for (size_t i = 0; i < n_rows; i++) {
		const struct sandbox_proof_row *row = &rows[i];

		printf("%-7s %-28s %s",
		       row->skipped ? "skipped"
		       : row->ok    ? "ok"
				    : "FAILED",
		       row->name, row->claim);
		if (!row->ok && !row->skipped) {
			print_outcome(": expected", row->expected);
			print_outcome(", confined", row->confined);
			print_outcome(", unfiltered", row->control);
		}
		putchar('\n');
	}
}

static const char *scratch_directory(void)
{
	const char *chosen = getenv("TMPDIR");

	return chosen && *chosen == '/' ? chosen : "/tmp";
}

int print_selftest(int json)
{
	static const struct sandbox_weakness none = {.omit_row = -1};
	static struct sandbox_proof_row rows[MAX_ROWS];
	size_t n_rows = 0, failed = 0, skipped = 0;
	const char *directory = scratch_directory();
	struct sandbox_status status = {0};
	int error;

	require_kernel(&status);
	error = sandbox_selftest(directory, 0, &none, rows, MAX_ROWS, &n_rows);
	if (error)
		refuse(CONFINE_SETUP,
		       "selftest: cannot run in '%s': %s (%s); set TMPDIR to a directory you can "
		       "write",
		       directory, strerror(-error), errno_name(-error));
	for (size_t i = 0; i < n_rows; i++) {
		skipped += rows[i].skipped != 0;
		failed += !rows[i].ok && !rows[i].skipped;
	}
	if (json) {
		print_proof_json(&status, rows, n_rows, failed);
	} else {
		print_proof_text(rows, n_rows);
		printf("%zu rows: %zu ok, %zu failed, %zu skipped", n_rows,
		       n_rows - failed - skipped, failed, skipped);
		finish();
	}
	if (failed || !n_rows)
		refuse(CONFINE_SETUP,
		       "selftest: the sandbox does not hold on this system; do not rely on it");
	return 0;
}
