/* Makes calls of the C library fail, or clocks jump, in every process that LD_PRELOADs this, while a control file says so.
 *
 * CHAOS_CONTROL: a file of 24 bytes that is mapped: int64 errno (0: nothing fails), int64 share of the calls in percent,
 * int64 seconds that the clock is ahead. CHAOS_BELOW: only files whose path begins so fail. Paths are noted when a file is
 * opened, so that nothing is asked of the kernel later: sandboxed programs may not ask. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

#define MOST 65536
static volatile int64_t *control;
static const char *below;
static size_t below_length;
static unsigned char watched[MOST];
static unsigned int counter;

#define REAL(name) __typeof__(&name) real = (__typeof__(&name))dlsym(RTLD_NEXT, #name)

__attribute__((constructor)) static void begin(void) {
    const char *path = getenv("CHAOS_CONTROL");
    below = getenv("CHAOS_BELOW");
    int file = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    if (file < 0 || !below) return;
    below_length = strlen(below);
    void *mapped = mmap(NULL, 24, PROT_READ, MAP_SHARED, file, 0);
    close(file);
    if (mapped == MAP_FAILED) return;
    char link[64], target[PATH_MAX];
    for (int i = 0; i < 64; i++) { /* what was inherited: a stage prints into a log that its parent opened */
        snprintf(link, sizeof link, "/proc/self/fd/%d", i);
        ssize_t n = readlink(link, target, sizeof target - 1);
        watched[i] = n > 0 && (size_t)n >= below_length && !strncmp(target, below, below_length);
    }
    control = mapped;
}

static int fails(void) {
    if (!control || !control[0]) return 0;
    unsigned int n = __atomic_add_fetch(&counter, 1, __ATOMIC_RELAXED) * 2654435761u;
    if ((int64_t)((n >> 8) % 100) >= control[1]) return 0;
    errno = (int)control[0];
    return 1;
}

static int is_below(const char *path) {
    char absolute[PATH_MAX];
    if (!control || !path) return 0;
    if (path[0] == '/') return !strncmp(path, below, below_length);
    if (!control[0] || !getcwd(absolute, sizeof absolute - 1)) return 0;
    return !strncmp(absolute, below, below_length);
}

static int noted(int file, const char *path) {
    if (file >= 0 && file < MOST) watched[file] = path[0] == '/' ? is_below(path) : 0;
    return file;
}

#define OPENS(name, ...)                                                                                             \
    mode_t mode = 0;                                                                                                 \
    if (flags & (O_CREAT | O_TMPFILE)) {                                                                             \
        va_list rest;                                                                                                \
        va_start(rest, flags);                                                                                       \
        mode = va_arg(rest, mode_t);                                                                                 \
        va_end(rest);                                                                                                \
    }                                                                                                                \
    if ((flags & (O_WRONLY | O_RDWR | O_CREAT)) && is_below(path) && fails()) return -1;                             \
    REAL(name);                                                                                                      \
    return noted(real(__VA_ARGS__), path);

int open(const char *path, int flags, ...) { OPENS(open, path, flags, mode) }
int open64(const char *path, int flags, ...) { OPENS(open64, path, flags, mode) }
int openat(int at, const char *path, int flags, ...) { OPENS(openat, at, path, flags, mode) }
int openat64(int at, const char *path, int flags, ...) { OPENS(openat64, at, path, flags, mode) }

#define FAILS_ON(file) (control && control[0] && (file) >= 0 && (file) < MOST && watched[file] && fails())

ssize_t write(int file, const void *data, size_t size) {
    if (FAILS_ON(file)) return -1;
    REAL(write);
    return real(file, data, size);
}
ssize_t pwrite64(int file, const void *data, size_t size, off64_t offset) {
    if (FAILS_ON(file)) return -1;
    REAL(pwrite64);
    return real(file, data, size, offset);
}
ssize_t writev(int file, const struct iovec *data, int count) {
    if (FAILS_ON(file)) return -1;
    REAL(writev);
    return real(file, data, count);
}
int fsync(int file) {
    if (FAILS_ON(file)) return -1;
    REAL(fsync);
    return real(file);
}
int rename(const char *from, const char *to) {
    if (is_below(to) && fails()) return -1;
    REAL(rename);
    return real(from, to);
}
int mkdir(const char *path, mode_t mode) {
    if (is_below(path) && fails()) return -1;
    REAL(mkdir);
    return real(path, mode);
}
int clock_gettime(clockid_t clock, struct timespec *now) {
    REAL(clock_gettime);
    int code = real(clock, now);
    if (!code && control && clock == CLOCK_REALTIME) now->tv_sec += control[2];
    return code;
}
time_t time(time_t *out) {
    REAL(time);
    time_t now = real(NULL) + (control ? control[2] : 0);
    if (out) *out = now;
    return now;
}
