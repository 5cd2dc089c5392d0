/* SPDX-License-Identifier: Apache-2.0
 *
 * What may be given to a confined child as stdin, stdout or stderr.
 */
#ifndef SANDBOX_STDFD_H
#define SANDBOX_STDFD_H

#include <stdint.h>

/* -EBADF: not open.  -EPROTOTYPE: a socket that the child could aim at somebody else, which is
 * every one but a connected Unix stream or seqpacket socket.  Negative descriptors mean /dev/null.
 */
int sandbox_check_stdio(const int32_t stdio[3]);

#endif
