/* SPDX-License-Identifier: Apache-2.0
 *
 * The protocol of a worker: a line with a number comes in, the thing measured is done that often, a
 * line with that many durations in ns goes out.  The worker times itself, so that the cost of being
 * asked is in no figure.  End of input ends it.
 */
#ifndef TESTS_BENCH_TURNS_H
#define TESTS_BENCH_TURNS_H

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

static inline int64_t now_ns(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

static inline void fail(const char *what)
{
	perror(what);
	exit(1);
}

#endif
