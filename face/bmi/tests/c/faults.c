/* Peers that die, stop, come back, flood and are slow. Usage: faults CASE tcp|shm */
#include "check.h"
#include <fcntl.h>
#include <sys/resource.h>

#define MEGABYTE (1 << 20)

static bmi_context_id context;

/* A server in a process of its own. It is forked before the library is initialized here, since a child
 * would find the library of its parent. */
struct Server {
    pid_t process;
    int orders, answers;
    char url[512];
};

/* Forks a server that waits for `launch`. */
static struct Server prepare(const char *medium, void (*act)(void))
{
    struct Server server;
    int orders[2], answers[2];
    CHECK(pipe(orders) == 0 && pipe(answers) == 0);
    server.process = fork();
    CHECK(server.process >= 0);
    if (server.process == 0) {
        char own[512], methods[32];
        ssize_t length = read(orders[0], own, sizeof own - 1);
        alarm(4 * HANG_SECONDS);
        CHECK(length > 0);
        own[length] = '\0';
        if (own[0] == '*') {
            serve(medium, own, sizeof own);
        } else {
            snprintf(methods, sizeof methods, "bmi_%s", medium);
            CHECK(INITIALIZE(methods, own, BMI_INIT_SERVER | BMI_TCP_BIND_SPECIFIC) == 0);
        }
        CHECK(BMI_open_context(&context) == 0);
        CHECK(write(answers[1], own, strlen(own)) > 0);
        act();
        exit(0);
    }
    close(orders[0]);
    close(answers[1]);
    server.orders = orders[1];
    server.answers = answers[0];
    return server;
}

/* Lets a server listen at a URL, or wherever it likes where `url` is "*". */
static void launch(struct Server *server, const char *url)
{
    ssize_t length;
    CHECK(write(server->orders, url, strlen(url)) > 0);
    length = read(server->answers, server->url, sizeof server->url - 1);
    CHECK(length > 0);
    server->url[length] = '\0';
    close(server->orders);
    close(server->answers);
}

static struct Server start(const char *medium, void (*act)(void))
{
    struct Server server = prepare(medium, act);
    launch(&server, "*");
    return server;
}

