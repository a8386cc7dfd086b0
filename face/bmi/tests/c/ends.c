/* What is given back, and limits: descriptors, memory, sizes. Usage: ends CASE */
#include "check.h"
#include <sys/resource.h>

static bmi_context_id context;

/* ---- contexts at the limit of descriptors ---- */

static int open_descriptors(void)
{
    int count = 0, descriptor;
    for (descriptor = 0; descriptor < 1024; descriptor++)
        count += fcntl(descriptor, F_GETFD) >= 0;
    return count;
}

static void contexts(void)
{
    enum { LIMIT = 48 };
    struct rlimit limit = {LIMIT, LIMIT};
    bmi_context_id many[LIMIT];
    int files[LIMIT], count = 0, filled = 0, before, round;
    CHECK(setrlimit(RLIMIT_NOFILE, &limit) == 0);
    CHECK(INITIALIZE("bmi_tcp", "tcp://127.0.0.1", BMI_INIT_SERVER | BMI_TCP_BIND_SPECIFIC) == 0);
    before = open_descriptors();
    for (round = 0; round < 3; round++) {
        while (count < LIMIT && BMI_open_context(&many[count]) == 0)
            count++;
        CHECK(count > 2 && count < LIMIT);
        while (filled < LIMIT && (files[filled] = open("/dev/null", O_RDONLY)) >= 0)
            filled++;
        CHECK(open_descriptors() >= LIMIT);
        while (count > 0)
            BMI_close_context(many[--count]);
        CHECK(open_descriptors() == before + filled);
        while (filled > 0)
            close(files[--filled]);
    }
    CHECK(BMI_finalize() == 0);
}

/* ---- memory of the library's ---- */

static long shared_kilobytes(void)
{
    char line[200];
    long found = -1;
    FILE *file = fopen("/proc/self/status", "r");
    CHECK(file != NULL);
    while (fgets(line, sizeof line, file) != NULL)
        if (strncmp(line, "RssShmem:", 9) == 0)
            found = atol(line + 9);
    fclose(file);
    CHECK(found >= 0);
    return found;
}

/* With `given_back` the program frees what it had, else the library does. */
static void live_with_memory(const char *url, int given_back)
{
    enum { BYTES = 40 << 20, PIECE = 100000 };
    BMI_addr_t own;
    char *large, *small;
    CHECK(INITIALIZE("bmi_tcp", url, BMI_INIT_SERVER | BMI_TCP_BIND_SPECIFIC) == 0);
    CHECK(LOOKUP(&own, "tcp://127.0.0.1:9") == 0);
    large = (char *)BMI_memalloc(own, BYTES, BMI_SEND);
    small = (char *)BMI_memalloc(own, PIECE, BMI_RECV);
    CHECK(large != NULL && small != NULL);
    memset(large, 1, BYTES);
    memset(small, 2, PIECE);
    CHECK(shared_kilobytes() >= BYTES / 1024);
    if (given_back) {
        CHECK(BMI_memfree(own, large, BYTES, BMI_SEND) == 0);
        CHECK(BMI_memfree(own, small, PIECE, BMI_RECV) == 0);
    }
    CHECK(BMI_finalize() == 0);
}

static void memory(void)
{
    long before = shared_kilobytes();
    int descriptors = open_descriptors(), round;
    for (round = 0; round < 4; round++) {
        live_with_memory("tcp://127.0.0.1", round % 2);
        CHECK(open_descriptors() == descriptors);
        CHECK(shared_kilobytes() <= before + 1024);
    }
}

/* ---- a server that would listen nowhere ---- */

static void nowhere(void)
{
    const char *none[] = {"", " ", ",", "\n", ", \t\r\n"};
    size_t index;
    for (index = 0; index < sizeof none / sizeof none[0]; index++) {
        CHECK(INITIALIZE(none[index], "tcp://127.0.0.1", BMI_INIT_SERVER) == -BMI_EINVAL);
        CHECK(INITIALIZE("bmi_tcp", none[index], BMI_INIT_SERVER) == -BMI_EINVAL);
    }
    CHECK(BMI_finalize() == 0);
}

/* ---- the longest unexpected message ---- */

