/* SPDX-License-Identifier: Apache-2.0
 *
 * dump FLAGS [ROW]: the filter for these flags, without the row, as an array of struct sock_filter.
 */
#include "sandbox.h"

#include <stdio.h>
#include <stdlib.h>

int main(int argc, char **argv)
{
	static struct sandbox_filter filter;
	int error;

	if (argc < 2)
		return 2;
	error = sandbox_filter((uint32_t)atoi(argv[1]), argc > 2 ? atoi(argv[2]) : -1, &filter);
	if (error) {
		printf("%d\n", error);
		return 1;
	}
	return fwrite(filter.instructions, sizeof(filter.instructions[0]), filter.length, stdout) !=
	       filter.length;
}