static void end(struct Server *server, int by_signal)
{
    int status = 0;
    CHECK(waitpid(server->process, &status, 0) == server->process);
    if (by_signal != 0)
        CHECK(WIFSIGNALED(status) && WTERMSIG(status) == by_signal);
    else
        CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

static void begin(void)
{
    alarm(4 * HANG_SECONDS);
    CHECK(INITIALIZE(NULL, NULL, 0) == 0);
    CHECK(BMI_open_context(&context) == 0);
}

/* Answers each unexpected message with its bytes and tag, until one of tag 0 comes. */
static void echo(void)
{
    for (;;) {
        struct BMI_unexpected_info info = wait_unexpected();
        CHECK(send_to(info.addr, info.buffer, info.size, info.tag, context) == 0);
        CHECK(BMI_unexpected_free(info.addr, info.buffer) == 0);
        if (info.tag == 0)
            break;
    }
    CHECK(BMI_finalize() == 0);
}

static int ask(BMI_addr_t peer, int tag)
{
    char back[8];
    bmi_op_id_t receive = 0;
    bmi_size_t got = -1;
    int posted, error;
    posted = BMI_post_recv(&receive, peer, back, sizeof back, &got, BMI_EXT_ALLOC, tag, NULL,
                           context, NULL);
    error = send_unexpected_to(peer, "question", 8, tag, context);
    if (error != 0) {
        if (posted == 0) {
            CHECK(BMI_cancel(receive, context) == 0);
            CHECK(finish(posted, receive, &got, context) != 0);
        }
        return error;
    }
    error = finish(posted, receive, &got, context);
    if (error == 0)
        CHECK(got == 8 && memcmp(back, "question", 8) == 0);
    return error;
}

/* ---- a peer is killed and comes back ---- */

static void hold(void)
{
    struct BMI_unexpected_info info = wait_unexpected();
    CHECK(send_to(info.addr, info.buffer, info.size, info.tag, context) == 0);
    for (;;)
        pause();
}

static void killed(const char *medium)
{
    struct Server server = start(medium, hold), again = prepare(medium, echo);
    BMI_addr_t peer;
    bmi_op_id_t ids[3];
    bmi_size_t got;
    char *large = (char *)calloc(1, MEGABYTE), *other = (char *)calloc(1, MEGABYTE);
    int posted[3], index, error;
    begin();
    CHECK(LOOKUP(&peer, server.url) == 0);
    CHECK(ask(peer, 5) == 0);
    posted[0] = BMI_post_recv(&ids[0], peer, other, 100, &got, BMI_EXT_ALLOC, 6, NULL, context, NULL);
    posted[1] = BMI_post_send(&ids[1], peer, large, MEGABYTE, BMI_EXT_ALLOC, 7, NULL, context, NULL);
    posted[2] = BMI_post_recv(&ids[2], peer, other, MEGABYTE, &got, BMI_EXT_ALLOC, 8, NULL, context,
                              NULL);
    CHECK(kill(server.process, SIGKILL) == 0);
    end(&server, SIGKILL);
    for (index = 0; index < 3; index++) {
        CHECK(posted[index] == 0);
        CHECK(finish(0, ids[index], &got, context) == -BMI_ECONNRESET);
    }
    /* Nobody is there: the next post fails, and the address stays. */
    error = ask(peer, 9);
    CHECK(error == -BMI_EHOSTUNREACH || error == -BMI_ECONNRESET);
    launch(&again, server.url);
    CHECK(ask(peer, 10) == 0);
    CHECK(strcmp(BMI_addr_rev_lookup(peer), server.url) == 0);
    CHECK(ask(peer, 0) == 0);
    CHECK(BMI_finalize() == 0);
    end(&again, 0);
    free(large);
    free(other);
}

/* ---- a peer is stopped: cancel is a way out, neighbours live on, and what is cancelled never lands ---- */

static void answer_slowly(void)
{
    struct BMI_unexpected_info info = wait_unexpected();
    unsigned char *large = (unsigned char *)malloc(8 * MEGABYTE);
    bmi_op_id_t ids[4];
    bmi_size_t got = 0;
    int index, posted, at;
    memset(large, 9, 8 * MEGABYTE);
    /* The client takes none of these. */
    for (index = 0; index < 4; index++)
        CHECK(BMI_post_send(&ids[index], info.addr, large, 8 * MEGABYTE, BMI_EXT_ALLOC, 100 + index,
                            NULL, context, NULL) == 0);
    CHECK(send_to(info.addr, "ready", 6, 1, context) == 0);
    /* Here the client stops us, and lets us go on. */
    for (;;) {
        struct BMI_unexpected_info next;
        int count = 0, none = 0;
        bmi_op_id_t id;
        bmi_error_code_t error;
        CHECK(BMI_testunexpected(1, &count, &next, 0) >= 0);
        if (count == 1) {
            CHECK(next.tag == 77);
            CHECK(BMI_unexpected_free(next.addr, next.buffer) == 0);
            break;
        }
        CHECK(BMI_testcontext(1, &id, &none, &error, &got, NULL, 20, context) >= 0);
    }
    /* The eager messages may have come; of those that did all bytes are right. */
    for (index = 0; index < 20; index++) {
        bmi_op_id_t id = 0;
        unsigned char small[4096];
        posted = BMI_post_recv(&id, info.addr, small, sizeof small, &got, BMI_EXT_ALLOC, 200 + index,
                               NULL, context, NULL);
        if (posted == 0) {
            int count = 0;
            bmi_error_code_t error = 0;
            CHECK(BMI_test(id, &count, &error, &got, NULL, 50, context) >= 0);
            if (count == 0) {
                CHECK(BMI_cancel(id, context) == 0);
                error = finish(0, id, &got, context);
            }
            if (error != 0)
                continue;
        }
        CHECK(got == 4096);
        for (at = 0; at < 4096; at++)
            CHECK(small[at] == 5);
    }
    CHECK(send_to(info.addr, "end", 4, 2, context) == 0);
    CHECK(BMI_finalize() == 0);
}

static void stopped(const char *medium)
{
    struct Server server = start(medium, answer_slowly), neighbour;
    BMI_addr_t peer, other;
    bmi_op_id_t sends[24], receives[4];
    int posted[24], posted_receives[4], index, cancelled = 0, status;
    bmi_size_t got = 0;
    char ready[8];
    unsigned char *small = (unsigned char *)malloc(20 * 4096);
    unsigned char *large = (unsigned char *)malloc(4 * 8 * MEGABYTE);
    neighbour = start(medium, echo);
    begin();
    CHECK(LOOKUP(&peer, server.url) == 0 && LOOKUP(&other, neighbour.url) == 0);
    CHECK(send_unexpected_to(peer, "go", 2, 1, context) == 0);
    CHECK(receive_from(peer, ready, sizeof ready, &got, 1, context) == 0);
    CHECK(kill(server.process, SIGSTOP) == 0);
    CHECK(waitpid(server.process, &status, WUNTRACED) == server.process && WIFSTOPPED(status));
    /* Receives of messages that are announced, sends that nobody takes: large and small. */
    for (index = 0; index < 4; index++)
        posted_receives[index] =
            BMI_post_recv(&receives[index], peer, large + index * 8 * MEGABYTE, 8 * MEGABYTE, &got,
                          BMI_EXT_ALLOC, 100 + index, NULL, context, NULL);
    memset(small, 5, 20 * 4096);
    for (index = 0; index < 20; index++)
        posted[index] = BMI_post_send(&sends[index], peer, small + index * 4096, 4096, BMI_EXT_ALLOC,
                                      200 + index, NULL, context, NULL);
    for (index = 20; index < 24; index++)
        posted[index] = BMI_post_send(&sends[index], peer, large, 8 * MEGABYTE, BMI_EXT_ALLOC, 300,
                                      NULL, context, NULL);
    /* A neighbour notices nothing. */
    for (index = 0; index < 100; index++)
        CHECK(ask(other, 1000 + index) == 0);
    for (index = 0; index < 24; index++)
        if (posted[index] == 0)
            CHECK(BMI_cancel(sends[index], context) == 0);
    for (index = 0; index < 4; index++)
        if (posted_receives[index] == 0)
            CHECK(BMI_cancel(receives[index], context) == 0);
    for (index = 0; index < 24; index++) {
        int error = finish(posted[index], sends[index], &got, context);
        CHECK(error == 0 || error == -BMI_ECANCEL);
        cancelled += error != 0;
        CHECK(index < 20 || error == -BMI_ECANCEL);
    }
    for (index = 0; index < 4; index++) {
        int error = finish(posted_receives[index], receives[index], &got, context);
        CHECK(error == 0 || error == -BMI_ECANCEL);
        cancelled += error != 0;
    }
    CHECK(cancelled >= 4);
    /* The memory is ours again. */
    memset(small, 0xee, 20 * 4096);
    memset(large, 0xee, 4 * 8 * MEGABYTE);
    for (index = 0; index < 10; index++)
        CHECK(ask(other, 2000 + index) == 0);
    CHECK(kill(server.process, SIGCONT) == 0);
    CHECK(send_unexpected_to(peer, "go", 2, 77, context) == 0);
    CHECK(receive_from(peer, ready, sizeof ready, &got, 2, context) == 0);
    for (index = 0; index < 4; index++)
        if (posted_receives[index] == 0)
            CHECK(large[index * 8 * MEGABYTE] == 0xee && large[(index + 1) * 8 * MEGABYTE - 1] == 0xee);
    CHECK(ask(other, 0) == 0);
    CHECK(BMI_finalize() == 0);
    end(&server, 0);
    end(&neighbour, 0);
    free(small);
    free(large);
}

/* ---- the sender gives a message up that the receiver is fetching ---- */

static void lose_it(void)
{
    struct BMI_unexpected_info info = wait_unexpected();
    char *large = (char *)calloc(1, 256 * MEGABYTE);
    bmi_op_id_t id = 0;
    bmi_size_t got = 0;
    int posted = BMI_post_recv(&id, info.addr, large, 256 * MEGABYTE, &got, BMI_EXT_ALLOC, 5, NULL,
                               context, NULL);
    CHECK(BMI_unexpected_free(info.addr, info.buffer) == 0);
    CHECK(posted == 0 && send_to(info.addr, "ready", 6, 1, context) == 0);
    CHECK(finish(posted, id, &got, context) == -BMI_ECANCEL);
    free(large);
    echo();
}

static void taken_back(const char *medium)
{
    struct Server server = start(medium, lose_it);
    char *large = (char *)calloc(1, 256 * MEGABYTE), ready[8];
    BMI_addr_t peer;
    bmi_op_id_t id = 0;
    bmi_size_t got = 0;
    int posted;
    begin();
    CHECK(LOOKUP(&peer, server.url) == 0);
    CHECK(send_unexpected_to(peer, "go", 2, 1, context) == 0);
    CHECK(receive_from(peer, ready, sizeof ready, &got, 1, context) == 0);
    posted = BMI_post_send(&id, peer, large, 256 * MEGABYTE, BMI_EXT_ALLOC, 5, NULL, context, NULL);
    CHECK(posted == 0 && BMI_cancel(id, context) == 0);
    CHECK(finish(posted, id, &got, context) == -BMI_ECANCEL);
    CHECK(ask(peer, 7) == 0);
    CHECK(ask(peer, 0) == 0);
    CHECK(BMI_finalize() == 0);
    end(&server, 0);
    free(large);
}

/* ---- each unexpected message counts a reference; without one, who is gone is forgotten ---- */

static int is_known(BMI_addr_t peer)
{
    void *memory = BMI_memalloc(peer, 64, BMI_SEND);
    if (memory != NULL)
        CHECK(BMI_memfree(peer, memory, 64, BMI_SEND) == 0);
    return memory != NULL;
}

static void count_references(void)
{
    struct BMI_unexpected_info first = wait_unexpected(), second = wait_unexpected();
    BMI_addr_t peer = first.addr;
    double start = now();
    int droppable = 1, count = 0;
    CHECK(second.addr == peer);
    CHECK(BMI_unexpected_free(peer, first.buffer) == 0);
    CHECK(BMI_unexpected_free(peer, second.buffer) == 0);
    CHECK(send_to(peer, "ready", 6, 1, context) == 0);
    /* The client goes, and two references keep its address. */
    while (send_to(peer, "still there?", 13, 9, context) == 0)
        CHECK(now() - start < HANG_SECONDS);
    CHECK(BMI_get_info(peer, BMI_DROP_ADDR_QUERY, &droppable) == 0 && droppable == 0);
    CHECK(BMI_set_info(peer, BMI_DEC_ADDR_REF, NULL) == 0);
    CHECK(BMI_testunexpected(1, &count, &first, 10) == 0 && is_known(peer));
    CHECK(BMI_set_info(peer, BMI_DEC_ADDR_REF, NULL) == 0);
    while (is_known(peer)) {
        CHECK(BMI_testunexpected(1, &count, &first, 10) == 0);
        CHECK(now() - start < HANG_SECONDS);
    }
    CHECK(BMI_set_info(peer, BMI_DEC_ADDR_REF, NULL) == -BMI_EINVAL);
    CHECK(BMI_finalize() == 0);
}

static void references(const char *medium)
{
    struct Server server = start(medium, count_references);
    BMI_addr_t peer;
    bmi_size_t got = 0;
    char ready[8];
    begin();
    CHECK(LOOKUP(&peer, server.url) == 0);
    CHECK(send_unexpected_to(peer, "one", 4, 1, context) == 0);
    CHECK(send_unexpected_to(peer, "two", 4, 1, context) == 0);
    CHECK(receive_from(peer, ready, sizeof ready, &got, 1, context) == 0);
    CHECK(BMI_finalize() == 0);
    end(&server, 0);
}

/* ---- both sides send before they receive ---- */

enum { AHEAD = 600, AHEAD_BYTES = 16 << 10 };

static void send_first(BMI_addr_t peer)
{
    char *bytes = (char *)calloc(AHEAD, AHEAD_BYTES);
    bmi_op_id_t ids[AHEAD];
    int posted[AHEAD], index;
    bmi_size_t got = 0;
    for (index = 0; index < AHEAD; index++)
        posted[index] = BMI_post_send(&ids[index], peer, bytes + index * AHEAD_BYTES, AHEAD_BYTES,
                                      BMI_EXT_ALLOC, 50, NULL, context, NULL);
    for (index = 0; index < AHEAD; index++)
        CHECK(finish(posted[index], ids[index], &got, context) == 0);
    for (index = 0; index < AHEAD; index++)
        CHECK(receive_from(peer, bytes, AHEAD_BYTES, &got, 50, context) == 0 && got == AHEAD_BYTES);
    free(bytes);
}

static void meet_sender(void)
{
    struct BMI_unexpected_info info = wait_unexpected();
    CHECK(BMI_unexpected_free(info.addr, info.buffer) == 0);
    send_first(info.addr);
    CHECK(send_to(info.addr, "end", 4, 2, context) == 0);
    CHECK(BMI_finalize() == 0);
}

static void ahead(const char *medium)
{
    struct Server server = start(medium, meet_sender);
    BMI_addr_t peer;
    bmi_size_t got = 0;
    char last[4];
    begin();
    CHECK(LOOKUP(&peer, server.url) == 0);
    CHECK(send_unexpected_to(peer, "go", 2, 1, context) == 0);
    send_first(peer);
    CHECK(receive_from(peer, last, sizeof last, &got, 2, context) == 0);
    CHECK(BMI_finalize() == 0);
    end(&server, 0);
}

/* ---- an address that is dropped takes what is under way with it ---- */

static void dropped(const char *medium)
{
    struct Server server = start(medium, echo);
    BMI_addr_t peer, nobody;
    bmi_op_id_t ids[3];
    char bytes[3][64], url[600];
    bmi_size_t got = 0;
    int posted[3], option, error, noticed;
    begin();
    for (option = 0; option < 2; option++) {
        int name = option == 0 ? BMI_DROP_ADDR : BMI_TCP_CLOSE_SOCKET;
        CHECK(LOOKUP(&peer, server.url) == 0);
        CHECK(ask(peer, 1) == 0);
        posted[0] = BMI_post_recv(&ids[0], peer, bytes[0], 64, &got, BMI_EXT_ALLOC, 77, NULL, context,
                                  NULL);
        CHECK(posted[0] == 0 && BMI_set_info(peer, name, NULL) == 0);
        CHECK(finish(posted[0], ids[0], &got, context) == -BMI_ECANCEL);
        CHECK(BMI_set_info(peer, name, NULL) == -BMI_EINVAL);
        /* One that was never reached. */
        noticed = unanswered(medium, url, sizeof url);
        CHECK(LOOKUP(&nobody, url) == 0);
        posted[1] = BMI_post_recv(&ids[1], nobody, bytes[1], 64, &got, BMI_EXT_ALLOC, 77, NULL,
                                  context, NULL);
        CHECK(BMI_set_info(nobody, name, NULL) == 0);
        error = finish(posted[1], ids[1], &got, context);
        CHECK(error == -BMI_ECANCEL || (noticed && error == -BMI_EHOSTUNREACH));
    }
    CHECK(LOOKUP(&peer, server.url) == 0);
    CHECK(ask(peer, 0) == 0);
    CHECK(BMI_finalize() == 0);
    end(&server, 0);
}

#ifndef BMI_API_ORANGEFS
/* ---- a message of a class that nobody tests for leaves waits alone ---- */

static void keep_class(void)
{
    struct BMI_unexpected_info info;
    bmi_op_id_t id = 0;
    bmi_error_code_t error = 0;
    bmi_size_t got = 0;
    void *user = NULL;
    int count = 0, early = 0, index;
    double begin_time = now();
    /* The wait ends when it comes, for whoever tests for that class. */
    while (BMI_testunexpected_class(1, &count, &info, 9, 0) == 0 && early == 0) {
        double before = now();
        CHECK(BMI_testcontext(1, &id, &count, &error, &got, &user, 20000, context) == 0);
        early = now() - before < 15;
        CHECK(now() - begin_time < HANG_SECONDS);
    }
    for (index = 0; index < 3; index++) {
        double before = now();
        CHECK(BMI_testcontext(1, &id, &count, &error, &got, &user, 50, context) == 0);
        CHECK(BMI_testunexpected(1, &count, &info, 0) == 0);
        CHECK(now() - before > 0.04);
    }
    CHECK(BMI_testunexpected_class(1, &count, &info, 5, 1000) == 1 && info.size == 4);
    CHECK(BMI_unexpected_free(info.addr, info.buffer) == 0);
    CHECK(send_to(info.addr, "end", 4, 2, context) == 0);
    CHECK(BMI_finalize() == 0);
}

static void classes(const char *medium)
{
    struct Server server = start(medium, keep_class);
    BMI_addr_t peer;
    bmi_op_id_t id = 0;
    bmi_size_t got = 0;
    char last[4];
    int posted;
    begin();
    CHECK(LOOKUP(&peer, server.url) == 0);
    posted = BMI_post_sendunexpected_class(&id, peer, "five", 4, BMI_EXT_ALLOC, 1, 5, NULL, context,
                                           NULL);
    CHECK(finish(posted, id, &got, context) == 0);
    CHECK(receive_from(peer, last, sizeof last, &got, 2, context) == 0);
    CHECK(BMI_finalize() == 0);
    end(&server, 0);
}
#endif

/* ---- a child has no library of its parent's ---- */

static void forked(const char *medium)
{
    struct Server server = start(medium, echo);
    BMI_addr_t peer, other;
    bmi_context_id second;
    int status = 0;
    pid_t child;
    begin();
    CHECK(LOOKUP(&peer, server.url) == 0);
    CHECK(ask(peer, 1) == 0);
    child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        CHECK(BMI_open_context(&second) == -BMI_ENETDOWN);
        CHECK(LOOKUP(&other, server.url) == -BMI_ENETDOWN);
        CHECK(send_unexpected_to(peer, "child", 5, 9, context) == -BMI_ENETDOWN);
        CHECK(INITIALIZE(NULL, NULL, 0) == -BMI_ENETDOWN);
        CHECK(BMI_finalize() == 0);
        exit(0);
    }
    CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0);
    CHECK(ask(peer, 2) == 0);
    CHECK(ask(peer, 0) == 0);
    CHECK(BMI_finalize() == 0);
    end(&server, 0);
}

