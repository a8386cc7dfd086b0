/* Options, and calls that few programs make: lists of unexpected messages, memory of the library's,
 * all contexts, waits that unexpected messages end. Usage: options tcp|tcp6|shm
 */
#include "check.h"
#include <netinet/in.h>
#include <sys/resource.h>
#include <sys/socket.h>

#define TAG_GO 1
#define TAG_LIST 2
#define TAG_WAIT 3
#define TAG_MEMORY 4
#define CLASS 7

static const bmi_size_t lengths[] = {100, 16384, 3000001};
#define LENGTHS 3

static bmi_context_id context;

static void go(BMI_addr_t peer)
{
    CHECK(send_to(peer, "g", 1, TAG_GO, context) == 0);
}

static void wait_for_go(BMI_addr_t peer)
{
    char byte;
    bmi_size_t got = 0;
    CHECK(receive_from(peer, &byte, 1, &got, TAG_GO, context) == 0 && got == 1);
}

/* Memory of the library's own, there and back. */
static void send_memory(BMI_addr_t peer, bmi_size_t length)
{
    bmi_op_id_t id = 0;
    char *memory = (char *)BMI_memalloc(peer, length, BMI_SEND);
    CHECK(memory != NULL);
    memset(memory, (int)(length % 251), (size_t)length);
    int posted = BMI_post_send(&id, peer, memory, length, BMI_PRE_ALLOC, TAG_MEMORY, NULL, context,
                               NULL);
    CHECK(finish(posted, id, NULL, context) == 0);
    CHECK(BMI_memfree(peer, memory, length, BMI_SEND) == 0);
}

static void receive_memory(BMI_addr_t peer, bmi_size_t length)
{
    bmi_op_id_t id = 0;
    bmi_size_t got = -1, at;
    char *memory = (char *)BMI_memalloc(peer, length, BMI_RECV);
    CHECK(memory != NULL);
    int posted = BMI_post_recv(&id, peer, memory, length, &got, BMI_PRE_ALLOC, TAG_MEMORY, NULL,
                               context, NULL);
    CHECK(finish(posted, id, &got, context) == 0 && got == length);
    for (at = 0; at < length; at++)
        CHECK(memory[at] == (char)(length % 251));
    CHECK(BMI_memfree(peer, memory, length, BMI_RECV) == 0);
    CHECK(BMI_memfree(peer, memory, length, BMI_RECV) == -BMI_EINVAL);
}

/* ---- the server ---- */

/* How long a wait in vain takes, up to `milliseconds`. */
static double wait_in_vain(int milliseconds)
{
    bmi_op_id_t id;
    bmi_error_code_t error;
    bmi_size_t size;
    int count = 1;
    double start = now();
    CHECK(BMI_testcontext(1, &id, &count, &error, &size, NULL, milliseconds, context) == 0);
    CHECK(count == 0);
    return now() - start;
}

static void take_waited(BMI_addr_t peer, int tag, int class_number)
{
    struct BMI_unexpected_info info;
    int count = 0;
#ifdef BMI_API_ORANGEFS
    CHECK(class_number == 0);
    CHECK(BMI_testunexpected(1, &count, &info, 0) == 1 && count == 1);
#else
    CHECK(BMI_testunexpected_class(1, &count, &info, (uint8_t)class_number, 0) == 1 && count == 1);
#endif
    CHECK(info.addr == peer && info.tag == tag && info.size == 6);
    CHECK(memcmp(info.buffer, "onetwo", 6) == 0);
    CHECK(BMI_unexpected_free(peer, info.buffer) == 0);
}

/* A wait for completions ends where an unexpected message comes, or is there: one wait, where nobody takes
 * the message. */
static void unexpected_ends_waits(BMI_addr_t peer)
{
    int checks = 0;
    go(peer);
    CHECK(BMI_set_info(0, BMI_TCP_CHECK_UNEXPECTED, NULL) == -BMI_EINVAL);
    CHECK(BMI_set_info(0, BMI_TCP_CHECK_UNEXPECTED, &checks) == 0);
    CHECK(wait_in_vain(60) >= 0.055);
    checks = 1;
    CHECK(BMI_set_info(0, BMI_TCP_CHECK_UNEXPECTED, &checks) == 0);
    CHECK(wait_in_vain(HANG_SECONDS * 1000) < HANG_SECONDS);
    CHECK(wait_in_vain(60) >= 0.055);
    take_waited(peer, TAG_WAIT, 0);
#ifndef BMI_API_ORANGEFS
    /* Of any class. */
    go(peer);
    CHECK(wait_in_vain(HANG_SECONDS * 1000) < HANG_SECONDS);
    take_waited(peer, TAG_WAIT, CLASS);
#endif
}

