/* SPDX-License-Identifier: Apache-2.0
 *
 * Calls sandbox_selftest once and prints what came of it, one tab-separated record a line.
 *
 * prove rows                                             names of the filter's rows
 * prove status MAX_ABI                                   what the kernel enforces
 * prove DIRECTORY MAX_ABI OMIT WEAKEN_FS KEEP CAPACITY   the proof, and what it left in this
 * process
 */
#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>

#include "sandbox.h"

#define ROWS_MAX 512

static int print_rows(void)
{
	for (size_t row = 0; sandbox_filter_row_name(row); row++)
		puts(sandbox_filter_row_name(row));
	return 0;
}

static int print_status(uint32_t max_abi)
{
	struct sandbox_status status = {0};
	int error = sandbox_status(max_abi, &status);

	printf("%d\t%d\t%llu\n", error, status.abi, (unsigned long long)status.handled_fs);
	return 0;
}

/* The number of open descriptors, and the sum of their numbers. */
static void print_descriptors(const char *label)
{
	DIR *directory = opendir("/proc/self/fd");
	int count = 0, sum = 0;

	for (const struct dirent *entry; directory && (entry = readdir(directory));) {
		count++;
		sum += atoi(entry->d_name);
	}
	if (directory)
		closedir(directory);
	printf("%s\t%d\t%d\n", label, count, sum);
}

static int prove(char **argv)
{
	static struct sandbox_proof_row rows[ROWS_MAX];
	const struct sandbox_weakness weakness = {
		.omit_row = atoi(argv[2]),
		.weaken_fs = strtoull(argv[3], NULL, 10),
		.keep = (uint32_t)atoi(argv[4]),
	};
	size_t capacity = (size_t)atoi(argv[5]), n_rows = 0;

	print_descriptors("descriptors_before");
	printf("result\t%d\n",
	       sandbox_selftest(argv[0], (uint32_t)atoi(argv[1]), &weakness, rows,
				capacity < ROWS_MAX ? capacity : ROWS_MAX, &n_rows));
	print_descriptors("descriptors_after");
	printf("children\t%d\n", waitpid(-1, NULL, WNOHANG | __WALL) == -1 ? errno : 0);
	for (const struct sandbox_proof_row *row = rows; row < rows + n_rows; row++)
		printf("row\t%s\t%d\t%d\t%d\t%d\t%d\t%s\n", row->name, row->expected, row->confined,
		       row->control, row->ok, row->skipped, row->claim);
	return 0;
}

int main(int argc, char **argv)
{
	if (argc == 2 && strcmp(argv[1], "rows") == 0)
		return print_rows();
	if (argc == 3 && strcmp(argv[1], "status") == 0)
		return print_status((uint32_t)atoi(argv[2]));
	return argc == 7 ? prove(argv + 1) : 2;
}
