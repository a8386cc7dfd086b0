/* A program on a mount: it does to files what its input says, a line at a time, and answers each line
 * with one of its own: what came out, or "errno N", or "bus" where memory was not there. Open files and
 * their maps have numbers. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <unistd.h>

#define SLOTS 16
#define BYTES (1 << 20)

static struct { int fd; char *map; size_t len; } slot[SLOTS];
static char buffer[BYTES];
static sigjmp_buf fault;

static void on_fault(int signal) { (void)signal; siglongjmp(fault, 1); }

static void fill(char *to, size_t len, unsigned long seed) {
    for (size_t at = 0; at < len; at++) {
        seed = seed * 6364136223846793005UL + 1442695040888963407UL;
        to[at] = (char)(seed >> 33);
    }
}

static unsigned long digest(const volatile char *from, size_t len) {
    unsigned long sum = 14695981039346656037UL;
    for (size_t at = 0; at < len; at++) sum = (sum ^ (unsigned char)from[at]) * 1099511628211UL;
    return sum;
}

static void say(long outcome) {
    if (outcome < 0) printf("errno %d\n", errno); else printf("%ld\n", outcome);
}

static int opened(const char *path, const char *how) {
    int flags = 0;
    if (strchr(how, 'r') && strchr(how, 'w')) flags = O_RDWR;
    else if (strchr(how, 'w')) flags = O_WRONLY;
    if (strchr(how, 'c')) flags |= O_CREAT;
    if (strchr(how, 't')) flags |= O_TRUNC;
    if (strchr(how, 'a')) flags |= O_APPEND;
    return open(path, flags, 0644);
}

static int lock(const char *kind, int fd, char type, long from, long len) {
    if (!strcmp(kind, "flock"))
        return flock(fd, (type == 'r' ? LOCK_SH : type == 'w' ? LOCK_EX : LOCK_UN) | LOCK_NB);
    struct flock range = { .l_type = type == 'r' ? F_RDLCK : type == 'w' ? F_WRLCK : F_UNLCK,
                           .l_whence = SEEK_SET, .l_start = from, .l_len = len };
    return fcntl(fd, strcmp(kind, "ofd") ? F_SETLK : F_OFD_SETLK, &range);
}

static int set_time(int fd, long seconds) {
    struct timespec times[2] = { { .tv_nsec = UTIME_OMIT }, { .tv_sec = seconds } };
    return futimens(fd, times);
}

/* Through a pipe, as sendfile does: the pages of the kernel, and its idea of the size. */
static long spliced(int fd, long from, size_t len) {
    int ends[2];
    if (pipe2(ends, 0)) return -1;
    loff_t at = from;
    ssize_t moved = splice(fd, &at, ends[1], NULL, len < 65536 ? len : 65536, 0);
    ssize_t got = moved > 0 ? read(ends[0], buffer, (size_t)moved) : moved;
    int kept = errno;
    close(ends[0]);
    close(ends[1]);
    errno = kept;
    return got;
}

static void memory(const char *what, int s, long from, long len, long seed) {
    if (!slot[s].map || (size_t)(from + len) > slot[s].len) { puts("no map"); return; }
    if (sigsetjmp(fault, 1)) { puts("bus"); return; }
    if (!strcmp(what, "load")) printf("%lx\n", digest(slot[s].map + from, (size_t)len));
    else { fill(buffer, (size_t)len, (unsigned long)seed); memcpy(slot[s].map + from, buffer, (size_t)len); puts("0"); }
}

static void perform(char *line) {
    char what[16], text[4096] = "", how[16] = "";
    int s = 0;
    long a = 0, b = 0, c = 0, d = 0;
    if (sscanf(line, "%15s %d", what, &s) < 1 || s < 0 || s >= SLOTS) { puts("what?"); return; }
    if (!strcmp(what, "open")) {
        if (sscanf(line, "%*s %*d %15s %4095[^\n]", how, text) < 2) { puts("what?"); return; }
        slot[s].fd = opened(text, how);
        say(slot[s].fd < 0 ? -1 : 0);
        return;
    }
    if (!strcmp(what, "lock")) {
        if (sscanf(line, "%*s %*d %15s %15s %ld %ld", how, text, &a, &b) < 4) { puts("what?"); return; }
        say(lock(how, slot[s].fd, text[0], a, b));
        return;
    }
    sscanf(line, "%*s %*d %ld %ld %ld %ld", &a, &b, &c, &d);
    int fd = slot[s].fd;
    if (!strcmp(what, "load") || !strcmp(what, "store")) memory(what, s, a, b, c);
    else if (b > BYTES) puts("too long");
    else if (!strcmp(what, "close")) { say(close(fd)); slot[s].fd = -1; }
    else if (!strcmp(what, "map")) {
        slot[s].len = (size_t)a;
        slot[s].map = mmap(NULL, (size_t)a, PROT_READ | (b ? PROT_WRITE : 0), MAP_SHARED, fd, 0);
        if (slot[s].map == MAP_FAILED) { slot[s].map = NULL; say(-1); } else say(0);
    }
    else if (!strcmp(what, "unmap")) { say(munmap(slot[s].map, slot[s].len)); slot[s].map = NULL; }
    else if (!strcmp(what, "msync")) say(msync(slot[s].map, slot[s].len, MS_SYNC));
    else if (!strcmp(what, "read") || !strcmp(what, "splice")) {
        long n = what[0] == 'r' ? pread(fd, buffer, (size_t)b, a) : spliced(fd, a, (size_t)b);
        if (n < 0) say(n); else printf("%ld %lx\n", n, digest(buffer, (size_t)n));
    }
    else if (!strcmp(what, "write")) { fill(buffer, (size_t)b, (unsigned long)c); say(pwrite(fd, buffer, (size_t)b, a)); }
    else if (!strcmp(what, "append")) { fill(buffer, (size_t)b, (unsigned long)c); say(write(fd, buffer, (size_t)b)); }
    else if (!strcmp(what, "truncate")) say(ftruncate(fd, a));
    else if (!strcmp(what, "punch")) say(fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, a, b));
    else if (!strcmp(what, "zero")) say(fallocate(fd, FALLOC_FL_ZERO_RANGE, a, b));
    else if (!strcmp(what, "allocate")) say(posix_fallocate(fd, a, b) ? -1 : 0);
    else if (!strcmp(what, "copy")) {
        loff_t from = a, to = b;
        say(d < 0 || d >= SLOTS ? -1 : copy_file_range(fd, &from, slot[d].fd, &to, (size_t)c, 0));
    }
    else if (!strcmp(what, "utime")) say(set_time(fd, a));
    else if (!strcmp(what, "sync")) say(fsync(fd));
    else if (!strcmp(what, "end")) say(lseek(fd, 0, SEEK_END));
    else if (!strcmp(what, "stat")) {
        struct stat found;
        if (fstat(fd, &found)) say(-1);
        else printf("%ld %ld.%09ld\n", (long)found.st_size, (long)found.st_mtim.tv_sec, found.st_mtim.tv_nsec);
    }
    else puts("what?");
}

int main(void) {
    struct sigaction action = { .sa_handler = on_fault };
    sigaction(SIGBUS, &action, NULL);
    char line[8192];
    for (int s = 0; s < SLOTS; s++) slot[s].fd = -1;
    while (fgets(line, sizeof line, stdin)) {
        perform(line);
        fflush(stdout);
    }
    return 0;
}
