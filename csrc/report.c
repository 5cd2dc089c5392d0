/* SPDX-License-Identifier: Apache-2.0
 *
 * What confine says to people and to programs; see report.h.
 */
#include "report.h"

#include <errno.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define MESSAGE_MAX 12288 /* two paths and some words */

/* The length of the well-formed UTF-8 sequence at `text` (RFC 3629: no overlong forms, no
 * surrogates, nothing above U+10FFFF), 0 when there is none. */
static size_t utf8_length(const unsigned char *text)
{
	static const struct {
		unsigned char first, last, low, high; /* lead byte; range of the second byte */
		size_t length;
	} forms[] = {
		{0x01, 0x7f, 0x00, 0xff, 1}, {0xc2, 0xdf, 0x80, 0xbf, 2},
		{0xe0, 0xe0, 0xa0, 0xbf, 3}, {0xe1, 0xec, 0x80, 0xbf, 3},
		{0xed, 0xed, 0x80, 0x9f, 3}, {0xee, 0xef, 0x80, 0xbf, 3},
		{0xf0, 0xf0, 0x90, 0xbf, 4}, {0xf1, 0xf3, 0x80, 0xbf, 4},
		{0xf4, 0xf4, 0x80, 0x8f, 4},
	};

	for (size_t i = 0; i < sizeof(forms) / sizeof(*forms); i++) {
		if (*text < forms[i].first || *text > forms[i].last)
			continue;
		if (forms[i].length > 1 && (text[1] < forms[i].low || text[1] > forms[i].high))
			return 0;
		for (size_t k = 2; k < forms[i].length; k++) {
			if ((text[k] & 0xc0) != 0x80)
				return 0;
		}
		return forms[i].length;
	}
	return 0;
}

/* Whether the sequence may go to a terminal as it is: no C0 or C1 control, not DEL. */
static int is_printable(const unsigned char *text, size_t length)
{
	if (length == 1)
		return *text >= 0x20 && *text != 0x7f;
	return length > 1 && !(text[0] == 0xc2 && text[1] < 0xa0);
}

static size_t escape(const char *message, char *line, size_t size)
{
	const unsigned char *text = (const unsigned char *)message;
	size_t used = 0;

	while (*text && used + 8 < size) {
		size_t length = utf8_length(text);

		if (is_printable(text, length)) {
			memcpy(line + used, text, length);
			used += length;
			text += length;
		} else {
			used += (size_t)snprintf(line + used, 5, "\\x%02x", *text);
			text++;
		}
	}
	return used;
}

static void __attribute__((format(printf, 1, 0))) say(const char *format, va_list arguments)
{
	static char message[MESSAGE_MAX], line[MESSAGE_MAX];
	size_t used = sizeof("confine: ") - 1;

	memcpy(line, "confine: ", used);
	(void)vsnprintf(message, sizeof(message), format, arguments); /* cut off when too long */
	used += escape(message, line + used, sizeof(line) - used);
	line[used++] = '\n';
	if (write(STDERR_FILENO, line, used) < 0) {
		/* nobody listens; the exit code still says it */
	}
}

void report(const char *format, ...)
{
	va_list arguments;

	va_start(arguments, format);
	say(format, arguments);
	va_end(arguments);
}

void refuse(int status, const char *format, ...)
{
	va_list arguments;

	va_start(arguments, format);
	say(format, arguments);
	va_end(arguments);
	exit(status);
}

const char *errno_name(int error)
{
	static const struct {
		int error;
		const char *name;
	} names[] = {
		{EPERM, "EPERM"},
		{ENOENT, "ENOENT"},
		{EINTR, "EINTR"},
		{EIO, "EIO"},
		{ENXIO, "ENXIO"},
		{E2BIG, "E2BIG"},
		{ENOEXEC, "ENOEXEC"},
		{EBADF, "EBADF"},
		{ECHILD, "ECHILD"},
		{EAGAIN, "EAGAIN"},
		{ENOMEM, "ENOMEM"},
		{EACCES, "EACCES"},
		{EFAULT, "EFAULT"},
		{EBUSY, "EBUSY"},
		{ENODEV, "ENODEV"},
		{ENOTDIR, "ENOTDIR"},
		{EISDIR, "EISDIR"},
		{EINVAL, "EINVAL"},
		{ENFILE, "ENFILE"},
		{EMFILE, "EMFILE"},
		{ETXTBSY, "ETXTBSY"},
		{ENOSPC, "ENOSPC"},
		{EROFS, "EROFS"},
		{EPIPE, "EPIPE"},
		{ERANGE, "ERANGE"},
		{ENAMETOOLONG, "ENAMETOOLONG"},
		{ENOSYS, "ENOSYS"},
		{ELOOP, "ELOOP"},
		{ENOMSG, "ENOMSG"},
		{EOVERFLOW, "EOVERFLOW"},
		{EBADFD, "EBADFD"},
		{ELIBBAD, "ELIBBAD"},
		{EOPNOTSUPP, "EOPNOTSUPP"},
		{ETIMEDOUT, "ETIMEDOUT"},
		{ESTALE, "ESTALE"},
		{EDQUOT, "EDQUOT"},
		{EKEYREVOKED, "EKEYREVOKED"},
		{ESRCH, "ESRCH"},
		{EEXIST, "EEXIST"},
		{EXDEV, "EXDEV"},
		{ENOTTY, "ENOTTY"},
		{EBADE, "EBADE"},
		{ENOKEY, "ENOKEY"},
		{EPROTOTYPE, "EPROTOTYPE"},
		{EPROTONOSUPPORT, "EPROTONOSUPPORT"},
		{EAFNOSUPPORT, "EAFNOSUPPORT"},
		{EISCONN, "EISCONN"},
		{ECONNREFUSED, "ECONNREFUSED"},
	};

	for (size_t i = 0; i < sizeof(names) / sizeof(*names); i++) {
		if (names[i].error == error)
			return names[i].name;
	}
	return "errno";
}

void json_string(const char *text)
{
	const unsigned char *bytes = (const unsigned char *)text;

	putchar('"');
	while (*bytes) {
		size_t length = utf8_length(bytes);

		if (*bytes == '"' || *bytes == '\\')
			printf("\\%c", *bytes);
		else if (length == 0)
			printf("\\udc%02x", *bytes);
		else if (length == 1 && (*bytes < 0x20 || *bytes == 0x7f))
			printf("\\u%04x", *bytes);
		else
			(void)fwrite(bytes, 1, length,
				     stdout); /* the caller checks ferror at the end */
		bytes += length ? length : 1;
	}
	putchar('"');
}

void json_names(uint64_t bits, const char *const *names, unsigned int n_names)
{
	const char *separator = "";

	putchar('[');
	for (unsigned int bit = 0; bit < n_names; bit++) {
		if (!(bits & (1ULL << bit)))
			continue;
		printf("%s\"%s\"", separator, names[bit]);
		separator = ", ";
	}
	putchar(']');
}
