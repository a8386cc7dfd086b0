/* What the interface promises, from both sides of a connection: return values, sizes, lists, classes,
 * contexts, cancel, addresses, options. Usage: semantics tcp|shm|udp|ether
 */
#include "check.h"

#define TAG_SYNC 1000
#define TAG_ECHO 1001
#define TAG_LIST 1002
#define TAG_LONG 1003
#define TAG_NONE 1004

static unsigned char pattern(size_t at)
{
    return (unsigned char)(at * 131 + at / 251 + 7);
}

static void sync_with(BMI_addr_t peer, bmi_context_id context)
{
    char byte = 1;
    bmi_size_t got = -1;
    CHECK(send_to(peer, &byte, 1, TAG_SYNC, context) == 0);
    CHECK(receive_from(peer, &byte, 1, &got, TAG_SYNC, context) == 0 && got == 1);
}

/* ---- lists: different pieces on both sides ---- */

static const int counts[] = {1, 10, 64, 1024, 5000};
#define COUNTS 5

/* Pieces of a buffer of `total` bytes; every seventh is empty where there are many. */
static void cut(unsigned char *base, bmi_size_t total, int count, void **buffers, bmi_size_t *sizes)
{
    bmi_size_t done = 0;
    int index;
    for (index = 0; index < count; index++) {
        bmi_size_t left = total - done;
        bmi_size_t size = left / (count - index);
        if (index == count - 1)
            size = left;
        else if (count > 7 && index % 7 == 3)
            size = 0;
        else if (index % 2 == 0 && size > 1)
            size -= size / 3;
        buffers[index] = base + done;
        sizes[index] = size;
        done += size;
    }
}

static void lists(BMI_addr_t peer, bmi_context_id context, int sends)
{
    const bmi_size_t totals[] = {5000, 60000, 3000000};
    int total, mine, theirs, index;
    void **buffers = (void **)malloc(5000 * sizeof *buffers);
    bmi_size_t *sizes = (bmi_size_t *)malloc(5000 * sizeof *sizes);
    for (total = 0; total < 3; total++) {
        unsigned char *bytes = (unsigned char *)malloc((size_t)totals[total]);
        for (mine = 0; mine < COUNTS; mine++) {
            for (theirs = 0; theirs < COUNTS; theirs++) {
                bmi_op_id_t id = 0;
                bmi_size_t got = -1;
                int posted;
                cut(bytes, totals[total], counts[sends ? mine : theirs], buffers, sizes);
                if (sends) {
                    for (index = 0; index < totals[total]; index++)
                        bytes[index] = pattern((size_t)index + (size_t)mine);
                    posted = BMI_post_send_list(&id, peer, (const void *const *)buffers, sizes,
                                                counts[mine], totals[total], BMI_EXT_ALLOC,
                                                TAG_LIST, NULL, context, NULL);
                    CHECK(finish(posted, id, NULL, context) == 0);
                } else {
                    memset(bytes, 0, (size_t)totals[total]);
                    posted = BMI_post_recv_list(&id, peer, buffers, sizes, counts[theirs],
                                                totals[total], &got, BMI_EXT_ALLOC, TAG_LIST, NULL,
                                                context, NULL);
                    CHECK(finish(posted, id, &got, context) == 0);
                    CHECK(got == totals[total]);
                    for (index = 0; index < totals[total]; index++)
                        CHECK(bytes[index] == pattern((size_t)index + (size_t)mine));
                }
            }
        }
        free(bytes);
    }
    free(buffers);
    free(sizes);
}

/* ---- the server ---- */

static void answer_classes(void)
{
#ifndef BMI_API_ORANGEFS
    struct BMI_unexpected_info info[4];
    int count = 0, class_number, total = 0;
    double start = now();
    /* Those of the last class first: messages of others wait their turn. */
    for (class_number = 2; class_number >= 0; class_number--) {
        for (total = 0; total < 3;) {
            CHECK(BMI_testunexpected_class(1, &count, info, (uint8_t)class_number, 50) >= 0);
            CHECK(now() - start < HANG_SECONDS);
            if (count == 0)
                continue;
            CHECK(info[0].tag == 100 * class_number + total && info[0].size == 4);
            CHECK(memcmp(info[0].buffer, "abc", 4) == 0);
            CHECK(BMI_unexpected_free(info[0].addr, info[0].buffer) == 0);
            total++;
        }
    }
#endif
}

