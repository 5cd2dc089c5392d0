/* SPDX-License-Identifier: Apache-2.0
 *
 * The smallest program there is: exit_group(0).  No libc, no loader, one page.  What is left of a
 * spawn of it is the spawn itself.
 */
	.globl _start
	.text
_start:
	movl $231, %eax /* exit_group */
	xorl %edi, %edi
	syscall
	.section .note.GNU-stack, "", @progbits
