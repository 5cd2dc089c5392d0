/* SPDX-License-Identifier: Apache-2.0
 *
 * The baseline: what ordinary programs need of the system besides the roots they work in.
 *
 * Every row is optional: one that this system does not have is skipped.  Rows marked FOLLOW may be
 * symbolic links on some system (usr-merge, alternatives, resolver files kept in /run); all of
 * them lie where only root can put one.
 *
 * /etc is granted file by file, because Landlock cannot subtract: a rule on /etc would give a
 * command that runs as root the password hashes and every private key below it.  For the same
 * reason certificates are granted and the directories beside them that hold keys are not.
 * /proc is readable as a whole: a rule names an inode and a process's own /proc/PID does not exist
 * yet.  Other processes' names and command lines can be read; their memory, environment and
 * descriptors cannot (Landlock's ptrace rule).
 */
#include "sandbox.h"

#define READ SANDBOX_READ
#define EXEC (SANDBOX_READ | SANDBOX_EXEC)
#define DEVICE_NODE (SANDBOX_READ | SANDBOX_WRITE) /* no ioctl: none of these nodes needs one */
#define FOLLOW 1

static const struct sandbox_baseline_row rows[] = {
	/* Programs and libraries. Where /bin and /lib are links they lead below /usr. */
	{"/usr", EXEC, 0},
	{"/bin", EXEC, FOLLOW},
	{"/sbin", EXEC, FOLLOW},
	{"/lib", EXEC, FOLLOW},
	{"/lib64", EXEC, FOLLOW},
	{"/lib32", EXEC, FOLLOW},
	{"/nix/store", EXEC, 0},
	{"/gnu/store", EXEC, 0},

	/* Device nodes that reach nobody. */
	{"/dev/null", DEVICE_NODE, 0},
	{"/dev/zero", DEVICE_NODE, 0},
	{"/dev/full", DEVICE_NODE, 0},
	{"/dev/random", DEVICE_NODE, 0},
	{"/dev/urandom", DEVICE_NODE, 0},

	/* The kernel's own files. */
	{"/proc", READ, 0},
	{"/sys/devices/system/cpu", READ, 0},
	{"/sys/devices/system/node", READ, 0},
	{"/sys/fs/cgroup", READ, 0},
	{"/sys/kernel/mm/transparent_hugepage", READ, 0},

	/* The dynamic loader: glibc, then musl. */
	{"/etc/ld.so.cache", READ, FOLLOW},
	{"/etc/ld.so.conf", READ, FOLLOW},
	{"/etc/ld.so.conf.d", READ, FOLLOW},
	{"/etc/ld.so.preload", READ, FOLLOW},
	{"/etc/ld-musl-x86_64.path", READ, FOLLOW},
	{"/etc/alternatives", READ, FOLLOW},

	/* Names of users, hosts and services. */
	{"/etc/passwd", READ, FOLLOW},
	{"/etc/group", READ, FOLLOW},
	{"/etc/nsswitch.conf", READ, FOLLOW},
	{"/etc/hosts", READ, FOLLOW},
	{"/etc/host.conf", READ, FOLLOW},
	{"/etc/hostname", READ, FOLLOW},
	{"/etc/resolv.conf", READ, FOLLOW},
	{"/etc/gai.conf", READ, FOLLOW},
	{"/etc/services", READ, FOLLOW},
	{"/etc/protocols", READ, FOLLOW},
	{"/etc/networks", READ, FOLLOW},
	{"/etc/rpc", READ, FOLLOW},

	/* Trusted certificates, never a directory with private keys: Debian and Arch, Fedora, SUSE.
	 */
	{"/etc/ssl/certs", READ, FOLLOW},
	{"/etc/ssl/cert.pem", READ, FOLLOW},
	{"/etc/ssl/openssl.cnf", READ, FOLLOW},
	{"/etc/ca-certificates", READ, FOLLOW},
	{"/etc/ca-certificates.conf", READ, FOLLOW},
	{"/etc/crypto-policies", READ, FOLLOW},
	{"/etc/pki/ca-trust", READ, FOLLOW},
	{"/etc/pki/java", READ, FOLLOW},
	{"/etc/pki/tls/cert.pem", READ, FOLLOW},
	{"/etc/pki/tls/certs", READ, FOLLOW},
	{"/etc/pki/tls/openssl.cnf", READ, FOLLOW},
	{"/var/lib/ca-certificates", READ, FOLLOW},

	/* What this system is, where and when. */
	{"/etc/os-release", READ, FOLLOW},
	{"/etc/lsb-release", READ, FOLLOW},
	{"/etc/debian_version", READ, FOLLOW},
	{"/etc/redhat-release", READ, FOLLOW},
	{"/etc/alpine-release", READ, FOLLOW},
	{"/etc/localtime", READ, FOLLOW},
	{"/etc/timezone", READ, FOLLOW},
	{"/etc/locale.conf", READ, FOLLOW},
	{"/etc/login.defs", READ, FOLLOW},
	{"/etc/shells", READ, FOLLOW},
	{"/etc/mime.types", READ, FOLLOW},
	{"/etc/magic", READ, FOLLOW},

	/* Shells, terminals, editors. */
	{"/etc/profile", READ, FOLLOW},
	{"/etc/profile.d", READ, FOLLOW},
	{"/etc/bash.bashrc", READ, FOLLOW},
	{"/etc/bashrc", READ, FOLLOW},
	{"/etc/zsh", READ, FOLLOW},
	{"/etc/inputrc", READ, FOLLOW},
	{"/etc/terminfo", READ, FOLLOW},
	{"/etc/vim", READ, FOLLOW},
	{"/etc/vimrc", READ, FOLLOW},
	{"/etc/nanorc", READ, FOLLOW},
	{"/etc/fonts", READ, FOLLOW},

	/* Development tools. git and wget stop or complain when theirs exists and cannot be read.
	 */
	{"/etc/gitconfig", READ, FOLLOW},
	{"/etc/gitattributes", READ, FOLLOW},
	{"/etc/wgetrc", READ, FOLLOW},
	{"/etc/pip.conf", READ, FOLLOW},
	{"/etc/npmrc", READ, FOLLOW},
	{"/etc/gdb", READ, FOLLOW},
	{"/etc/perl", READ, FOLLOW},
	{"/etc/python3", READ, FOLLOW},
	{"/etc/python3.11", READ, FOLLOW},
	{"/etc/python3.12", READ, FOLLOW},
	{"/etc/python3.13", READ, FOLLOW},
	{"/etc/python3.14", READ, FOLLOW},
	{"/etc/java", READ, FOLLOW},
	{"/etc/java-11-openjdk", READ, FOLLOW},
	{"/etc/java-17-openjdk", READ, FOLLOW},
	{"/etc/java-21-openjdk", READ, FOLLOW},
	{"/etc/java-25-openjdk", READ, FOLLOW},
};

const struct sandbox_baseline_row *sandbox_baseline(size_t row)
{
	static const struct sandbox_baseline_row end = {NULL, 0, 0};

	return row < sizeof(rows) / sizeof(*rows) ? &rows[row] : &end;
}