/* ---- an unmatched large message stops nothing behind it ---- */

static void not_blocked(const char *medium)
{
    struct Server server = start(medium, echo);
    BMI_addr_t peer;
    bmi_op_id_t ids[3];
    bmi_size_t got;
    int index, posted[3];
    char *large = (char *)calloc(1, 64 * MEGABYTE);
    begin();
    CHECK(LOOKUP(&peer, server.url) == 0);
    for (index = 0; index < 3; index++)
        posted[index] = BMI_post_send(&ids[index], peer, large, 64 * MEGABYTE, BMI_EXT_ALLOC, 99, NULL,
                                      context, NULL);
    for (index = 1; index < 50; index++)
        CHECK(ask(peer, index) == 0);
    for (index = 0; index < 3; index++) {
        CHECK(posted[index] == 0 && BMI_cancel(ids[index], context) == 0);
        CHECK(finish(0, ids[index], &got, context) == -BMI_ECANCEL);
    }
    CHECK(ask(peer, 0) == 0);
    CHECK(BMI_finalize() == 0);
    end(&server, 0);
    free(large);
}

/* ---- a flood that nobody takes costs a bounded amount of memory, and hurts nobody ---- */

static long resident_kib(void)
{
    char line[256];
    long found = 0;
    FILE *file = fopen("/proc/self/status", "r");
    CHECK(file != NULL);
    while (fgets(line, sizeof line, file) != NULL)
        if (sscanf(line, "VmRSS: %ld", &found) == 1)
            break;
    fclose(file);
    return found;
}

