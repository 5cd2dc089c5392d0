/* SPDX-License-Identifier: Apache-2.0
 *
 * What a confinement amounts to, as JSON.
 */
#ifndef CONFINE_PRINT_H
#define CONFINE_PRINT_H

#include "confinement.h"

void print_confinement(const struct confine_options *options,
		       const struct confinement *confinement);

/* Runs the self-test and prints it; returns the exit status. */
int print_selftest(int json);

#endif
