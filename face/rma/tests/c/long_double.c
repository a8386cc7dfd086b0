/* long double: accumulates have the results of C, to the last bit; padding stays as it was. */
#include "check.h"
#include <math.h>
#include <stddef.h>

enum { COUNT = 600, SPACE = 0x5a };

#if defined(__x86_64__)

enum { VALUE = 10 };

struct pair {
    long double value;
    int index;
};

static long double scaled(long double value, int power)
{
    for (; power > 0; power--)
        value *= 2;
    for (; power < 0; power++)
        value /= 2;
    return value;
}

/* Numbers of all 64 digits and many exponents, zeros of both signs, infinities and NaN. */
static long double number(uint64_t seed)
{
    uint64_t bits = seed * UINT64_C(0x9e3779b97f4a7c15);
    long double value = (long double)(bits | 1) / 3.0L;
    switch (seed % 23) {
    case 3:
        return 0.0L;
    case 5:
        return -0.0L;
    case 7:
        return (long double)NAN;
    case 11:
        return seed & 64 ? (long double)INFINITY : -(long double)INFINITY;
    case 13:
        return scaled(value, -16440);
    case 17:
        return scaled(value, 16300);
    default:
        return scaled(seed & 1 ? value : -value, (int)(bits >> 58) - 90);
    }
}

static long double least(long double a, long double b)
{
    if (a != a || b != b)
        return (long double)NAN;
    return a < b || (a == b && signbit(a)) ? a : b;
}

static long double greatest(long double a, long double b)
{
    if (a != a || b != b)
        return (long double)NAN;
    return a > b || (a == b && !signbit(a)) ? a : b;
}

static long double wanted(rw_op op, long double before, long double own)
{
    switch (op) {
    case RW_SUM:
        return before + own;
    case RW_PROD:
        return before * own;
    case RW_MIN:
        return least(before, own);
    case RW_MAX:
        return greatest(before, own);
    case RW_REPLACE:
        return own;
    default:
        return before;
    }
}

/* The same number, bit for bit; NaN is any NaN. */
static int is_same(const long double *a, const long double *b)
{
    return (*a != *a && *b != *b) || memcmp(a, b, VALUE) == 0;
}

static void updates(const char *info, int is_fleeting)
{
    static const rw_op ops[] = {RW_SUM, RW_PROD, RW_MIN, RW_MAX, RW_REPLACE, RW_NO_OP};
    static long double own[COUNT], before[COUNT], found[COUNT], lent[COUNT];
    long double *base = lent, expected;
    const unsigned char *bytes;
    size_t op;
    int at, byte;
    rw_win win;
    if (is_fleeting)
        OK(rw_win_create(lent, sizeof lent, sizeof *lent, info, &win));
    else
        OK(rw_win_allocate(sizeof lent, sizeof *lent, info, &base, &win));
    for (op = 0; op < sizeof ops / sizeof *ops; op++) {
        memset(base, SPACE, sizeof lent);
        memset(found, SPACE, sizeof found);
        for (at = 0; at < COUNT; at++) {
            own[at] = number(at * 7 + op);
            before[at] = number(at * 5 + 1);
            memcpy(&base[at], &before[at], VALUE);
        }
        OK(rw_win_fence(0, win));
        OK(rw_get_accumulate(own, COUNT, RW_LONG_DOUBLE, found, COUNT, RW_LONG_DOUBLE, 0, 0, COUNT, RW_LONG_DOUBLE,
                             ops[op], win));
        OK(rw_win_fence(0, win));
        for (at = 0; at < COUNT; at++) {
            CHECK(memcmp(&found[at], &before[at], VALUE) == 0);
            expected = wanted(ops[op], before[at], own[at]);
            CHECK(is_same(&base[at], &expected));
            for (byte = VALUE, bytes = (const unsigned char *)&base[at]; byte < (int)sizeof *base; byte++)
                CHECK(bytes[byte] == SPACE);
            for (byte = VALUE, bytes = (const unsigned char *)&found[at]; byte < (int)sizeof *found; byte++)
                CHECK(bytes[byte] == SPACE);
        }
    }
    /* One alone, and what is not defined. */
    base[3] = 0.1L;
    own[0] = 1e-18L;
    OK(rw_win_fence(0, win));
    OK(rw_fetch_and_op(own, found, RW_LONG_DOUBLE, 0, 3, RW_SUM, win));
    OK(rw_win_fence(0, win));
    expected = 0.1L + 1e-18L;
    CHECK(base[3] == expected && expected != 0.1L && found[0] == 0.1L);
    FAILS(rw_accumulate(own, 1, RW_LONG_DOUBLE, 0, 0, 1, RW_LONG_DOUBLE, RW_BXOR, win), RW_ERR_OP, "LongDouble");
    FAILS(rw_compare_and_swap(own, own, found, RW_LONG_DOUBLE, 0, 0, win), RW_ERR_TYPE, "LongDouble");
    FAILS(rw_accumulate(own, 1, RW_LONG_DOUBLE, 0, 0, 1, RW_LONG_DOUBLE, RW_MINLOC, win), RW_ERR_OP, "LongDouble");
    OK(rw_win_free(&win));
}

