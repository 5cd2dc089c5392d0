/* SPDX-License-Identifier: Apache-2.0
 *
 * The command line of confine: one table of options, and what each adds to the request.
 */
#include "options.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "arena.h"
#include "report.h"
#include "sandbox.h"

enum kind { ROOT, OPTIONAL_ROOT, CWD, NET, ENV, FLAG, ACTION };

#define READ SANDBOX_READ
#define WRITE (SANDBOX_READ | SANDBOX_WRITE)
#define EXEC (SANDBOX_READ | SANDBOX_EXEC)
#define DEVICE (SANDBOX_READ | SANDBOX_WRITE | SANDBOX_DEVICE)

struct option {
	const char *name;
	const char *argument; /* its name in --help; NULL: the option takes none */
	enum kind kind;
	uint32_t value;
	const char *help;
};

static const struct option options[] = {
	{"--ro", "PATH", ROOT, READ, "may read the file, or everything below the directory"},
	{"--rw", "PATH", ROOT, WRITE, "may read, write, create, remove and rename there too"},
	{"--exec", "PATH", ROOT, EXEC, "may read, and execute programs there"},
	{"--dev", "PATH", ROOT, DEVICE, "may read, write and ioctl this device node"},
	{"--ro-opt", "PATH", OPTIONAL_ROOT, READ,
	 "as --ro, skipped when it is missing or out of reach"},
	{"--rw-opt", "PATH", OPTIONAL_ROOT, WRITE,
	 "as --rw, skipped when it is missing or out of reach"},
	{"--exec-opt", "PATH", OPTIONAL_ROOT, EXEC,
	 "as --exec, skipped when it is missing or out of reach"},
	{"--baseline", NULL, FLAG, CONFINE_BASELINE,
	 "what ordinary tools need: system programs, some of /etc, /dev/null, /proc"},
	{"--shm", NULL, FLAG, CONFINE_SHM, "as --rw /dev/shm, which is shared with the host"},
	{"--tty", NULL, FLAG, CONFINE_TTY, "the terminal: its device nodes and its session"},
	{"--net", "open|none", NET, 0, "network as the caller has it (default), or none"},
	{"--cwd", "DIR", CWD, 0, "start there instead of in the caller's directory"},
	{"--env", "NAME[=VALUE]", ENV, 0, "give the command this variable and only those so named"},
	{"--clear-env", NULL, FLAG, CONFINE_CLEAR_ENV,
	 "give the command no variable but those of --env"},
	{"--limits", NULL, FLAG, CONFINE_LIMITS,
	 "default resource limits: memory, files, CPU, processes"},
	{"--supervise", NULL, FLAG, CONFINE_SUPERVISE,
	 "stay, and kill what is left when the command ends"},
	{"--print", NULL, ACTION, CONFINE_PRINT,
	 "print what would be enforced as JSON, run nothing"},
	{"--selftest", NULL, ACTION, CONFINE_SELFTEST,
	 "prove on this kernel that the sandbox holds"},
	{"--json", NULL, FLAG, CONFINE_JSON, "with --selftest: the proof as JSON"},
	{"--version", NULL, ACTION, CONFINE_VERSION, "print the version"},
	{"--help", NULL, ACTION, CONFINE_HELP, "print this"},
};
#define N_OPTIONS (sizeof(options) / sizeof(*options))

/* What is being parsed: the result so far, and which options were seen. */
struct parse {
	struct confine_options *result;
	uint64_t seen;
};

static size_t edit_distance(const char *a, const char *b)
{
	size_t row[64] = {0}, length = strlen(b);

	if (length >= sizeof(row) / sizeof(*row))
		return length;
	for (size_t i = 0; i <= length; i++)
		row[i] = i;
	for (size_t i = 1; *a; i++, a++) {
		size_t diagonal = row[0];

		row[0] = i;
		for (size_t k = 1; k <= length; k++) {
			size_t substituted = diagonal + (*a != b[k - 1]);
			size_t shorter = (row[k] < row[k - 1] ? row[k] : row[k - 1]) + 1;

			diagonal = row[k];
			row[k] = substituted < shorter ? substituted : shorter;
		}
	}
	return row[length];
}

/* The option that the word is the beginning of, else the one with the fewest letters to change. */
static const char *nearest_option(const char *word)
{
	size_t best = 0, best_distance = SIZE_MAX;

	for (size_t i = 0; i < N_OPTIONS; i++) {
		size_t distance = edit_distance(word, options[i].name);

		if (strlen(word) > 2 && !strncmp(word, options[i].name, strlen(word)))
			return options[i].name;
		if (distance < best_distance) {
			best = i;
			best_distance = distance;
		}
	}
	return options[best].name;
}

/* The row of `--name` or `--name=value`; *ret_value is what follows '=', or NULL. */
static const struct option *find_option(char *word, char **ret_value)
{
	char *equals = strchr(word, '=');
	size_t length = equals ? (size_t)(equals - word) : strlen(word);

	for (size_t i = 0; i < N_OPTIONS; i++) {
		if (strlen(options[i].name) == length && !memcmp(options[i].name, word, length)) {
			*ret_value = equals ? equals + 1 : NULL;
			return &options[i];
		}
	}
	if (equals)
		*equals = 0;
	refuse(CONFINE_USAGE, "unknown option '%s'; the nearest is '%s'", word,
	       nearest_option(word));
}

static int has_dotdot(const char *path)
{
	for (const char *at = path; (at = strstr(at, "..")); at += 2) {
		if ((at == path || at[-1] == '/') && (at[2] == 0 || at[2] == '/'))
			return 1;
	}
	return 0;
}

