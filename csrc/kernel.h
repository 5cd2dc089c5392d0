/* SPDX-License-Identifier: Apache-2.0
 *
 * Kernel constants newer than the build headers, each with the version that introduced it, and raw
 * system call wrappers under their own names.  The man pages are the documentation.
 */
#ifndef SANDBOX_KERNEL_H
#define SANDBOX_KERNEL_H

#if !defined(__x86_64__)
#error "the filter table is judged for x86-64 only; another architecture needs its own table and proof"
#endif

#include <stdint.h>
#include <sys/syscall.h>

/* Landlock, include/uapi/linux/landlock.h */
#define LL_FS_EXECUTE (1ULL << 0) /* ABI 1, Linux 5.13 */
#define LL_FS_WRITE_FILE (1ULL << 1)
#define LL_FS_READ_FILE (1ULL << 2)
#define LL_FS_READ_DIR (1ULL << 3)
#define LL_FS_REMOVE_DIR (1ULL << 4)
#define LL_FS_REMOVE_FILE (1ULL << 5)
#define LL_FS_MAKE_CHAR (1ULL << 6)
#define LL_FS_MAKE_DIR (1ULL << 7)
#define LL_FS_MAKE_REG (1ULL << 8)
#define LL_FS_MAKE_SOCK (1ULL << 9)
#define LL_FS_MAKE_FIFO (1ULL << 10)
#define LL_FS_MAKE_BLOCK (1ULL << 11)
#define LL_FS_MAKE_SYM (1ULL << 12)
#define LL_FS_REFER (1ULL << 13)        /* ABI 2, Linux 5.19 */
#define LL_FS_TRUNCATE (1ULL << 14)     /* ABI 3, Linux 6.2 */
#define LL_FS_IOCTL_DEV (1ULL << 15)    /* ABI 5, Linux 6.10 */
#define LL_FS_RESOLVE_UNIX (1ULL << 16) /* ABI 9, Linux 7.1 */
#define LL_NET_BIND_TCP (1ULL << 0)     /* ABI 4, Linux 6.7 */
#define LL_NET_CONNECT_TCP (1ULL << 1)
#define LL_SCOPE_ABSTRACT_UNIX (1ULL << 0) /* ABI 6, Linux 6.12 */
#define LL_SCOPE_SIGNAL (1ULL << 1)
#define LL_CREATE_RULESET_VERSION (1U << 0)
#define LL_CREATE_RULESET_ERRATA (1U << 1) /* Linux 6.15 and stable backports */
#define LL_RULE_PATH_BENEATH 1

struct ll_ruleset_attr { /* grows with the ABI; the size passed says which fields are meant */
	uint64_t handled_access_fs;
	uint64_t handled_access_net; /* ABI 4 */
	uint64_t scoped;             /* ABI 6 */
};

struct ll_path_beneath_attr {
	uint64_t allowed_access;
	int32_t parent_fd;
} __attribute__((packed));

#define NR_landlock_create_ruleset 444
#define NR_landlock_add_rule 445
#define NR_landlock_restrict_self 446
#define NR_clone3 435
#define NR_close_range 436
#define NR_openat2 437

#define KERNEL_CLOSE_RANGE_UNSHARE (1U << 1)      /* Linux 5.9 */
#define KERNEL_CLONE_CLEAR_SIGHAND 0x100000000ULL /* Linux 5.5 */
#define KERNEL_CLONE_INTO_CGROUP 0x200000000ULL   /* Linux 5.7 */
#define KERNEL_AT_EXECVE_CHECK 0x10000            /* Linux 6.14: only ask whether it may run */

/* A raw system call: no errno, no cancellation point, safe in a vfork child. Returns -errno. */
static inline long raw6(long number, long a, long b, long c, long d, long e, long f)
{
	long result;
	register long r10 __asm__("r10") = d;
	register long r8 __asm__("r8") = e;
	register long r9 __asm__("r9") = f;
	__asm__ volatile("syscall"
			 : "=a"(result)
			 : "a"(number), "D"(a), "S"(b), "d"(c), "r"(r10), "r"(r8), "r"(r9)
			 : "rcx", "r11", "memory");
	return result;
}

static inline long raw5(long n, long a, long b, long c, long d, long e)
{
	return raw6(n, a, b, c, d, e, 0);
}
static inline long raw4(long n, long a, long b, long c, long d)
{
	return raw6(n, a, b, c, d, 0, 0);
}
static inline long raw3(long n, long a, long b, long c)
{
	return raw6(n, a, b, c, 0, 0, 0);
}
static inline long raw2(long n, long a, long b)
{
	return raw6(n, a, b, 0, 0, 0, 0);
}
static inline long raw1(long n, long a)
{
	return raw6(n, a, 0, 0, 0, 0, 0);
}
static inline long raw0(long n)
{
	return raw6(n, 0, 0, 0, 0, 0, 0);
}

#endif
