/* Datatypes: sizes, extents and true extents, and which bytes an operation with them moves. */
#include "check.h"
#include <stddef.h>

struct mixed {
    char tag;
    double value;
    short last;
};

static void measure(rw_type type, rw_count size, rw_aint lower, rw_aint extent, rw_aint true_lower, rw_aint true_extent)
{
    rw_count got = -1;
    rw_aint at = -1, bytes = -1;
    OK(rw_type_size(type, &got));
    CHECK(got == size);
    OK(rw_type_get_extent(type, &at, &bytes));
    CHECK(at == lower && bytes == extent);
    OK(rw_type_get_true_extent(type, &at, &bytes));
    CHECK(at == true_lower && bytes == true_extent);
}

static void sizes(void)
{
    rw_type type, other;
    const rw_count lengths[3] = {2, 0, 1};
    const rw_aint at[3] = {3, 9, 0};
    const rw_count three[3] = {1, 1, 1}, array[2] = {4, 6}, part[2] = {2, 3}, start[2] = {1, 2};
    const rw_aint fields[3] = {offsetof(struct mixed, tag), offsetof(struct mixed, value), offsetof(struct mixed, last)};
    const rw_type of[3] = {RW_CHAR, RW_DOUBLE, RW_SHORT};
    measure(RW_INT, 4, 0, 4, 0, 4);
    measure(RW_LONG, sizeof(long), 0, sizeof(long), 0, sizeof(long));
    measure(RW_DOUBLE_INT, 12, 0, 16, 0, 12);
    OK(rw_type_contiguous(5, RW_SHORT, &type));
    measure(type, 10, 0, 10, 0, 10);
    OK(rw_type_free(&type));
    OK(rw_type_vector(3, 2, 4, RW_INT, &type));
    measure(type, 24, 0, 40, 0, 40);
    /* A type that another one was made of may go. */
    OK(rw_type_contiguous(2, type, &other));
    OK(rw_type_free(&type));
    measure(other, 48, 0, 80, 0, 80);
    OK(rw_type_free(&other));
    OK(rw_type_hvector(2, 1, -16, RW_INT, &type));
    measure(type, 8, -16, 20, -16, 20);
    OK(rw_type_free(&type));
    OK(rw_type_indexed(3, lengths, at, RW_INT, &type));
    measure(type, 12, 0, 20, 0, 20);
    OK(rw_type_free(&type));
    OK(rw_type_hindexed(3, lengths, at, RW_INT8, &type));
    measure(type, 3, 0, 5, 0, 5);
    OK(rw_type_free(&type));
    OK(rw_type_indexed_block(2, 2, at, RW_INT, &type));
    measure(type, 16, 12, 32, 12, 32);
    OK(rw_type_free(&type));
    OK(rw_type_hindexed_block(2, 1, at, RW_INT8, &type));
    measure(type, 2, 3, 7, 3, 7);
    OK(rw_type_free(&type));
    OK(rw_type_create_struct(3, three, fields, of, &type));
    measure(type, 11, 0, sizeof(struct mixed), 0, offsetof(struct mixed, last) + 2);
    OK(rw_type_dup(type, &other));
    OK(rw_type_free(&type));
    measure(other, 11, 0, sizeof(struct mixed), 0, offsetof(struct mixed, last) + 2);
    OK(rw_type_free(&other));
    OK(rw_type_create_subarray(2, array, part, start, RW_ORDER_C, RW_BYTE, &type));
    measure(type, 6, 0, 24, 8, 9);
    OK(rw_type_free(&type));
    OK(rw_type_create_subarray(2, array, part, start, RW_ORDER_FORTRAN, RW_BYTE, &type));
    measure(type, 6, 0, 24, 9, 10);
    OK(rw_type_free(&type));
    OK(rw_type_create_resized(RW_INT, -4, 12, &type));
    measure(type, 4, -4, 12, 0, 4);
    OK(rw_type_free(&type));
}

