/* SPDX-License-Identifier: Apache-2.0
 *
 * What confine says to people and to programs: one-line messages and JSON.
 */
#ifndef CONFINE_REPORT_H
#define CONFINE_REPORT_H

#include <stdint.h>

/* Told apart from the command's own: sysexits(3) ends at 78, and 126 upwards is the shell's use. */
enum confine_exit {
	CONFINE_USAGE = 90,  /* the command line is wrong; nothing was tried */
	CONFINE_KERNEL = 91, /* this kernel cannot confine */
	CONFINE_SETUP = 92,  /* setting up the confinement failed; the command did not run */
	CONFINE_NOT_EXECUTABLE = 126,
	CONFINE_NOT_FOUND = 127,
};

/* "confine: " and the message as one line on stderr, in one write. Control characters and bytes
 * that are not UTF-8 come out as \xNN, so that a file name cannot speak to the terminal. */
void report(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* report() and exit. */
void refuse(int status, const char *format, ...) __attribute__((format(printf, 2, 3), noreturn));

const char *errno_name(int error); /* "ENOENT"; "errno" for one without a name here */

/* A string as JSON on stdout. Bytes that are not UTF-8 become lone low surrogates, which Python's
 * surrogateescape turns back into the bytes. */
void json_string(const char *text);

/* The names of the bits set in `bits` as a JSON array on stdout; names[i] belongs to bit i. */
void json_names(uint64_t bits, const char *const *names, unsigned int n_names);

#endif