static void server(const char *medium, int pipe_end)
{
    char url[512];
    struct BMI_unexpected_info info;
    BMI_addr_t peer;
    int index;
    serve(medium, url, sizeof url);
    CHECK(BMI_open_context(&context) == 0);
    CHECK(write(pipe_end, url, strlen(url)) > 0);
    info = wait_unexpected();
    peer = info.addr;
    CHECK(info.tag == TAG_LIST && info.size == 6 && memcmp(info.buffer, "onetwo", 6) == 0);
    CHECK(BMI_unexpected_free(peer, info.buffer) == 0);
    if (strcmp(medium, "tcp6") == 0)
        CHECK(strcmp(BMI_addr_rev_lookup_unexpected(peer), "::1") == 0);
    unexpected_ends_waits(peer);
    for (index = 0; index < LENGTHS; index++) {
        receive_memory(peer, lengths[index]);
        send_memory(peer, lengths[index]);
    }
    go(peer);
    CHECK(BMI_finalize() == 0);
}

/* ---- the client ---- */

/* The result of posting three pieces, of which one is empty, that are said to be `total` bytes. */
static int send_pieces(BMI_addr_t peer, int pieces, bmi_size_t total, int tag, int class_number)
{
    const void *buffers[] = {"one", NULL, "two"};
    const bmi_size_t sizes[] = {3, 0, 3};
    bmi_op_id_t id = 0;
    int posted;
#ifndef BMI_API_ORANGEFS
    if (class_number != 0)
        posted = BMI_post_sendunexpected_list_class(&id, peer, buffers, sizes, pieces, total,
                                                    BMI_EXT_ALLOC, tag, (uint8_t)class_number, NULL,
                                                    context, NULL);
    else
#endif
        posted = BMI_post_sendunexpected_list(&id, peer, buffers, sizes, pieces, total,
                                              BMI_EXT_ALLOC, tag, NULL, context, NULL);
    (void)class_number;
    return finish(posted, id, NULL, context);
}

/* A TCP connection of this process whose buffers were asked for with these sizes. */
static int is_connected_with(int send_bytes, int receive_bytes)
{
    int descriptor;
    for (descriptor = 3; descriptor < 1024; descriptor++) {
        struct sockaddr_storage there;
        int sends = 0, receives = 0;
        socklen_t address = sizeof there, length = sizeof sends;
        if (getpeername(descriptor, (struct sockaddr *)&there, &address) != 0 ||
            (there.ss_family != AF_INET && there.ss_family != AF_INET6))
            continue;
        CHECK(getsockopt(descriptor, SOL_SOCKET, SO_SNDBUF, &sends, &length) == 0);
        CHECK(getsockopt(descriptor, SOL_SOCKET, SO_RCVBUF, &receives, &length) == 0);
        /* The kernel counts its own needs in: it tells twice of what it was asked for. */
        if (sends == 2 * send_bytes && receives == 2 * receive_bytes)
            return 1;
    }
    return 0;
}

static void all_contexts(void)
{
    static bmi_context_id many[1024];
    struct rlimit limit;
    bmi_context_id one_more = -1;
    int index;
    CHECK(getrlimit(RLIMIT_NOFILE, &limit) == 0);
    if (limit.rlim_max < 2048) {
        fprintf(stderr, "SKIP: there are not descriptors enough for all contexts\n");
        return;
    }
    limit.rlim_cur = limit.rlim_max < 4096 ? limit.rlim_max : 4096;
    CHECK(setrlimit(RLIMIT_NOFILE, &limit) == 0);
    for (index = 1; index < 1024; index++)
        CHECK(BMI_open_context(&many[index]) == 0 && many[index] == index);
    CHECK(BMI_open_context(&one_more) == -BMI_EBUSY);
    BMI_close_context(many[700]);
    CHECK(BMI_open_context(&one_more) == 0 && one_more == 700);
    CHECK(BMI_open_context(&one_more) == -BMI_EBUSY);
    for (index = 1; index < 1024; index++)
        BMI_close_context(many[index]);
}

static void sizes_of_buffers(void)
{
    int bytes = 50000, negative = -1;
    CHECK(BMI_set_info(0, BMI_TCP_BUFFER_SEND_SIZE, &bytes) == 0);
    bytes = 60000;
    CHECK(BMI_set_info(0, BMI_TCP_BUFFER_RECEIVE_SIZE, &bytes) == 0);
    CHECK(BMI_set_info(0, BMI_TCP_BUFFER_SEND_SIZE, &negative) == -BMI_EINVAL);
    CHECK(BMI_set_info(0, BMI_TCP_BUFFER_RECEIVE_SIZE, &negative) == -BMI_EINVAL);
    CHECK(BMI_set_info(0, BMI_TCP_BUFFER_SEND_SIZE, NULL) == -BMI_EINVAL);
    CHECK(BMI_set_info(0, BMI_TCP_BUFFER_RECEIVE_SIZE, NULL) == -BMI_EINVAL);
}