/* Paths are judged before anything is opened: a relative one means something else in every
 * directory, and one with '..' something else than it seems to when a component is replaced by a
 * link. */
static const char *checked_path(const char *option, const char *path)
{
	if (!*path)
		refuse(CONFINE_USAGE, "%s: the path is empty; give an absolute one", option);
	if (*path != '/')
		refuse(CONFINE_USAGE, "%s: '%s' is relative; give an absolute path", option, path);
	if (has_dotdot(path))
		refuse(CONFINE_USAGE, "%s: '%s' has a '..' in it; give the path it leads to",
		       option, path);
	return path;
}

static void add_env(struct confine_options *result, const char *value)
{
	if (!*value || *value == '=')
		refuse(CONFINE_USAGE, "--env: '%s' names no variable; write NAME or NAME=VALUE",
		       value);
	result->env[result->n_env++] = value;
}

static void set_net(struct confine_options *result, const char *value)
{
	if (!strcmp(value, "none"))
		result->flags |= CONFINE_NET_NONE;
	else if (strcmp(value, "open") != 0)
		refuse(CONFINE_USAGE, "--net: '%s' is neither 'open' nor 'none'", value);
}

static void set_action(struct confine_options *result, const struct option *option)
{
	if (result->action != CONFINE_RUN)
		refuse(CONFINE_USAGE, "%s: only one of --print, --selftest, --version and --help",
		       option->name);
	result->action = (enum confine_action)option->value;
}

static void apply(struct confine_options *result, const struct option *option, const char *value)
{
	switch (option->kind) {
	case ROOT:
	case OPTIONAL_ROOT:
		result->roots[result->n_roots++] = (struct confine_root){
			.path = checked_path(option->name, value),
			.option = option->name,
			.access = option->value,
			.optional = option->kind == OPTIONAL_ROOT,
		};
		break;
	case CWD:
		result->cwd = checked_path(option->name, value);
		break;
	case NET:
		set_net(result, value);
		break;
	case ENV:
		add_env(result, value);
		break;
	case FLAG:
		result->flags |= option->value;
		break;
	case ACTION:
		set_action(result, option);
		break;
	}
}

/* Given twice with two values, which one did the caller mean? */
static void refuse_second(struct parse *parse, const struct option *option)
{
	uint64_t bit = 1ULL << (option - options);

	if ((parse->seen & bit) && (option->kind == CWD || option->kind == NET))
		refuse(CONFINE_USAGE, "%s is given twice; give it once", option->name);
	parse->seen |= bit;
}

/* Parses the option at argv[0]; returns how many words it took. */
static int parse_one(struct parse *parse, char **argv)
{
	char *value = NULL;
	int used = 1;

	if (argv[0][0] != '-')
		refuse(CONFINE_USAGE, "'%s' is no option; write '--' before the command", argv[0]);

	const struct option *option = find_option(argv[0], &value);

	refuse_second(parse, option);
	if (!option->argument && value)
		refuse(CONFINE_USAGE, "%s takes no value", option->name);
	if (option->argument && !value) {
		value = argv[used++];
		if (!value)
			refuse(CONFINE_USAGE, "%s needs a value: %s", option->name,
			       option->argument);
	}
	apply(parse->result, option, value ? value : "");
	return used;
}

/* What is asked for must make sense as a whole; the first thing that does not is named. */
static void check_whole(const struct parse *parse)
{
	const struct confine_options *result = parse->result;
	const int json = (result->flags & CONFINE_JSON) != 0;
	const int others = __builtin_popcountll(parse->seen) > 1 + json;

	if (json && result->action != CONFINE_SELFTEST)
		refuse(CONFINE_USAGE, "--json goes with --selftest; --print is JSON already");
	if (result->action == CONFINE_SELFTEST && (result->command || others))
		refuse(CONFINE_USAGE,
		       "--selftest takes no other option but --json, and no command");
	if (result->action == CONFINE_RUN && !result->command)
		refuse(CONFINE_USAGE, "no command; write it after '--', see confine --help");
}

void parse_options(int argc, char **argv, struct confine_options *ret_options)
{
	const size_t most = (size_t)argc + 1;
	struct parse parse = {.result = ret_options};

	*ret_options = (struct confine_options){
		.roots = allocate(most, sizeof(struct confine_root)),
		.env = allocate(most, sizeof(char *)),
	};
	for (int i = 1; i < argc;) {
		if (!strcmp(argv[i],
			    "--")) { /* all that follows is the command, whatever it looks like */
			ret_options->command = argv[i + 1] ? argv + i + 1 : NULL;
			break;
		}
		i += parse_one(&parse, argv + i);
	}
	check_whole(&parse);
}

void print_help(void)
{
	puts("usage: confine [OPTION]... -- COMMAND [ARGUMENT]...\n"
	     "\n"
	     "Runs COMMAND so that it can reach the named files and nothing else of the file "
	     "system,\n"
	     "no Unix socket outside, no other process, no privilege.  What is not named is "
	     "denied.\n");
	for (size_t i = 0; i < N_OPTIONS; i++) {
		char left[40];

		(void)snprintf(left, sizeof(left), "%s %s", options[i].name,
			       options[i].argument ? options[i].argument : "");
		printf("  %-19s %s\n", left, options[i].help);
	}
	puts("\n"
	     "Paths are absolute.  Exit status: the command's own, 128+N when signal N ended it;\n"
	     "90 usage, 91 this kernel cannot confine, 92 setup failed, 126 not executable, 127 "
	     "not found.\n"
	     "confine(1) has the details.");
}
