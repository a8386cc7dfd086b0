/* Endpoints where descriptors are used up. usage: crowded shm|udp */
#include "check.h"

#include <sys/resource.h>

/* Lets so many descriptors be open; what becomes of as many endpoints as can be opened. */
static mx_return_t open_with(int descriptors, int *opened)
{
    struct rlimit limit;
    mx_endpoint_t all[64];
    mx_return_t code = MX_SUCCESS;
    int count = 0;
    CHECK(getrlimit(RLIMIT_NOFILE, &limit) == 0);
    limit.rlim_cur = (rlim_t)descriptors;
    CHECK(setrlimit(RLIMIT_NOFILE, &limit) == 0);
    while (count < 64 && code == MX_SUCCESS) {
        code = mx_open_endpoint(0, MX_ANY_ENDPOINT, KEY, NULL, 0, &all[count]);
        count += code == MX_SUCCESS;
    }
    *opened = count;
    while (count > 0)
        OK(mx_close_endpoint(all[--count]));
    return code;
}

int main(int count, char **words)
{
    int descriptors, least = 64, most = 0;
    CHECK(count == 2);
    alarm(2 * HANG_SECONDS);
    choose_board(words[1], base_port(), 0);
    mx_set_error_handler(MX_ERRORS_RETURN);
    OK(mx_init());
    /* Whichever descriptor of an endpoint it is that is missing. */
    for (descriptors = 5; most < 2; descriptors++) {
        int opened = 0;
        CHECK(descriptors < 256);
        CHECK(open_with(descriptors, &opened) == MX_NO_RESOURCES);
        least = opened < least ? opened : least;
        most = opened > most ? opened : most;
    }
    CHECK(least == 0);
    OK(mx_finalize());
    printf("ok\n");
    return 0;
}