/* Where a peer is, and which patterns mean it. */
static void place_of(const char *medium, BMI_addr_t peer)
{
    char pattern[64];
    const char *host = BMI_addr_rev_lookup_unexpected(peer);
    if (strcmp(medium, "ether") == 0) {
        CHECK(strcmp(host, told("ETHER_CLIENT")) == 0);
        CHECK(BMI_query_addr_range(peer, "ether://02:00:*", -1) == 1);
        CHECK(BMI_query_addr_range(peer, "ether://04:00:*", -1) == 0);
        CHECK(BMI_query_addr_range(peer, "udp://02:00:*", -1) == 0);
        snprintf(pattern, sizeof pattern, "ether://%s/7", host);
        CHECK(BMI_query_addr_range(peer, pattern, -1) == 1);
        /* Bits are of addresses of the Internet's. */
        CHECK(BMI_query_addr_range(peer, pattern, 8) < 0);
        return;
    }
    CHECK(strcmp(host, "127.0.0.1") == 0);
    /* A pattern for tcp covers peers on the same host, too. */
    snprintf(pattern, sizeof pattern, "%s://127.0.*", strcmp(medium, "udp") == 0 ? "udp" : "tcp");
    CHECK(BMI_query_addr_range(peer, pattern, -1) == 1);
    memcpy(strchr(pattern, '1'), "10.0.*", 7);
    CHECK(BMI_query_addr_range(peer, pattern, -1) == 0);
    memcpy(strchr(pattern, '1'), "127.0.0.0", 10);
    CHECK(BMI_query_addr_range(peer, pattern, 8) == 1);
}

static void server(const char *medium, int pipe_end)
{
    char url[512], small[64];
    struct BMI_unexpected_info info;
    bmi_context_id context;
    bmi_size_t got = -1;
    BMI_addr_t peer, self;
    unsigned char *large = (unsigned char *)malloc(4 << 20);
    int tags, index;

    serve(medium, url, sizeof url);
    CHECK(BMI_open_context(&context) == 0);
    CHECK(write(pipe_end, url, strlen(url)) == (ssize_t)strlen(url));

    info = wait_unexpected();
    CHECK(info.tag == -5 && info.size == 5 && memcmp(info.buffer, "hello", 5) == 0);
    peer = info.addr;
    CHECK(peer != 0);
    CHECK(BMI_addr_rev_lookup(peer) == NULL);
    place_of(medium, peer);
    CHECK(BMI_query_addr_range(peer, "nonsense", 8) < 0);
    CHECK(BMI_unexpected_free(peer, info.buffer) == 0);
    CHECK(BMI_unexpected_free(peer, info.buffer) == -BMI_EINVAL);

    info = wait_unexpected();
    CHECK(info.tag == 6 && info.size == 0);
    CHECK(BMI_unexpected_free(peer, info.buffer) == 0);
    /* Each of the two messages counted a reference. */
    CHECK(BMI_set_info(peer, BMI_DEC_ADDR_REF, NULL) == 0);
    CHECK(BMI_set_info(peer, BMI_DEC_ADDR_REF, NULL) == 0);
    CHECK(BMI_set_info(peer, BMI_DEC_ADDR_REF, NULL) == -BMI_EINVAL);

    /* Its own URL, and a message to itself. */
    CHECK(LOOKUP(&self, url) == 0 && strcmp(BMI_addr_rev_lookup(self), url) == 0);
    CHECK(send_to(self, "me", 3, 9, context) == 0);
    CHECK(receive_from(self, small, sizeof small, &got, 9, context) == 0 && got == 3);
    CHECK(send_unexpected_to(self, "me", 3, 10, context) == 0);
    info = wait_unexpected();
    CHECK(info.addr == self && info.tag == 10 && info.size == 3);
    CHECK(BMI_unexpected_free(self, info.buffer) == 0);

    sync_with(peer, context);
    answer_classes();
    sync_with(peer, context);

    /* Echo, whatever the length, posted before and after it arrives. */
    for (tags = 0; tags < 40; tags++) {
        bmi_size_t length = (bmi_size_t)1 << (tags / 2);
        if (tags % 2 == 1)
            usleep(2000);
        CHECK(receive_from(peer, large, length, &got, TAG_ECHO, context) == 0 && got == length - 1);
        CHECK(send_to(peer, large, got, TAG_ECHO, context) == 0);
    }
    lists(peer, context, 0);
    lists(peer, context, 1);

    /* Too long for the receive: posted before, and after. */
    sync_with(peer, context);
    for (index = 0; index < 2; index++) {
        bmi_size_t lengths[] = {100, 100000};
        if (index == 1)
            sync_with(peer, context);
        for (tags = 0; tags < 2; tags++) {
            CHECK(receive_from(peer, small, 10, &got, TAG_LONG + tags, context) == -BMI_EPROTO);
            CHECK(receive_from(peer, large, 1 << 20, &got, TAG_LONG + tags, context) == 0);
            CHECK(got == lengths[tags]);
        }
    }
    sync_with(peer, context);
    CHECK(send_to(peer, "last", 5, TAG_NONE, context) == 0);
    sync_with(peer, context);
    BMI_close_context(context);
    free(large);
    CHECK(BMI_finalize() == 0);
}

