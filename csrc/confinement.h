/* SPDX-License-Identifier: Apache-2.0
 *
 * A request made ready to be enforced: roots opened, ruleset and filter made.
 */
#ifndef CONFINE_CONFINEMENT_H
#define CONFINE_CONFINEMENT_H

#include "options.h"
#include "rlimits.h"
#include "sandbox.h"

struct confinement {
	struct sandbox_status status;
	struct confine_root *roots; /* those that opened; rules[i] is of roots[i] */
	struct sandbox_rule *rules;
	size_t n_roots;
	struct confine_root *skipped; /* optional ones that this system does not have */
	size_t n_skipped;
	struct sandbox_filter filter;
	struct sandbox_limit limits[RLIMITS_MAX];
	char **environment; /* of the command, NULL-terminated */
	struct sandbox_plan plan;
};

/* Ends the process with CONFINE_KERNEL and the reason unless this kernel confines. */
void require_kernel(struct sandbox_status *ret_status);

/* Ends the process with CONFINE_KERNEL or CONFINE_SETUP and one line when it cannot be made. */
void prepare_confinement(const struct confine_options *options,
			 struct confinement *ret_confinement);

/* Says what failed in setting up a confinement, with the fix where one is known, and ends the
 * process. confinement: NULL when nothing was made yet. */
void refuse_failure(const struct confinement *confinement, const struct sandbox_failure *failure)
	__attribute__((noreturn));

#endif
