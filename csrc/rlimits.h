/* SPDX-License-Identifier: Apache-2.0
 *
 * The default resource limits of --limits.
 */
#ifndef CONFINE_RLIMITS_H
#define CONFINE_RLIMITS_H

#include "sandbox.h"

#define RLIMITS_MAX 16

/* Fills `limits` (room for RLIMITS_MAX); returns how many. Never above what is in force already. */
size_t default_rlimits(struct sandbox_limit *limits);

const char *rlimit_name(uint32_t resource); /* "nofile" */

#endif