static void be_flooded(void)
{
    long before = resident_kib(), most = 0;
    echo();
    most = resident_kib() - before;
    if (most > 18 * 1024) {
        fprintf(stderr, "the flood cost %ld KiB\n", most);
        exit(1);
    }
}

static void flood(const char *medium)
{
    struct Server server = start(medium, be_flooded);
    BMI_addr_t peer;
    static char bytes[1024];
    const int messages = 1000000;
    bmi_op_id_t *ids = (bmi_op_id_t *)calloc((size_t)messages, sizeof *ids);
    int index, done = 0;
    bmi_size_t got;
    begin();
    CHECK(LOOKUP(&peer, server.url) == 0);
    CHECK(ask(peer, 1) == 0);
    for (index = 0; index < messages; index++) {
        int posted = BMI_post_send(&ids[index], peer, bytes, sizeof bytes, BMI_EXT_ALLOC, 4242, NULL,
                                   context, NULL);
        CHECK(posted >= 0);
        done += posted;
        /* Requests get through all the same. */
        if (index % 100000 == 0)
            CHECK(ask(peer, 2) == 0);
    }
    CHECK(done < 100000);
    CHECK(ask(peer, 3) == 0);
    for (index = 0; index < messages; index++)
        if (ids[index] != 0)
            CHECK(BMI_cancel(ids[index], context) == 0);
    for (index = 0; index < messages; index++)
        if (ids[index] != 0) {
            int error = finish(0, ids[index], &got, context);
            CHECK(error == 0 || error == -BMI_ECANCEL);
        }
    CHECK(ask(peer, 0) == 0);
    CHECK(BMI_finalize() == 0);
    end(&server, 0);
    free(ids);
}