static void pairs(const char *info)
{
    static struct pair own[COUNT], before[COUNT];
    struct pair *base;
    int at, turn, is_taken;
    rw_win win;
    OK(rw_win_allocate(sizeof own, sizeof *own, info, &base, &win));
    for (turn = 0; turn < 2; turn++) {
        const rw_op op = turn ? RW_MAXLOC : RW_MINLOC;
        memset(base, SPACE, sizeof own);
        for (at = 0; at < COUNT; at++) {
            own[at].value = number(at * 3);
            before[at].value = at % 4 ? number(at * 5) : own[at].value;
            own[at].index = at % 7;
            before[at].index = at % 5;
            memcpy(&base[at].value, &before[at].value, VALUE);
            base[at].index = before[at].index;
        }
        OK(rw_win_fence(0, win));
        OK(rw_accumulate(own, COUNT, RW_LONG_DOUBLE_INT, 0, 0, COUNT, RW_LONG_DOUBLE_INT, op, win));
        OK(rw_win_fence(0, win));
        for (at = 0; at < COUNT; at++) {
            const long double a = before[at].value, b = own[at].value;
            const struct pair *taken;
            const unsigned char *bytes = (const unsigned char *)&base[at];
            if ((a != a) != (b != b))
                is_taken = b != b;
            else if (a == b || a != a)
                is_taken = own[at].index < before[at].index;
            else
                is_taken = turn ? b > a : b < a;
            taken = is_taken ? &own[at] : &before[at];
            CHECK(memcmp(&base[at].value, &taken->value, VALUE) == 0 && base[at].index == taken->index);
            CHECK(bytes[VALUE] == SPACE && bytes[sizeof(long double) - 1] == SPACE);
            CHECK(bytes[offsetof(struct pair, index) + sizeof(int)] == SPACE && bytes[sizeof *base - 1] == SPACE);
        }
    }
    OK(rw_win_free(&win));
}

static void sizes(void)
{
    rw_count size = 0;
    rw_aint lower = -1, extent = 0;
    rw_type type;
    const rw_count lengths[2] = {1, 1};
    const rw_aint at[2] = {0, sizeof(long double)};
    const rw_type of[2] = {RW_LONG_DOUBLE, RW_CHAR};
    OK(rw_type_size(RW_LONG_DOUBLE, &size));
    OK(rw_type_get_extent(RW_LONG_DOUBLE, &lower, &extent));
    CHECK(size == VALUE && lower == 0 && extent == sizeof(long double));
    OK(rw_type_size(RW_LONG_DOUBLE_INT, &size));
    OK(rw_type_get_extent(RW_LONG_DOUBLE_INT, &lower, &extent));
    CHECK(size == VALUE + sizeof(int) && lower == 0 && extent == sizeof(struct pair));
    /* A struct ends where a long double could follow. */
    OK(rw_type_create_struct(2, lengths, at, of, &type));
    OK(rw_type_get_extent(type, &lower, &extent));
    CHECK(extent == 2 * sizeof(long double));
    OK(rw_type_free(&type));
}

#else

/* Nothing is calculated here, and the error says so. */
static void updates(const char *info, int is_fleeting)
{
    long double *base, own = 2.5L;
    rw_win win;
    (void)is_fleeting;
    OK(rw_win_allocate(sizeof own, sizeof own, info, &base, &win));
    OK(rw_win_fence(0, win));
    OK(rw_accumulate(&own, 1, RW_LONG_DOUBLE, 0, 0, 1, RW_LONG_DOUBLE, RW_REPLACE, win));
    FAILS(rw_accumulate(&own, 1, RW_LONG_DOUBLE, 0, 0, 1, RW_LONG_DOUBLE, RW_SUM, win), RW_ERR_OP, "calculate");
    OK(rw_win_fence(0, win));
    CHECK(*base == 2.5L);
    OK(rw_win_free(&win));
}

static void pairs(const char *info)
{
    (void)info;
}

static void sizes(void)
{
}

#endif

int main(void)
{
    static const char *const infos[3] = {
        "implementation=direct",
        "implementation=messages;eager_bytes=1024",
        "implementation=direct_accumulate_at_origin",
    };
    int at;
    OK(rw_init());
    sizes();
    for (at = 0; at < 3; at++) {
        updates(infos[at], 0);
        updates(infos[at], 1);
        pairs(infos[at]);
    }
    OK(rw_finalize());
    puts("ok");
    return 0;
}
