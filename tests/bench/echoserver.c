/* SPDX-License-Identifier: Apache-2.0
 *
 * The floor of an exec over a socket: reads a request, spawns one command with posix_spawn(3),
 * waits for it, answers.  No parsing beyond the message's end, no confinement, no capture, no
 * audit.
 *
 *   echoserver SOCKET -- PROGRAM ARGUMENTS
 *
 * A thread per connection.  Says `ready` on stdout once it listens; ends when stdin does.
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <spawn.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>

#include "http.h"
#include "turns.h"

extern char **environ;

static const char reply[] = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}";
static char **command;

static int run_command(void)
{
	int status;
	pid_t pid;

	if (posix_spawn(&pid, command[0], NULL, NULL, command, environ) != 0)
		return -1;
	return waitpid(pid, &status, 0) == pid && status == 0 ? 0 : -1;
}

static void *serve(void *argument)
{
	char *buffer = malloc(MESSAGE_MAX);
	int fd = (int)(intptr_t)argument;

	while (buffer != NULL && read_message(fd, buffer) > 0)
		if (run_command() != 0 || write(fd, reply, sizeof(reply) - 1) < 0)
			break;
	free(buffer);
	close(fd);
	return NULL;
}

static void *accept_all(void *argument)
{
	int listener = (int)(intptr_t)argument, fd;
	pthread_t thread;

	while ((fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC)) >= 0)
		if (pthread_create(&thread, NULL, serve, (void *)(intptr_t)fd) != 0 ||
		    pthread_detach(thread) != 0)
			fail("thread");
	return NULL;
}

int main(int argc, char **argv)
{
	struct sockaddr_un address = {.sun_family = AF_UNIX};
	int listener = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
	pthread_t thread;

	if (argc < 4 || strlen(argv[1]) >= sizeof(address.sun_path))
		return 2;
	command = argv + 3;
	strcpy(address.sun_path, argv[1]);
	if (listener < 0 || bind(listener, (struct sockaddr *)&address, sizeof(address)) != 0 ||
	    listen(listener, 128) != 0)
		fail(argv[1]);
	if (pthread_create(&thread, NULL, accept_all, (void *)(intptr_t)listener) != 0)
		fail("thread");
	printf("ready\n");
	fflush(stdout);
	while (getchar() != EOF)
		;
	return 0;
}
