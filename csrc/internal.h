/* SPDX-License-Identifier: Apache-2.0
 *
 * What the core's own files share and nobody else sees.
 */
#ifndef SANDBOX_INTERNAL_H
#define SANDBOX_INTERNAL_H

#include "sandbox.h"

/* Weakened on purpose by tests of the proof (struct sandbox_weakness); never set by a face. */
#define SANDBOX_WEAK_SCOPE (1U << 30)        /* ruleset: no scopes */
#define SANDBOX_WEAK_CAPABILITIES (1U << 29) /* plan: keep capabilities and securebits */
#define SANDBOX_WEAK_KEYRING (1U << 28)      /* plan: keep the session keyring */

/* Landlock rights of an access, before masking by what the kernel handles. */
uint64_t sandbox_rights(uint32_t access, int directory);

/* The other faces of the static executable. */
int runner_main(int control_fd);       /* runner.c: the broker's supervisor */
int reach_main(int argc, char **argv); /* reach.c: can a control endpoint be reached from here? */

#endif
