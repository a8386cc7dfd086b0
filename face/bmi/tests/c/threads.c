/* Eight threads with a context each on one library, to a server that does the same: no completion is
 * lost, none is seen by a thread that did not post it. Usage: threads tcp|shm|udp|ether
 */
#include "check.h"
#include <pthread.h>

#define THREADS 8
#define ROUNDS 400
#define DEPTH 8

static BMI_addr_t peer;

struct Place {
    int thread, busy;
    unsigned char bytes[70000];
};

static int length_of(int round)
{
    return round % 11 == 0 ? 60000 + round : 1 + round * 37 % 9000;
}

/* Each thread keeps DEPTH sends and DEPTH receives under way, tags of its own. */
static void *work(void *argument)
{
    int thread = (int)(intptr_t)argument, sent = 0, received = 0, done = 0, index;
    bmi_context_id context;
    struct Place *out = (struct Place *)calloc(DEPTH, sizeof *out);
    struct Place *in = (struct Place *)calloc(DEPTH, sizeof *in);
    int rounds[DEPTH];
    double start = now();
    CHECK(BMI_open_context(&context) == 0);
    while (done < 2 * ROUNDS) {
        bmi_op_id_t ids[4], id = 0;
        bmi_error_code_t errors[4];
        bmi_size_t sizes[4], got = 0;
        void *users[4];
        int count = 0, posted;
        CHECK(now() - start < HANG_SECONDS);
        for (index = 0; index < DEPTH; index++) {
            if (!out[index].busy && sent < ROUNDS) {
                int length = length_of(sent);
                out[index].thread = thread;
                memset(out[index].bytes, thread * 16 + sent % 16, (size_t)length);
                posted = BMI_post_send(&id, peer, out[index].bytes, length, BMI_EXT_ALLOC,
                                       thread * 1000 + sent % 7, &out[index], context, NULL);
                CHECK(posted >= 0);
                out[index].busy = posted == 0;
                done += posted;
                sent++;
            }
            if (!in[index].busy && received < ROUNDS) {
                in[index].thread = thread;
                rounds[index] = received;
                posted = BMI_post_recv(&id, peer, in[index].bytes, sizeof in[index].bytes, &got,
                                       BMI_EXT_ALLOC, thread * 1000 + received % 7, &in[index],
                                       context, NULL);
                CHECK(posted >= 0);
                in[index].busy = posted == 0;
                if (posted == 1) {
                    CHECK(got == length_of(received));
                    CHECK(in[index].bytes[got - 1] == (unsigned char)(thread * 16 + received % 16));
                    done++;
                }
                received++;
            }
        }
        CHECK(BMI_testcontext(4, ids, &count, errors, sizes, users, done % 3 == 0 ? 0 : 5, context) >=
              0);
        for (index = 0; index < count; index++) {
            struct Place *place = (struct Place *)users[index];
            CHECK(errors[index] == 0 && place->thread == thread && place->busy);
            place->busy = 0;
            done++;
            if (place >= in && place < in + DEPTH) {
                int round = rounds[place - in];
                CHECK(sizes[index] == length_of(round));
                CHECK(place->bytes[sizes[index] - 1] == (unsigned char)(thread * 16 + round % 16));
            }
        }
    }
    BMI_close_context(context);
    free(out);
    free(in);
    return NULL;
}

static void run(void)
{
    pthread_t threads[THREADS];
    int index;
    for (index = 0; index < THREADS; index++)
        CHECK(pthread_create(&threads[index], NULL, work, (void *)(intptr_t)index) == 0);
    for (index = 0; index < THREADS; index++)
        CHECK(pthread_join(threads[index], NULL) == 0);
}

/* Nobody leaves before both are done. */
static void part(void)
{
    bmi_context_id context;
    char byte = 1;
    bmi_size_t got;
    CHECK(BMI_open_context(&context) == 0);
    CHECK(send_to(peer, &byte, 1, 99999, context) == 0);
    CHECK(receive_from(peer, &byte, 1, &got, 99999, context) == 0);
    CHECK(BMI_finalize() == 0);
}

static void server(const char *medium, int pipe_end)
{
    char url[512];
    struct BMI_unexpected_info info;
    serve(medium, url, sizeof url);
    CHECK(write(pipe_end, url, strlen(url)) > 0);
    info = wait_unexpected();
    peer = info.addr;
    CHECK(BMI_unexpected_free(peer, info.buffer) == 0);
    run();
    part();
}

static void client(const char *url)
{
    bmi_context_id context;
    CHECK(INITIALIZE(NULL, NULL, 0) == 0);
    CHECK(BMI_open_context(&context) == 0);
    CHECK(LOOKUP(&peer, url) == 0);
    CHECK(send_unexpected_to(peer, "go", 2, 0, context) == 0);
    run();
    part();
}

int main(int argc, char **argv)
{
    both(argc > 1 ? argv[1] : "tcp", server, client);
    puts("ok");
    return 0;
}
