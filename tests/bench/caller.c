/* SPDX-License-Identifier: Apache-2.0
 *
 * A client in C, so that no client's cost hides a server's: sends one prepared HTTP request over a
 * Unix stream socket and reads the reply, which must be a 200.
 *
 *   caller SOCKET REQUEST-FILE
 *
 * A worker as in turns.h on one connection kept alive; besides, the line `load C MS` opens C
 * connections at once for MS milliseconds and answers with the requests done and the ns they took.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <sys/socket.h>
#include <sys/un.h>

#include "http.h"
#include "turns.h"

#define CONNECTIONS_MAX 64

struct connection {
	pthread_t thread;
	int fd;
	int64_t deadline_ns;
	long done;
};

static char request[MESSAGE_MAX];
static size_t request_bytes;
static const char *server;

static void read_request(const char *path)
{
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	ssize_t got = fd < 0 ? -1 : read(fd, request, sizeof(request));

	if (got <= 0)
		fail(path);
	request_bytes = (size_t)got;
	close(fd);
}

static int connect_to_server(void)
{
	struct sockaddr_un address = {.sun_family = AF_UNIX};
	int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);

	strncpy(address.sun_path, server, sizeof(address.sun_path) - 1);
	if (fd < 0 || connect(fd, (struct sockaddr *)&address, sizeof(address)) != 0)
		fail(server);
	return fd;
}

static void call(int fd)
{
	static __thread char reply[MESSAGE_MAX];

	if (write(fd, request, request_bytes) != (ssize_t)request_bytes ||
	    read_message(fd, reply) == 0)
		fail("call");
	if (strncmp(reply, "HTTP/1.1 200", 12) != 0) {
		fprintf(stderr, "caller: %.600s\n", reply);
		exit(1);
	}
}

static void *keep_calling(void *argument)
{
	struct connection *connection = argument;

	while (now_ns() < connection->deadline_ns) {
		call(connection->fd);
		connection->done++;
	}
	return NULL;
}

static void load(int n_connections, long duration_ms)
{
	static struct connection connections[CONNECTIONS_MAX];
	int64_t start;
	long done = 0;

	for (int i = 0; i < n_connections; i++)
		connections[i].fd = connect_to_server();
	start = now_ns();
	for (int i = 0; i < n_connections; i++) {
		connections[i].done = 0;
		connections[i].deadline_ns = start + duration_ms * 1000000;
		if (pthread_create(&connections[i].thread, NULL, keep_calling, &connections[i]) !=
		    0)
			fail("thread");
	}
	for (int i = 0; i < n_connections; i++) {
		pthread_join(connections[i].thread, NULL);
		close(connections[i].fd);
		done += connections[i].done;
	}
	printf("%ld %lld\n", done, (long long)(now_ns() - start));
}

static void latencies(int fd, int count)
{
	for (; count > 0; count--) {
		int64_t start = now_ns();

		call(fd);
		printf("%lld ", (long long)(now_ns() - start));
	}
	printf("\n");
}

int main(int argc, char **argv)
{
	int n_connections, fd;
	long duration_ms;
	char line[64];

	if (argc != 3)
		return 2;
	server = argv[1];
	read_request(argv[2]);
	fd = connect_to_server();
	while (fgets(line, sizeof(line), stdin) != NULL) {
		if (sscanf(line, "load %d %ld", &n_connections, &duration_ms) != 2)
			latencies(fd, atoi(line));
		else if (n_connections <= CONNECTIONS_MAX)
			load(n_connections, duration_ms);
		fflush(stdout);
	}
	return 0;
}
