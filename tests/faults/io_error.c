// Preloaded into a program under test: while the file that EPS_IO_ERROR names is there, the calls whose names stand in it
// fail with EIO on a checkpoint, or a failure.json, that is being written. A disk that breaks, without breaking one. Where "hang" stands in it
// fsync does not come back; EPS_IO_ERROR with .hangs behind it is made first.

#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>
#include <unistd.h>

static int Fails(const char* call, const char* path) {
  if (strstr(path, ".tmp-step-") == NULL && strstr(path, "failure.json.tmp.") == NULL) return 0;
  const char* trigger = getenv("EPS_IO_ERROR");
  FILE* file = trigger == NULL ? NULL : fopen(trigger, "re");
  if (file == NULL) return 0;
  char calls[256] = "";
  const size_t length = fread(calls, 1, sizeof(calls) - 1, file);
  calls[length] = '\0';
  fclose(file);
  return strstr(calls, call) != NULL;
}

static int DescriptorFails(const char* call, int fd) {
  char link[64], path[4096];
  snprintf(link, sizeof(link), "/proc/self/fd/%d", fd);
  const ssize_t length = readlink(link, path, sizeof(path) - 1);
  if (length < 0) return 0;
  path[length] = '\0';
  return Fails(call, path);
}

#define NEXT(name, type) ((type)dlsym(RTLD_NEXT, name))

typedef ssize_t (*Pwrite)(int, const void*, size_t, off_t);
typedef int (*Fsync)(int);
typedef int (*Rename)(const char*, const char*);
typedef int (*Link)(const char*, const char*);

ssize_t pwrite(int fd, const void* bytes, size_t num_bytes, off_t offset) {
  if (!DescriptorFails("pwrite", fd)) return NEXT("pwrite", Pwrite)(fd, bytes, num_bytes, offset);
  errno = EIO;
  return -1;
}

static void HangsAsLongAsItSays(int fd) {
  char path[4096];
  if (!DescriptorFails("hang", fd)) return;
  snprintf(path, sizeof(path), "%s.hangs", getenv("EPS_IO_ERROR"));
  close(open(path, O_CREAT | O_WRONLY | O_CLOEXEC, 0600));
  while (DescriptorFails("hang", fd)) usleep(20000);
}

int fsync(int fd) {
  HangsAsLongAsItSays(fd);
  if (!DescriptorFails("fsync", fd)) return NEXT("fsync", Fsync)(fd);
  errno = EIO;
  return -1;
}

// With "made" beside it the link is there all the same, as over a network whose answer is lost.
int link(const char* from, const char* to) {
  if (!Fails("link", to)) return NEXT("link", Link)(from, to);
  if (Fails("made", to)) NEXT("link", Link)(from, to);
  errno = EIO;
  return -1;
}

int rename(const char* from, const char* to) {
  if (!Fails("rename", from)) return NEXT("rename", Rename)(from, to);
  errno = EIO;
  return -1;
}
