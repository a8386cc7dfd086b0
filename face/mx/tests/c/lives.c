/* Endpoints that come and go, and what happens while a program does not call. One process. usage: lives MEDIUM */
#include "check.h"

#include <pthread.h>

static mx_endpoint_t left, right;
static mx_endpoint_addr_t to_right, to_left;
static unsigned char buffer[1000];

static mx_endpoint_t open_number(uint32_t number)
{
    mx_endpoint_t endpoint;
    OK(mx_open_endpoint(0, number, KEY, NULL, 0, &endpoint));
    return endpoint;
}

static void open_both(void)
{
    left = open_number(0);
    right = open_number(1);
    to_right = reach(left, place_of(right));
    to_left = reach(right, place_of(left));
}

static void close_both(void)
{
    OK(mx_close_endpoint(left));
    OK(mx_close_endpoint(right));
}

static mx_request_t send_to_right(uint64_t match)
{
    struct side side;
    side.endpoint = left;
    side.peer = to_right;
    return begin_send(side, buffer, 10, match);
}

static mx_status_t finish_at(mx_endpoint_t endpoint, mx_request_t request)
{
    struct side side;
    side.endpoint = endpoint;
    return finish(side, request);
}

/* A connect waits for an endpoint that is closed; it is opened again and connects first. */
static void opened_again_while_it_is_called(void)
{
    for (int life = 0; life < 12; life++) {
        mx_request_t request = NULL;
        mx_status_t status;
        uint32_t result = 0;
        struct place place;
        open_both();
        place = place_of(right);
        OK(mx_close_endpoint(right));
        OK(mx_iconnect(left, place.nic, place.endpoint, KEY, 5, NULL, &request));
        nap(life * 5);
        right = open_number(1);
        to_left = reach(right, place_of(left));
        OK(mx_wait(left, &request, 10000, &status, &result));
        CHECK(result == 1 && status.code == MX_STATUS_SUCCESS);
        to_right = status.source;
        CHECK(finish_at(left, send_to_right(0x11)).code == MX_STATUS_SUCCESS);
        CHECK(finish_at(right, begin_receive((struct side){right, to_left}, buffer, 10, 0x11, ALL)).code ==
              MX_STATUS_SUCCESS);
        close_both();
    }
}

static int calls[2], disables;

static mx_unexp_handler_action_t count(void *context, mx_endpoint_addr_t source, uint64_t match,
                                       uint32_t length, void *data)
{
    (void)source, (void)match, (void)length, (void)data;
    (*(int *)context)++;
    if (disables) {
        disables = 0;
        OK(mx_disable_progression(right));
    }
    return MX_RECV_CONTINUE;
}

static void progress_until(const int *counter, int value)
{
    double start = now();
    while (*counter < value) {
        OK(mx_progress(right));
        CHECK(now() - start < HANG_SECONDS);
    }
    for (int round = 0; round < 100; round++)
        OK(mx_progress(right));
    CHECK(*counter == value);
}

/* The library takes messages in while the program computes: that is not the program's progress. */
static void told_of_what_came_before(void)
{
    mx_status_t status;
    uint32_t result = 0;
    open_both();
    OK(mx_progress(right));
    CHECK(finish_at(left, send_to_right(1)).code == MX_STATUS_SUCCESS);
    nap(200);
    OK(mx_register_unexp_handler(right, count, &calls[0]));
    progress_until(&calls[0], 1);
    CHECK(finish_at(left, send_to_right(2)).code == MX_STATUS_SUCCESS);
    nap(200);
    OK(mx_register_unexp_handler(right, count, &calls[1]));
    progress_until(&calls[1], 1);
    CHECK(calls[0] == 1);
    /* What the program had without a handler it is not asked about. */
    OK(mx_register_unexp_handler(right, NULL, NULL));
    CHECK(finish_at(left, send_to_right(3)).code == MX_STATUS_SUCCESS);
    while (result == 0)
        OK(mx_iprobe(right, 3, ALL, &status, &result));
    OK(mx_register_unexp_handler(right, count, &calls[1]));
    progress_until(&calls[1], 1);
    /* Whoever stops progress in the handler is told of the others later. */
    disables = 1;
    for (uint64_t match = 4; match < 7; match++)
        CHECK(finish_at(left, send_to_right(match)).code == MX_STATUS_SUCCESS);
    progress_until(&calls[1], 2);
    nap(200);
    OK(mx_reenable_progression(right));
    progress_until(&calls[1], 4);
    close_both();
}