static void unexpected_size(void)
{
    static const char bytes[101];
    int size = 0;
    bmi_op_id_t id = 0;
    BMI_addr_t peer;
    CHECK(INITIALIZE(NULL, NULL, 0) == 0);
    CHECK(LOOKUP(&peer, "tcp://127.0.0.1:9") == 0);
    CHECK(BMI_get_info(0, BMI_GET_UNEXP_SIZE, &size) == 0 && size == 16384);
    CHECK(BMI_finalize() == 0);
    CHECK(setenv("ROPEWALK_BMI_MAX_MESSAGE", "100", 1) == 0);
    CHECK(INITIALIZE(NULL, NULL, 0) == 0);
    CHECK(BMI_open_context(&context) == 0);
    CHECK(LOOKUP(&peer, "tcp://127.0.0.1:9") == 0);
    CHECK(BMI_get_info(0, BMI_GET_UNEXP_SIZE, &size) == 0 && size == 100);
    CHECK(BMI_post_sendunexpected(&id, peer, bytes, size + 1, BMI_EXT_ALLOC, 1, NULL, context,
                                  NULL) == -BMI_EMSGSIZE);
    CHECK(BMI_finalize() == 0);
}

/* ---- small buffers of the system's ---- */

enum { MOVED = 1 << 20 };
/* What the server and the client choose, before there is a connection. */
static int chosen[2];

static void choose(int bytes)
{
    if (bytes > 0) {
        CHECK(BMI_set_info(0, BMI_TCP_BUFFER_SEND_SIZE, &bytes) == 0);
        CHECK(BMI_set_info(0, BMI_TCP_BUFFER_RECEIVE_SIZE, &bytes) == 0);
    }
}

static void take_and_give(const char *medium, int pipe_end)
{
    char url[512], *bytes = (char *)calloc(1, MOVED);
    struct BMI_unexpected_info info;
    bmi_size_t got = 0;
    serve(medium, url, sizeof url);
    choose(chosen[0]);
    CHECK(BMI_open_context(&context) == 0);
    CHECK(write(pipe_end, url, strlen(url)) > 0);
    info = wait_unexpected();
    CHECK(receive_from(info.addr, bytes, MOVED, &got, 2, context) == 0 && got == MOVED);
    CHECK(send_to(info.addr, bytes, MOVED, 3, context) == 0);
    CHECK(BMI_unexpected_free(info.addr, info.buffer) == 0);
    CHECK(wait_unexpected().tag == 4);
    CHECK(BMI_finalize() == 0);
}

static void give_and_take(const char *url)
{
    char *bytes = (char *)calloc(1, MOVED);
    bmi_size_t got = 0;
    BMI_addr_t peer;
    double begun;
    CHECK(INITIALIZE(NULL, NULL, 0) == 0);
    CHECK(BMI_open_context(&context) == 0);
    CHECK(LOOKUP(&peer, url) == 0);
    choose(chosen[1]);
    begun = now();
    CHECK(send_unexpected_to(peer, "go", 2, 1, context) == 0);
    CHECK(send_to(peer, bytes, MOVED, 2, context) == 0);
    CHECK(receive_from(peer, bytes, MOVED, &got, 3, context) == 0 && got == MOVED);
    CHECK(now() - begun < HANG_SECONDS / 6.0);
    CHECK(send_unexpected_to(peer, "end", 3, 4, context) == 0);
    CHECK(BMI_finalize() == 0);
    free(bytes);
}

static void small_buffers(void)
{
    static const int sizes[][2] = {{1, 0}, {0, 1}, {4096, 0}, {0, 4096}, {8192, 8192}};
    size_t index;
    for (index = 0; index < sizeof sizes / sizeof sizes[0]; index++) {
        chosen[0] = sizes[index][0];
        chosen[1] = sizes[index][1];
        both("tcp", take_and_give, give_and_take);
    }
}

int main(int argc, char **argv)
{
    static const struct {
        const char *name;
        void (*run)(void);
    } cases[] = {
        {"contexts", contexts},
        {"memory", memory},
        {"nowhere", nowhere},
        {"unexpected_size", unexpected_size},
        {"small_buffers", small_buffers},
    };
    size_t index;
    CHECK(argc == 2);
    for (index = 0; index < sizeof cases / sizeof cases[0]; index++)
        if (strcmp(argv[1], cases[index].name) == 0) {
            cases[index].run();
            puts("ok");
            return 0;
        }
    return 1;
}