/* ---- two servers that connect to each other at once ---- */

static char partner_url[512];

static void meet(const char *own_name)
{
    BMI_addr_t partner;
    bmi_op_id_t receive = 0;
    bmi_size_t got = 0;
    char back[8];
    int posted;
    (void)own_name;
    CHECK(LOOKUP(&partner, partner_url) == 0);
    posted = BMI_post_recv(&receive, partner, back, 8, &got, BMI_EXT_ALLOC, 3, NULL, context, NULL);
    CHECK(send_to(partner, "meeting", 8, 3, context) == 0);
    CHECK(finish(posted, receive, &got, context) == 0 && got == 8 && memcmp(back, "meeting", 8) == 0);
    posted = BMI_post_recv(&receive, partner, back, 8, &got, BMI_EXT_ALLOC, 4, NULL, context, NULL);
    CHECK(send_to(partner, "parting", 8, 4, context) == 0);
    CHECK(finish(posted, receive, &got, context) == 0);
}

static int turn_pipe[2], url_pipes[2][2];

static void meet_as(int number)
{
    ssize_t length = read(url_pipes[number][0], partner_url, sizeof partner_url - 1);
    char go;
    CHECK(length > 0);
    partner_url[length] = '\0';
    CHECK(read(turn_pipe[0], &go, 1) == 1);
    meet("");
    usleep(20000);
    CHECK(BMI_finalize() == 0);
}