/* A column of a matrix here becomes a row there, and comes back behind its address. */
static void columns(void)
{
    int matrix[4][6], *base, row, column, tail[9];
    const rw_aint behind[2] = {-8, -16};
    rw_type column_type, back;
    rw_win win;
    for (row = 0; row < 4; row++)
        for (column = 0; column < 6; column++)
            matrix[row][column] = 10 * row + column;
    OK(rw_type_vector(4, 1, 6, RW_INT, &column_type));
    OK(rw_type_hindexed_block(2, 2, behind, RW_INT, &back));
    OK(rw_win_allocate(64, sizeof(int), NULL, &base, &win));
    OK(rw_win_fence(0, win));
    OK(rw_put(&matrix[0][2], 1, column_type, 0, 3, 4, RW_INT, win));
    /* A type may be freed while an operation with it is under way. */
    OK(rw_type_free(&column_type));
    OK(rw_win_fence(0, win));
    for (row = 0; row < 4; row++)
        CHECK(base[3 + row] == 10 * row + 2);
    memset(tail, 0, sizeof tail);
    OK(rw_get(&tail[8], 1, back, 0, 3, 4, RW_INT, win));
    OK(rw_type_free(&back));
    OK(rw_win_fence(0, win));
    CHECK(tail[6] == 2 && tail[7] == 12 && tail[4] == 22 && tail[5] == 32 && tail[3] == 0 && tail[8] == 0);
    OK(rw_win_free(&win));
}

/* Pairs: the least value with its place, and padding stays as it was. */
static void pairs(void)
{
    struct pair {
        double value;
        int index;
        int padding;
    } *base, mine[2] = {{1.5, 7, 1}, {2.5, 8, 1}};
    rw_win win;
    OK(rw_win_allocate(2 * sizeof *base, sizeof *base, NULL, &base, &win));
    base[0].value = 2.0;
    base[0].index = 1;
    base[0].padding = 99;
    base[1] = base[0];
    OK(rw_win_fence(0, win));
    OK(rw_accumulate(mine, 2, RW_DOUBLE_INT, 0, 0, 2, RW_DOUBLE_INT, RW_MINLOC, win));
    OK(rw_win_fence(0, win));
    CHECK(base[0].value == 1.5 && base[0].index == 7 && base[0].padding == 99);
    CHECK(base[1].value == 2.0 && base[1].index == 1 && base[1].padding == 99);
    OK(rw_win_free(&win));
}

/* Types of 10,000 blocks at uneven distances, as indexed type and as struct, on both sides of all operations. */
static void uneven(const char *info)
{
    enum { BLOCKS = 10000, WORDS = 4 * BLOCKS };
    static rw_count lengths[BLOCKS];
    static rw_aint at[BLOCKS], bytes[BLOCKS];
    static rw_type of[BLOCKS];
    static int own[WORDS], back[WORDS];
    int *base, each, word, many = 0;
    rw_type there, here;
    rw_request request;
    rw_count size;
    rw_win win;
    for (each = 0; each < BLOCKS; each++) {
        lengths[each] = 1 + each % 2;
        at[each] = 4 * each + each % 3 % 2;
        bytes[each] = (4 * (BLOCKS - 1 - each) + each % 2) * (rw_aint)sizeof(int);
        of[each] = RW_INT;
        many += (int)lengths[each];
    }
    OK(rw_type_indexed(BLOCKS, lengths, at, RW_INT, &there));
    /* As many words, the last ones first. */
    OK(rw_type_create_struct(BLOCKS, lengths, bytes, of, &here));
    OK(rw_type_size(here, &size));
    CHECK(size == (rw_count)many * (rw_count)sizeof(int));
    OK(rw_win_allocate(WORDS * sizeof(int), sizeof(int), info, &base, &win));
    for (word = 0; word < WORDS; word++)
        own[word] = 3 * word + 1;
    OK(rw_win_lock(RW_LOCK_EXCLUSIVE, 0, 0, win));
#define EACH(condition)                                                                \
    for (each = 0; each < BLOCKS; each++)                                              \
        for (word = 0; word < lengths[each]; word++) {                                 \
            const int sent = own[bytes[each] / (rw_aint)sizeof(int) + word];           \
            const int found = base[at[each] + word];                                   \
            const int came = back[bytes[each] / (rw_aint)sizeof(int) + word];          \
            (void)came;                                                                \
            CHECK(condition);                                                          \
        }
    OK(rw_put(own, 1, here, 0, 0, 1, there, win));
    OK(rw_win_flush(0, win));
    EACH(found == sent);
    OK(rw_accumulate(own, 1, here, 0, 0, 1, there, RW_SUM, win));
    OK(rw_accumulate(own, 1, here, 0, 0, 1, there, RW_SUM, win));
    OK(rw_get(back, 1, here, 0, 0, 1, there, win));
    OK(rw_win_flush(0, win));
    EACH(found == 3 * sent);
    OK(rw_get_accumulate(own, 1, here, back, 1, here, 0, 0, 1, there, RW_REPLACE, win));
    OK(rw_win_flush(0, win));
    EACH(found == sent && came == 3 * sent);
    OK(rw_rput(own, 1, here, 0, 0, 1, there, win, &request));
    OK(rw_wait(&request));
    OK(rw_raccumulate(own, 1, here, 0, 0, 1, there, RW_SUM, win, &request));
    OK(rw_wait(&request));
    OK(rw_rget_accumulate(NULL, 0, RW_INT, back, 1, here, 0, 0, 1, there, RW_NO_OP, win, &request));
    OK(rw_wait(&request));
    EACH(found == 2 * sent && came == 2 * sent);
    OK(rw_accumulate(own, 1, here, 0, 0, 1, there, RW_REPLACE, win));
    OK(rw_win_flush(0, win));
    OK(rw_rget(back, 1, here, 0, 0, 1, there, win, &request));
    OK(rw_wait(&request));
    EACH(found == sent && came == sent);
#undef EACH
    /* Words between the blocks stayed. */
    for (each = 0; each < BLOCKS; each++)
        CHECK(base[4 * each + 3] == 0);
    /* One that ends beyond the window has put nothing. */
    own[0] = 77;
    OK(rw_put(own, many, RW_INT, 0, 4, 1, there, win));
    FAILS(rw_win_flush(0, win), RW_ERR_RMA_RANGE, "refused a put");
    CHECK(base[4] == 0 && base[at[1]] == own[bytes[1] / (rw_aint)sizeof(int)]);
    OK(rw_win_unlock(0, win));
    OK(rw_type_free(&there));
    OK(rw_type_free(&here));
    OK(rw_win_free(&win));
}