/* ---- the client ---- */

static void contexts_and_arguments(BMI_addr_t peer)
{
    static bmi_context_id many[BMI_MAX_CONTEXTS + 1];
    bmi_context_id context;
    bmi_op_id_t id = 77, cancelled = 0;
    bmi_size_t size = -1, got = -1;
    bmi_error_code_t error = 1;
    int count = -1, index, opened;
    char byte = 0;
    char *methods = NULL;
    void *memory, *user = NULL;

    CHECK(BMI_open_context(&context) == 0);
    for (opened = 0; opened < 100; opened++)
        CHECK(BMI_open_context(&many[opened]) == 0 && many[opened] != context);
    for (index = 0; index < opened; index++)
        BMI_close_context(many[index]);
    BMI_close_context(9999);
    BMI_close_context(-1);

    CHECK(BMI_post_recv(&id, peer, &byte, -1, &got, BMI_EXT_ALLOC, 0, NULL, context, NULL) ==
          -BMI_EINVAL);
    CHECK(BMI_post_recv(&id, peer, &byte, 1, &got, BMI_EXT_ALLOC, 0, NULL, 500, NULL) ==
          -BMI_EINVAL);
    /* Told at once, or where somebody else makes progress just then with its test. */
    CHECK(send_to(0, &byte, 1, 0, context) == -BMI_EPROTO);
    CHECK(send_to(0x7777777, &byte, 1, 0, context) == -BMI_EPROTO);
    CHECK(BMI_post_send(&id, peer, NULL, 1, BMI_EXT_ALLOC, 0, NULL, context, NULL) == -BMI_EFAULT);
    CHECK(BMI_post_send_list(&id, peer, NULL, NULL, 0, 0, BMI_EXT_ALLOC, 0, NULL, context, NULL) ==
          -BMI_EINVAL);
    memory = malloc(20000);
    memset(memory, 0, 20000);
    CHECK(BMI_get_info(peer, BMI_GET_UNEXP_SIZE, &count) == 0 && count >= 8192 && count < 20000);
    CHECK(BMI_post_sendunexpected(&id, peer, memory, count + 1, BMI_EXT_ALLOC, 0, NULL, context,
                                  NULL) == -BMI_EMSGSIZE);
    free(memory);

    /* Operations that are no more, and never were. */
    CHECK(BMI_test(0, &count, &error, &size, NULL, 0, context) <= 0 && count == 0);
    CHECK(BMI_test(0x123456789, &count, &error, &size, NULL, 1000, context) < 0 && count == 0);
    CHECK(BMI_test(1, &count, &error, &size, NULL, -1, context) == -BMI_EINVAL);
    CHECK(BMI_cancel(0x123456789, context) == 0);

    /* A receive that nobody answers is cancelled, and reported. */
    CHECK(BMI_post_recv(&cancelled, peer, &byte, 1, &got, BMI_EXT_ALLOC, 4711, &byte, context,
                        NULL) == 0);
    CHECK(BMI_test(cancelled, &count, &error, &size, &user, 0, context) == 0 && count == 0);
    CHECK(BMI_cancel(cancelled, context) == 0);
    CHECK(BMI_testcontext(1, &id, &count, &error, &size, &user, 1000, context) == 1 && count == 1);
    CHECK(id == cancelled && error == -BMI_ECANCEL && user == &byte);
    CHECK(BMI_cancel(cancelled, context) == 0);
    CHECK(BMI_test(cancelled, &count, &error, &size, &user, 10, context) < 0 && count == 0);

    /* Memory. */
    memory = BMI_memalloc(peer, 100000, BMI_SEND);
    CHECK(memory != NULL && (uintptr_t)memory % 4096 == 0);
    memset(memory, 1, 100000);
    CHECK(BMI_memfree(peer, memory, 100000, BMI_SEND) == 0);
    CHECK(BMI_memfree(peer, &byte, 1, BMI_SEND) == -BMI_EINVAL);
    CHECK(BMI_memalloc(0x7777777, 10, BMI_SEND) == NULL);

    /* Options. */
    CHECK(BMI_get_info(0, BMI_CHECK_INIT, NULL) == 0);
    CHECK(BMI_get_info(0, BMI_CHECK_MAXSIZE, &count) == 0 && count >= 16 << 20);
    CHECK(BMI_get_info(0, BMI_TRANSPORT_METHODS_STRING, &methods) >= 2);
    CHECK(strstr(methods, "tcp,") != NULL && methods[strlen(methods) - 1] == ',');
    free(methods);
    CHECK(BMI_get_info(0, 999, &count) == -BMI_ENOSYS && BMI_set_info(0, 999, &count) == 0);
    CHECK(BMI_set_info(0, BMI_TRUSTED_CONNECTION, &count) == -BMI_ENOSYS);
    CHECK(BMI_set_info(0, BMI_FORCEFUL_CANCEL_MODE, NULL) == 0);
    CHECK(BMI_set_info(peer, BMI_DEC_ADDR_REF, NULL) == -BMI_EINVAL);
    CHECK(BMI_set_info(peer, BMI_INC_ADDR_REF, NULL) == 0);
    CHECK(BMI_set_info(peer, BMI_DEC_ADDR_REF, NULL) == 0);
    CHECK(BMI_addr_rev_lookup(peer) != NULL);

    /* Codes. */
    CHECK(bmi_errno_to_pvfs(-22) == -BMI_EINVAL && bmi_errno_to_pvfs(111) == BMI_ECONNREFUSED);
    CHECK(strcmp(bmi_status_string(-BMI_ECANCEL), "ECANCEL") == 0);
    BMI_close_context(context);
}

