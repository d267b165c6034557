// What a program sees of its device beside libibverbs, by each call that takes a path, and by
// getifaddrs. Prints "ok", or the check that failed.

#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

struct ibv_device;
struct ibv_device **ibv_get_device_list(int *);

#define NODE "/dev/infiniband/uverbs0"
#define TYPE "/sys/class/infiniband/rxe0/ports/1/gid_attrs/types/0"
#define CHECK(what) do { if (!(what)) { printf("line %d: %s: %m\n", __LINE__, #what); exit(1); } } while (0)

static int has_address(const char *wanted, int loopback)
{
	struct ifaddrs *list, *at;
	int found = 0;

	CHECK(!getifaddrs(&list));
	for (at = list; at; at = at->ifa_next) {
		struct sockaddr_in *in = (void *)at->ifa_addr, *mask = (void *)at->ifa_netmask;

		if (!in || in->sin_family != AF_INET || !!(at->ifa_flags & IFF_LOOPBACK) != loopback)
			continue;
		CHECK(at->ifa_name[0] && mask->sin_family == AF_INET);
		if (in->sin_addr.s_addr == htonl(0x7f000000 | atoi(wanted)))
			found += mask->sin_addr.s_addr == htonl(0xff000000);
	}
	freeifaddrs(list);
	return found;
}

static void looks_open(const char *last)
{
	struct stat st;
	struct statx stx;
	char text[64], path[4096];
	int fd;
	FILE *file;
	DIR *folder;

	CHECK(!stat(NODE, &st) && S_ISCHR(st.st_mode));
	CHECK(!fstatat(AT_FDCWD, NODE, &st, 0) && S_ISCHR(st.st_mode));
	CHECK(!statx(AT_FDCWD, NODE, 0, STATX_BASIC_STATS, &stx) && S_ISCHR(stx.stx_mode));
	CHECK(!lstat(TYPE, &st) && S_ISREG(st.st_mode));
	CHECK(!access(NODE, R_OK | W_OK) && !faccessat(AT_FDCWD, NODE, R_OK | W_OK, 0));
	CHECK((fd = open(TYPE, O_RDONLY)) >= 0 && read(fd, text, 8) == 8 && !memcmp(text, "RoCE v2\n", 8));
	close(fd);
	CHECK((fd = openat(AT_FDCWD, TYPE, O_RDONLY | O_CLOEXEC)) >= 0);
	close(fd);
	CHECK((file = fopen("/sys/class/infiniband/rxe0/ports/1/gid_attrs/ndevs/0", "r")));
	CHECK(fgets(text, sizeof text, file) && !strcmp(text, "lo\n"));
	fclose(file);
	CHECK((file = fopen("/sys/class/infiniband/rxe0/ports/1/gids/0", "r")));
	CHECK(fgets(text, sizeof text, file) && !strncmp(text, "0000:0000:0000:0000:0000:ffff:7f", 32));
	fclose(file);
	CHECK((folder = opendir("/sys/class/infiniband")));
	for (struct dirent *entry; (entry = readdir(folder));)
		CHECK(entry->d_name[0] == '.' || !strcmp(entry->d_name, "rxe0"));
	closedir(folder);
	CHECK(realpath(TYPE, path) && strcmp(path, TYPE));
	CHECK(readlink(NODE, path, sizeof path) > 0);
	// What is not there, and what leads out of the folders again.
	CHECK(access("/dev/infiniband/uverbs9", F_OK) && errno == ENOENT);
	CHECK(!access("/dev/infiniband/../null", F_OK) || errno == ENOENT);
	CHECK(access("/sys/class/infiniband/rxe0/../../../../dev/infiniband/uverbs0", F_OK));
	CHECK(has_address(last, 0) == 1);
}

int main(int argc, char **argv)
{
	const char *last = argv[argc - 1];
	char own[4096];
	int status;

	// A file that is made gets the mode that was asked for.
	int fd = open(argv[1], O_CREAT | O_EXCL | O_WRONLY, 0640);
	struct stat st;

	CHECK(fd >= 0 && !fstat(fd, &st) && (st.st_mode & 0777) == 0640);
	// No device is open: the machine's own files, of which it may have none, and interfaces.
	CHECK(access(TYPE, F_OK) && !has_address(last, 0));
	CHECK(ibv_get_device_list(NULL));
	looks_open(last);
	// A child of a fork has opened none; it could open one of its own.
	if (!fork()) {
		CHECK(access(TYPE, F_OK) && !has_address(last, 0));
		exit(0);
	}
	CHECK(wait(&status) > 0 && !status);
	CHECK(realpath("/proc/self/exe", own));
	printf("ok\n");
	return 0;
}
