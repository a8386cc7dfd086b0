/* A program that closes its endpoint when it has ended otherwise. usage: atexit */
#include "check.h"

#include <pthread.h>

static mx_endpoint_t endpoint;
static int ended_well;

static void done(void)
{
    int closed = mx_close_endpoint(endpoint) == MX_SUCCESS;
    int over = mx_finalize() == MX_SUCCESS;
    if (closed && over && ended_well)
        printf("ok\n");
    fflush(stdout);
    _exit(closed && over && ended_well ? 0 : 3);
}

/* What a thread leaves behind is dropped when its own data are. */
static void drop(void *unused)
{
    mx_endpoint_addr_t own;
    (void)unused;
    ended_well = mx_progress(endpoint) == MX_SUCCESS && mx_get_endpoint_addr(endpoint, &own) == MX_SUCCESS;
}

static void *work(void *key)
{
    OK(mx_progress(endpoint));
    CHECK(pthread_setspecific(*(pthread_key_t *)key, &endpoint) == 0);
    return NULL;
}

int main(void)
{
    pthread_t thread;
    pthread_key_t key;
    choose_board("shm", base_port(), 0);
    CHECK(pthread_key_create(&key, drop) == 0);
    OK(mx_init());
    OK(mx_open_endpoint(0, 0, KEY, NULL, 0, &endpoint));
    CHECK(atexit(done) == 0);
    CHECK(pthread_create(&thread, NULL, work, &key) == 0);
    CHECK(pthread_join(thread, NULL) == 0);
    return 1;
}
