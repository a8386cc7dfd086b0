/* Several threads on one endpoint: each gets its own completions and all of them, waiters are woken, and
 * progression can be stopped. usage: threads MEDIUM */
#include "check.h"
#include <pthread.h>

#define THREADS 6
#define ROUNDS 300

static struct side shared;

static void *ping(void *argument)
{
    uint64_t lane = (uint64_t)(uintptr_t)argument << 32;
    unsigned out, in;
    for (unsigned round = 0; round < ROUNDS; round++) {
        mx_request_t receive = begin_receive(shared, &in, 4, lane | 2, ALL);
        mx_status_t status;
        uint32_t result;
        double start = now();
        out = round;
        send_one(shared, &out, 4, lane | 1);
        if (round % 2 == 0) {
            CHECK(finish(shared, receive).xfer_length == 4);
        } else if (round % 4 == 1) {
            do {
                OK(mx_test(shared.endpoint, &receive, &status, &result));
                CHECK(now() - start < HANG_SECONDS);
            } while (result == 0);
        } else {
            OK(mx_wait_any(shared.endpoint, LONG, lane | 2, ALL, &status, &result));
            CHECK(result == 1);
        }
        CHECK(in == round + 1);
    }
    return NULL;
}

static void *pong(void *argument)
{
    uint64_t lane = (uint64_t)(uintptr_t)argument << 32;
    unsigned value;
    for (unsigned round = 0; round < ROUNDS; round++) {
        CHECK(receive_one(shared, &value, 4, lane | 1).xfer_length == 4);
        value++;
        send_one(shared, &value, 4, lane | 2);
    }
    return NULL;
}

static void all(void *(*work)(void *))
{
    pthread_t threads[THREADS];
    for (uintptr_t number = 0; number < THREADS; number++)
        CHECK(pthread_create(&threads[number], NULL, work, (void *)(number + 1)) == 0);
    for (int number = 0; number < THREADS; number++)
        CHECK(pthread_join(threads[number], NULL) == 0);
}

/* What is waited for, and how it ended. */
static int woken[4];

static void *sleep_in(void *argument)
{
    int which = (int)(uintptr_t)argument;
    mx_status_t status;
    mx_request_t request;
    mx_endpoint_addr_t peer;
    uint32_t result = 7;
    unsigned value;
    switch (which) {
    case 0:
        request = begin_receive(shared, &value, 4, 0x7700, ALL);
        OK(mx_wait(shared.endpoint, &request, MX_INFINITE, &status, &result));
        OK(mx_cancel(shared.endpoint, &request, &result));
        CHECK(result == 1);
        result = 0;
        break;
    case 1:
        OK(mx_wait_any(shared.endpoint, MX_INFINITE, 0x7701, ALL, &status, &result));
        break;
    case 2:
        OK(mx_probe(shared.endpoint, MX_INFINITE, 0x7702, ALL, &status, &result));
        break;
    default:
        /* Nobody is there, over a wire: over shared memory that is known at once. */
        result = 0;
        CHECK(mx_connect(shared.endpoint, place_of(shared.endpoint).nic, 9, KEY, MX_INFINITE,
                         &peer) != MX_SUCCESS);
        break;
    }
    CHECK(result == 0);
    __atomic_store_n(&woken[which], 1, __ATOMIC_SEQ_CST);
    return NULL;
}

static void wake_ups(void)
{
    pthread_t threads[4];
    double start = now();
    int awake = 0;
    for (uintptr_t number = 0; number < 4; number++)
        CHECK(pthread_create(&threads[number], NULL, sleep_in, (void *)number) == 0);
    nap(100);
    CHECK(!woken[0] && !woken[1] && !woken[2]);
    /* Who comes to sleep after a call is not woken by it. */
    while (awake < 4) {
        OK(mx_wakeup(shared.endpoint));
        nap(20);
        awake = 0;
        for (int number = 0; number < 4; number++)
            awake += __atomic_load_n(&woken[number], __ATOMIC_SEQ_CST);
        CHECK(now() - start < HANG_SECONDS);
    }
    for (int number = 0; number < 4; number++)
        CHECK(pthread_join(threads[number], NULL) == 0);
}

static void stopped(void)
{
    unsigned value = 0;
    mx_request_t request;
    mx_status_t status;
    uint32_t result = 7;
    request = begin_receive(shared, &value, 4, 0x8801, ALL);
    meet(shared);
    OK(mx_disable_progression(shared.endpoint));
    /* Messages leave all the same; what comes is not looked at. */
    OK(mx_isend(shared.endpoint, NULL, 0, shared.peer, 0x8800, NULL, NULL));
    nap(50);
    OK(mx_test(shared.endpoint, &request, &status, &result));
    CHECK(result == 0);
    OK(mx_wait(shared.endpoint, &request, 30, &status, &result));
    CHECK(result == 0);
    OK(mx_progress(shared.endpoint));
    OK(mx_ipeek(shared.endpoint, &request, &result));
    CHECK(result == 0);
    OK(mx_reenable_progression(shared.endpoint));
    CHECK(finish(shared, request).code == MX_STATUS_SUCCESS && value == 99);
    meet(shared);
}

static void first(struct side side)
{
    shared = side;
    all(ping);
    meet(side);
    wake_ups();
    stopped();
}

static void second(struct side side)
{
    unsigned value = 99;
    shared = side;
    all(pong);
    meet(side);
    meet(side);
    CHECK(receive_one(side, NULL, 0, 0x8800).code == MX_STATUS_SUCCESS);
    send_one(side, &value, 4, 0x8801);
    meet(side);
}

int main(int count, char **words)
{
    CHECK(count == 2);
    both(words[1], NULL, 0, first, second);
    printf("ok\n");
    return 0;
}