static void meet_first(void) { meet_as(0); }
static void meet_second(void) { meet_as(1); }

static void both_at_once(const char *medium)
{
    int round;
    alarm(4 * HANG_SECONDS);
    for (round = 0; round < 10; round++) {
        struct Server first, second;
        CHECK(pipe(turn_pipe) == 0 && pipe(url_pipes[0]) == 0 && pipe(url_pipes[1]) == 0);
        first = start(medium, meet_first);
        second = start(medium, meet_second);
        CHECK(write(url_pipes[0][1], second.url, strlen(second.url)) > 0);
        CHECK(write(url_pipes[1][1], first.url, strlen(first.url)) > 0);
        usleep(5000);
        CHECK(write(turn_pipe[1], "gg", 2) == 2);
        end(&first, 0);
        end(&second, 0);
        close(turn_pipe[0]);
        close(turn_pipe[1]);
        close(url_pipes[0][0]);
        close(url_pipes[0][1]);
        close(url_pipes[1][0]);
        close(url_pipes[1][1]);
    }
}

/* ---- a second URL takes over ---- */

static void fail_over(const char *medium)
{
    struct Server first = start(medium, hold), second = start(medium, echo);
    struct Server third = prepare(medium, echo);
    char list[1100];
    BMI_addr_t peer, late;
    bmi_op_id_t id = 0;
    bmi_size_t got = 0;
    char small[8];
    int posted, error, tries = 0;
    begin();
    snprintf(list, sizeof list, "%s,%s", first.url, second.url);
    CHECK(LOOKUP(&peer, list) == 0);
    CHECK(ask(peer, 5) == 0);
    posted = BMI_post_recv(&id, peer, small, 8, &got, BMI_EXT_ALLOC, 6, NULL, context, NULL);
    CHECK(posted == 0);
    CHECK(kill(first.process, SIGKILL) == 0);
    end(&first, SIGKILL);
    /* What was under way fails once; the next post finds the second. */
    CHECK(finish(0, id, &got, context) == -BMI_ECONNRESET);
    CHECK(ask(peer, 7) == 0);
    /* At connect, too. */
    snprintf(list, sizeof list, "%s %s", first.url, second.url);
    CHECK(LOOKUP(&late, list) == 0);
    CHECK(ask(late, 8) == 0);
    CHECK(ask(late, 0) == 0);
    end(&second, 0);
    /* Both dead, the first one back. */
    launch(&third, first.url);
    do
        error = ask(peer, 9);
    while (error != 0 && ++tries < 3);
    CHECK(error == 0);
    CHECK(ask(peer, 0) == 0);
    CHECK(BMI_finalize() == 0);
    end(&third, 0);
}