/* More blocks than a type may have. */
static void too_many(void)
{
    enum { BLOCKS = (1 << 20) + 1 };
    rw_aint *at = (rw_aint *)malloc(BLOCKS * sizeof *at), each;
    rw_type type = RW_TYPE_NULL;
    rw_count size;
    CHECK(at != NULL);
    for (each = 0; each < BLOCKS; each++)
        at[each] = 2 * each;
    FAILS(rw_type_indexed_block(BLOCKS, 1, at, RW_INT, &type), RW_ERR_TYPE, "more than 1048576 pieces");
    CHECK(type == RW_TYPE_NULL);
    OK(rw_type_indexed_block(BLOCKS - 1, 1, at, RW_INT, &type));
    OK(rw_type_size(type, &size));
    CHECK(size == 4 << 20);
    OK(rw_type_free(&type));
    free(at);
}

/* MPI's other names. */
static void names(void)
{
    const rw_type types[] = {
        RW_INT8_T, RW_UINT8_T, RW_C_BOOL, RW_INT16_T, RW_UINT16_T, RW_INT32_T, RW_UINT32_T,
        RW_INT64_T, RW_UINT64_T, RW_LONG_LONG_INT, RW_C_FLOAT_COMPLEX, RW_C_DOUBLE_COMPLEX,
    };
    const rw_count bytes[] = {1, 1, 1, 2, 2, 4, 4, 8, 8, 8, 8, 16};
    const rw_count lengths[2] = {1, 2};
    const rw_aint at[2] = {0, 16}, places[2] = {0, 2};
    rw_type type = RW_DATATYPE_NULL;
    size_t each;
    CHECK(type == RW_TYPE_NULL);
    for (each = 0; each < sizeof types / sizeof *types; each++)
        measure(types[each], bytes[each], 0, bytes[each], 0, bytes[each]);
    OK(rw_type_create_hvector(2, 1, 16, RW_INT64_T, &type));
    measure(type, 16, 0, 24, 0, 24);
    OK(rw_type_free(&type));
    OK(rw_type_create_hindexed(2, lengths, at, RW_INT64_T, &type));
    measure(type, 24, 0, 32, 0, 32);
    OK(rw_type_free(&type));
    OK(rw_type_create_indexed_block(2, 1, places, RW_INT64_T, &type));
    measure(type, 16, 0, 24, 0, 24);
    OK(rw_type_free(&type));
    OK(rw_type_create_hindexed_block(2, 2, at, RW_INT64_T, &type));
    measure(type, 32, 0, 32, 0, 32);
    OK(rw_type_free(&type));
}

int main(void)
{
    static const char *const infos[3] = {
        "implementation=direct",
        "implementation=messages",
        "implementation=direct_accumulate_at_origin",
    };
    int at;
    OK(rw_init());
    for (at = 0; at < 3; at++)
        uneven(infos[at]);
    too_many();
    names();
    sizes();
    columns();
    pairs();
    OK(rw_finalize());
    puts("ok");
    return 0;
}