static void hints_and_handles(BMI_addr_t peer)
{
    static char memory[4096];
    struct bmi_optimistic_buffer_info hint = {memory, sizeof memory, BMI_IO_READ};
    void *opaque = NULL;
    int seconds = 5;
    CHECK(BMI_set_info(peer, BMI_OPTIMISTIC_BUFFER_REG, &hint) == 0);
    /* 16 is standalone BMI's time-out where it is set, whatever the caller's header calls it. */
    CHECK(BMI_set_info(peer, 16, &seconds) == 0);
#ifndef BMI_API_ORANGEFS
    CHECK(BMI_set_info(0, BMI_ZOID_POST_TIMEOUT, &seconds) == 0);
#endif
    CHECK(BMI_get_info(peer, BMI_GET_METH_ADDR, &opaque) == 0 && opaque != NULL);
    CHECK(BMI_get_info(0x7777777, BMI_GET_METH_ADDR, &opaque) == -BMI_EINVAL);
    CHECK(BMI_get_info(peer, BMI_GET_METH_ADDR, NULL) == -BMI_EINVAL);
    CHECK(BMI_get_info(peer, BMI_DROP_ADDR, &opaque) == -BMI_ENOSYS);
}

/* An address that was dropped is unknown, and its handle means nothing else later. */
static void drop(const char *url, BMI_addr_t address, int option)
{
    BMI_addr_t again = address;
    bmi_op_id_t id = 0;
    char host[256];
    snprintf(host, sizeof host, "%s", BMI_addr_rev_lookup_unexpected(address));
    CHECK(strcmp(BMI_addr_rev_lookup(address), url) == 0);
    CHECK(BMI_set_info(address, option, NULL) == 0);
    CHECK(BMI_set_info(address, option, NULL) == -BMI_EINVAL);
    CHECK(BMI_addr_rev_lookup(address) == NULL);
    CHECK(strcmp(BMI_addr_rev_lookup_unexpected(address), "UNKNOWN") == 0);
    CHECK(BMI_set_info(address, BMI_INC_ADDR_REF, NULL) == -BMI_EINVAL);
    CHECK(BMI_memalloc(address, 10, BMI_SEND) == NULL);
    CHECK(BMI_post_send(&id, address, host, 1, BMI_EXT_ALLOC, 9, NULL, context, NULL) ==
          -BMI_EPROTO);
    CHECK(LOOKUP(&again, url) == 0 && again != 0 && again != address);
}

static void client(const char *url)
{
    BMI_addr_t peer, other;
    char alias[1024];
    int index;
    CHECK(INITIALIZE(NULL, NULL, 0) == 0);
    CHECK(BMI_open_context(&context) == 0 && context == 0);
    CHECK(LOOKUP(&peer, url) == 0);
    hints_and_handles(peer);
    sizes_of_buffers();
    CHECK(send_pieces(peer, 3, 7, TAG_LIST, 0) == -BMI_EINVAL);
    CHECK(send_pieces(peer, 0, 0, TAG_LIST, 0) == -BMI_EINVAL);
    CHECK(send_pieces(peer, 3, 16385, TAG_LIST, CLASS) == -BMI_EMSGSIZE);
    CHECK(send_pieces(peer, 3, 6, TAG_LIST, 0) == 0);
    wait_for_go(peer);
    if (strncmp(url, "tcp", 3) == 0)
        CHECK(is_connected_with(50000, 60000));
    usleep(20000);
    CHECK(send_pieces(peer, 3, 6, TAG_WAIT, 0) == 0);
#ifndef BMI_API_ORANGEFS
    wait_for_go(peer);
    usleep(20000);
    CHECK(send_pieces(peer, 3, 6, TAG_WAIT, CLASS) == 0);
#endif
    for (index = 0; index < LENGTHS; index++) {
        send_memory(peer, lengths[index]);
        receive_memory(peer, lengths[index]);
    }
    all_contexts();
    snprintf(alias, sizeof alias, "ib://nobody:1,%s", url);
    CHECK(LOOKUP(&other, alias) == 0 && other != peer);
    drop(alias, other, BMI_DROP_ADDR);
    wait_for_go(peer);
    drop(url, peer, BMI_TCP_CLOSE_SOCKET);
    BMI_close_context(context);
    CHECK(BMI_finalize() == 0);
}

/* Whether this host speaks IPv6 with itself. */
static int has_loopback_6(void)
{
    struct sockaddr_in6 address;
    int descriptor = socket(AF_INET6, SOCK_STREAM, 0), found;
    if (descriptor < 0)
        return 0;
    memset(&address, 0, sizeof address);
    address.sin6_family = AF_INET6;
    address.sin6_addr = in6addr_loopback;
    found = bind(descriptor, (struct sockaddr *)&address, sizeof address) == 0;
    close(descriptor);
    return found;
}

int main(int argc, char **argv)
{
    const char *medium = argc > 1 ? argv[1] : "tcp";
    if (strcmp(medium, "tcp6") == 0 && !has_loopback_6())
        puts("SKIP: there is no IPv6");
    else
        both(medium, server, client);
    puts("ok");
    return 0;
}
