/* What the test programs share: checks that end the program. */
#ifndef CHECK_H
#define CHECK_H

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <ropewalk_rma.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define CHECK(condition)                                                                          \
    do {                                                                                          \
        if (!(condition)) {                                                                       \
            fprintf(stderr, "%s:%d: %s (%s)\n", __FILE__, __LINE__, #condition, rw_last_error()); \
            exit(1);                                                                              \
        }                                                                                         \
    } while (0)

#define OK(call) CHECK((call) == RW_SUCCESS)

/* A call that fails with a code, and with these words among its own. */
#define FAILS(call, code, words)                                                                  \
    do {                                                                                          \
        int got = (call);                                                                         \
        if (got != (code) || strstr(rw_last_error(), words) == NULL) {                            \
            fprintf(stderr, "%s:%d: %s: %d (%s): %s\n", __FILE__, __LINE__, #call, got,           \
                    rw_error_string(got), rw_last_error());                                       \
            exit(1);                                                                              \
        }                                                                                         \
    } while (0)

#endif
