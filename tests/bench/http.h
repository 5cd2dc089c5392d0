/* SPDX-License-Identifier: Apache-2.0
 *
 * Just enough of HTTP/1.1 to find the end of a message with a Content-Length; for two programs that
 * talk to each other and to the broker, not for the world.
 */
#ifndef TESTS_BENCH_HTTP_H
#define TESTS_BENCH_HTTP_H

#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

#define MESSAGE_MAX 262144

/* Bytes of the whole message at the head of `text`, 0 while its header is incomplete. */
static inline size_t message_length(const char *text)
{
	const char *end = strstr(text, "\r\n\r\n");
	size_t body = 0;

	if (end == NULL)
		return 0;
	for (const char *line = text; line != NULL && line < end; line = strstr(line + 2, "\r\n")) {
		if (strncasecmp(line, "\r\ncontent-length:", 17) == 0)
			body = strtoul(line + 17, NULL, 10);
	}
	return (size_t)(end + 4 - text) + body;
}

/* Reads one message into `buffer`; its length, or 0 at end of file or on a message too long. */
static inline size_t read_message(int fd, char *buffer)
{
	size_t used = 0, whole = 0;

	while (whole == 0 || used < whole) {
		ssize_t got = read(fd, buffer + used, MESSAGE_MAX - 1 - used);

		if (got <= 0)
			return 0;
		used += (size_t)got;
		buffer[used] = '\0';
		whole = message_length(buffer);
	}
	return used;
}

#endif