static void addresses(const char *url)
{
    char longer[4096], list[1024];
    BMI_addr_t first, second, other;
    CHECK(LOOKUP(&first, url) == 0 && LOOKUP(&second, url) == 0 && first == second && first != 0);
    CHECK(LOOKUP(&other, "gm://board:1") == -BMI_ENOPROTOOPT);
    memset(longer, 'x', sizeof longer);
    longer[sizeof longer - 1] = '\0';
    CHECK(LOOKUP(&other, longer) == -BMI_ENAMETOOLONG);
    CHECK(LOOKUP(&other, NULL) == -BMI_EINVAL);
    CHECK(BMI_addr_rev_lookup(0x7777777) == NULL);
    CHECK(strcmp(BMI_addr_rev_lookup_unexpected(0x7777777), "UNKNOWN") == 0);
    snprintf(list, sizeof list, "ib://nobody:3,%s", url);
    CHECK(LOOKUP(&other, list) == 0 && other != first);
    CHECK(strcmp(BMI_addr_rev_lookup(other), list) == 0);
}

static void client(const char *url)
{
    BMI_addr_t peer;
    bmi_context_id context, other;
    bmi_op_id_t ids[4] = {0, 0, 0, 0}, id = 0;
    bmi_size_t got = -1, sizes[4];
    bmi_error_code_t errors[4];
    int count = 0, index, tags, posted, where[4];
    char small[64];
    void *users[4];
    unsigned char *large = (unsigned char *)malloc(4 << 20);
    double start;

    CHECK(BMI_get_info(0, BMI_CHECK_INIT, NULL) == -BMI_ENETDOWN);
    CHECK(INITIALIZE("tcp", NULL, 0) == -BMI_EINVAL);
    CHECK(INITIALIZE(NULL, "tcp://127.0.0.1", 0) == -BMI_EINVAL);
    CHECK(INITIALIZE("bmi_tcp", NULL, BMI_INIT_SERVER) == -BMI_EINVAL);
    CHECK(INITIALIZE(NULL, NULL, 0) == 0 && INITIALIZE(NULL, NULL, 0) == 0);
    CHECK(BMI_finalize() == 0);
    CHECK(BMI_get_info(0, BMI_CHECK_INIT, NULL) == -BMI_ENETDOWN);
    CHECK(BMI_set_info(0, BMI_FORCEFUL_CANCEL_MODE, NULL) == -BMI_EINVAL);
    CHECK(BMI_open_context(&context) == 0 && BMI_open_context(&other) == 0 && context != other);
    CHECK(BMI_testcontext(4, ids, &count, errors, sizes, users, 0, context) == 0 && count == 0);
    addresses(url);
    CHECK(LOOKUP(&peer, url) == 0);
    contexts_and_arguments(peer);

    CHECK(send_unexpected_to(peer, "hello", 5, -5, context) == 0);
    CHECK(send_unexpected_to(peer, NULL, 0, 6, context) == 0);
    sync_with(peer, context);

    /* Connected: what is small is complete at once, unless another thread of the library is at work just then. */
    start = now();
    do {
        id = 0;
        posted = BMI_post_send(&id, peer, "x", 1, BMI_EXT_ALLOC, 30000, NULL, context, NULL);
        CHECK((posted == 1) == (id == 0));
        CHECK(finish(posted, id, NULL, context) == 0);
    } while (posted != 1 && now() - start < 5);
    CHECK(posted == 1);
#ifndef BMI_API_ORANGEFS
    for (tags = 0; tags < 3; tags++)
        for (index = 0; index < 3; index++) {
            posted = BMI_post_sendunexpected_class(&id, peer, "abc", 4, BMI_EXT_ALLOC,
                                                   100 * index + tags, (uint8_t)index, NULL,
                                                   context, NULL);
            CHECK(finish(posted, id, NULL, context) == 0);
        }
#endif
    sync_with(peer, context);

    for (tags = 0; tags < 40; tags++) {
        bmi_size_t length = ((bmi_size_t)1 << (tags / 2)) - 1;
        for (index = 0; index < length; index++)
            large[index] = pattern((size_t)(index + tags));
        CHECK(send_to(peer, large, length, TAG_ECHO, context) == 0);
        memset(large, 0, (size_t)length);
        CHECK(receive_from(peer, large, 4 << 20, &got, TAG_ECHO, context) == 0 && got == length);
        for (index = 0; index < length; index++)
            CHECK(large[index] == pattern((size_t)(index + tags)));
    }
    lists(peer, context, 1);
    lists(peer, context, 0);

    sync_with(peer, context);
    usleep(20000);
    for (index = 0; index < 2; index++) {
        CHECK(send_to(peer, large, 100, TAG_LONG, context) == 0);
        posted = BMI_post_send(&id, peer, large, 100000, BMI_EXT_ALLOC, TAG_LONG + 1, NULL, context,
                               NULL);
        if (index == 0) {
            bmi_op_id_t second = 0;
            int later = BMI_post_send(&second, peer, "s", 1, BMI_EXT_ALLOC, TAG_SYNC, NULL, context,
                                      NULL);
            CHECK(finish(posted, id, NULL, context) == 0);
            CHECK(finish(later, second, NULL, context) == 0);
            CHECK(receive_from(peer, small, 1, &got, TAG_SYNC, context) == 0);
        } else {
            CHECK(finish(posted, id, NULL, context) == 0);
        }
    }

    /* Some of several: the one that is answered, at its place. */
    for (index = 0; index < 3; index++) {
        posted = BMI_post_recv(&ids[index == 2 ? 3 : index], peer, small, 10, &got, BMI_EXT_ALLOC,
                               index == 1 ? TAG_NONE : 20000 + index, &small[index], context, NULL);
        CHECK(posted == 0 && got == 0);
    }
    ids[2] = 0;
    CHECK(BMI_testsome(4, ids, &count, where, errors, sizes, users, 0, context) == 0 && count == 0);
    sync_with(peer, context);
    start = now();
    while (count == 0) {
        CHECK(BMI_testsome(4, ids, &count, where, errors, sizes, users, 100, context) >= 0);
        CHECK(now() - start < HANG_SECONDS);
    }
    CHECK(count == 1 && where[0] == 1 && errors[0] == 0 && sizes[0] == 5 && users[0] == &small[1]);
    CHECK(BMI_cancel(ids[0], context) == 0 && BMI_cancel(ids[3], context) == 0);
    ids[1] = 0;
    CHECK(BMI_testsome(4, ids, &count, where, errors, sizes, NULL, 1000, context) == 1);
    CHECK(count == 2 && where[0] == 0 && where[1] == 3);
    CHECK(errors[0] == -BMI_ECANCEL && errors[1] == -BMI_ECANCEL);

    /* Idle time is a maximum that is kept where nothing happens. */
    start = now();
    CHECK(BMI_testcontext(4, ids, &count, errors, sizes, users, 60, other) == 0 && count == 0);
    CHECK(now() - start >= 0.055);
    sync_with(peer, context);
    BMI_close_context(other);
    BMI_close_context(context);
    free(large);
    CHECK(BMI_finalize() == 0);
    CHECK(BMI_testcontext(4, ids, &count, errors, sizes, users, 0, context) < 0);
}

int main(int argc, char **argv)
{
    both(argc > 1 ? argv[1] : "tcp", server, client);
    puts("ok");
    return 0;
}
