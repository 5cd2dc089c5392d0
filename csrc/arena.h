/* SPDX-License-Identifier: Apache-2.0
 *
 * Memory for the whole life of the process.
 */
#ifndef CONFINE_ARENA_H
#define CONFINE_ARENA_H

#include <stddef.h>

/* Zeroed room for n objects of that size, never given back. Ends the process with CONFINE_SETUP
 * when there is none. */
void *allocate(size_t n, size_t size);

#endif