/* ---- no descriptors are left ---- */

static void few_descriptors(const char *medium)
{
    struct Server server = start(medium, echo);
    struct rlimit limit = {64, 64};
    int files[64], count = 0, index, posted, done = 0;
    bmi_op_id_t id = 0;
    bmi_size_t got = 0;
    bmi_error_code_t error;
    BMI_addr_t peer;
    begin();
    CHECK(LOOKUP(&peer, server.url) == 0);
    CHECK(setrlimit(RLIMIT_NOFILE, &limit) == 0);
    while (count < 64 && (files[count] = open("/dev/null", O_RDONLY)) >= 0)
        count++;
    CHECK(count > 0 && count < 64);
    /* It waits until there is one again. */
    posted = BMI_post_sendunexpected(&id, peer, "question", 8, BMI_EXT_ALLOC, 1, NULL, context, NULL);
    CHECK(posted == 0);
    CHECK(BMI_test(id, &done, &error, &got, NULL, 300, context) == 0 && done == 0);
    for (index = 0; index < count; index++)
        close(files[index]);
    CHECK(finish(posted, id, &got, context) == 0);
    CHECK(ask(peer, 2) == 0);
    CHECK(ask(peer, 0) == 0);
    CHECK(BMI_finalize() == 0);
    end(&server, 0);
}

int main(int argc, char **argv)
{
    static const struct {
        const char *name;
        void (*run)(const char *);
    } cases[] = {
        {"killed", killed},       {"stopped", stopped},     {"not_blocked", not_blocked},
        {"flood", flood},         {"both_at_once", both_at_once}, {"fail_over", fail_over},
        {"few_descriptors", few_descriptors}, {"taken_back", taken_back}, {"references", references},
        {"ahead", ahead}, {"dropped", dropped}, {"forked", forked},
#ifndef BMI_API_ORANGEFS
        {"classes", classes},
#endif
    };
    size_t index;
    CHECK(argc == 3);
    for (index = 0; index < sizeof cases / sizeof cases[0]; index++)
        if (strcmp(argv[1], cases[index].name) == 0) {
            cases[index].run(argv[2]);
            puts("ok");
            return 0;
        }
    return 1;
}