static void *wait_for_seven(void *unused)
{
    mx_status_t status;
    uint32_t result = 0;
    (void)unused;
    OK(mx_wait_any(left, MX_INFINITE, 7, ALL, &status, &result));
    CHECK(result == 1 && status.code == MX_STATUS_ENDPOINT_UNREACHABLE);
    return NULL;
}

/* A send that fails at once is news for a thread that sleeps. */
static void told_of_what_fails_at_once(void)
{
    pthread_t thread;
    double start;
    mx_request_t request = NULL;
    mx_segment_t one = segment(buffer, 10);
    open_both();
    OK(mx_close_endpoint(right));
    start = now();
    while (finish_at(left, send_to_right(8)).code == MX_STATUS_SUCCESS) {
        CHECK(now() - start < HANG_SECONDS);
        nap(5);
    }
    CHECK(pthread_create(&thread, NULL, wait_for_seven, NULL) == 0);
    nap(200);
    start = now();
    OK(mx_isend(left, &one, 1, to_right, 7, NULL, &request));
    CHECK(pthread_join(thread, NULL) == 0);
    /* Without being told it would look after ten seconds. */
    CHECK(now() - start < 5);
    OK(mx_close_endpoint(left));
}

/* Handles and addresses of an endpoint that is closed are nobody's. */
static void nothing_is_taken_for_another(void)
{
    mx_request_t old, fresh = NULL;
    mx_endpoint_addr_t stale;
    mx_segment_t one = segment(buffer, 10);
    uint32_t result = 7;
    open_both();
    stale = to_right;
    old = begin_receive((struct side){left, to_right}, buffer, 10, 1, ALL);
    close_both();
    open_both();
    fresh = begin_receive((struct side){left, to_right}, buffer, 10, 2, ALL);
    CHECK(mx_cancel(left, &old, &result) == MX_BAD_REQUEST);
    CHECK(mx_isend(left, &one, 1, stale, 1, NULL, &old) == MX_BAD_ENDPOINT);
    OK(mx_cancel(left, &fresh, &result));
    CHECK(result == 1);
    close_both();
}

/* The end of the library ends no endpoint: whoever has one closes it, then or in the next life. */
static void closed_after_the_library(void)
{
    mx_endpoint_t later;
    OK(mx_init());
    open_both();
    later = open_number(2);
    OK(mx_finalize());
    CHECK(mx_progress(left) == MX_NOT_INITIALIZED);
    close_both();
    CHECK(mx_close_endpoint(left) == MX_NOT_INITIALIZED);
    OK(mx_init());
    OK(mx_progress(later));
    OK(mx_close_endpoint(later));
    CHECK(mx_close_endpoint(later) == MX_BAD_ENDPOINT);
    open_both();
    close_both();
    OK(mx_finalize());
}

int main(int count_of_words, char **words)
{
    CHECK(count_of_words == 2);
    CHECK(mx_set_error_handler(MX_ERRORS_RETURN) == MX_ERRORS_ARE_FATAL);
    alarm(4 * HANG_SECONDS);
    choose_board(words[1], base_port(), 0);
    OK(mx_init());
    nothing_is_taken_for_another();
    told_of_what_came_before();
    told_of_what_fails_at_once();
    /* Who shares memory says at once that it is closed. */
    if (strcmp(words[1], "shm") != 0)
        opened_again_while_it_is_called();
    OK(mx_finalize());
    closed_after_the_library();
    printf("ok\n");
    return 0;
}
