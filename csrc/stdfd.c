/* SPDX-License-Identifier: Apache-2.0
 *
 * Refuses stdio that is a way out.  The filter stops the making of sockets, not the use of one that
 * is there: an unconnected one can be connected, a datagram one re-connected or sent from with an
 * address, to any socket of the host.  A connected Unix stream socket can not (EISCONN).
 */
#include "stdfd.h"

#include <errno.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>

static int is_harmless_socket(int fd)
{
	struct sockaddr_un peer;
	socklen_t size = sizeof(peer);
	int type = 0;
	socklen_t type_size = sizeof(type);

	if (getsockopt(fd, SOL_SOCKET, SO_TYPE, &type, &type_size))
		return 0;
	if (type != SOCK_STREAM && type != SOCK_SEQPACKET)
		return 0;
	return !getpeername(fd, (struct sockaddr *)&peer, &size) && peer.sun_family == AF_UNIX;
}

int sandbox_check_stdio(const int32_t stdio[3])
{
	for (int i = 0; i < 3; i++) {
		struct stat status;

		if (stdio[i] < 0)
			continue;
		if (fstat(stdio[i], &status))
			return -errno;
		if (S_ISSOCK(status.st_mode) && !is_harmless_socket(stdio[i]))
			return -EPROTOTYPE;
	}
	return 0;
}
