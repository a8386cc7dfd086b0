/* Gives the process into which it is loaded a wrong calendar: ROPEWALK_CLOCK_OFFSET says by how many
 * seconds. The monotonic clocks stay. */
#define _GNU_SOURCE
#include <stdlib.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static long offset;

__attribute__((constructor)) static void begin(void) {
    const char *text = getenv("ROPEWALK_CLOCK_OFFSET");
    offset = text ? atol(text) : 0;
}

int clock_gettime(clockid_t clock, struct timespec *now) {
    if (syscall(SYS_clock_gettime, clock, now)) return -1;
    if (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE) now->tv_sec += offset;
    return 0;
}

int gettimeofday(struct timeval *restrict now, void *restrict zone) {
    (void)zone;
    struct timespec found;
    if (clock_gettime(CLOCK_REALTIME, &found)) return -1;
    now->tv_sec = found.tv_sec;
    now->tv_usec = found.tv_nsec / 1000;
    return 0;
}

time_t time(time_t *to) {
    struct timespec found;
    clock_gettime(CLOCK_REALTIME, &found);
    if (to) *to = found.tv_sec;
    return found.tv_sec;
}
