/* What programs were compiled with: layouts, numbers, names and byte order, as literal values, and the
 * functions that need no library. Built in both flavours, as C and as C++.
 */
#ifdef BMI_API_ORANGEFS
/* Its own types came first there. */
#include <stdint.h>
#define __PVFS2_TYPES_H
typedef int64_t PVFS_BMI_addr_t;
#endif
#include "check.h"
#include <bmi-byteswap.h>
#include <stddef.h>

#ifdef __cplusplus
#define IS(condition) static_assert(condition, #condition)
#else
#define IS(condition) _Static_assert(condition, #condition)
#endif

IS(sizeof(BMI_addr_t) == 8 && sizeof(bmi_size_t) == 8 && sizeof(bmi_op_id_t) == 8);
IS(sizeof(bmi_context_id) == 8 && sizeof(bmi_hint) == 8);
IS(sizeof(bmi_msg_tag_t) == 4 && sizeof(bmi_error_code_t) == 4);
IS((BMI_addr_t)-1 < 0 && (bmi_size_t)-1 < 0 && (bmi_msg_tag_t)-1 < 0 && (bmi_op_id_t)-1 < 0);

IS(sizeof(struct BMI_unexpected_info) == 40);
IS(offsetof(struct BMI_unexpected_info, error_code) == 0);
IS(offsetof(struct BMI_unexpected_info, addr) == 8);
IS(offsetof(struct BMI_unexpected_info, buffer) == 16);
IS(offsetof(struct BMI_unexpected_info, size) == 24);
IS(offsetof(struct BMI_unexpected_info, tag) == 32);
IS(sizeof(struct bmi_optimistic_buffer_info) == 24);
IS(offsetof(struct bmi_optimistic_buffer_info, len) == 8);
IS(offsetof(struct bmi_optimistic_buffer_info, rw) == 16);

IS(sizeof(enum bmi_op_type) == 4 && BMI_SEND == 1 && BMI_RECV == 2);
IS(sizeof(enum bmi_buffer_type) == 4 && BMI_PRE_ALLOC == 1 && BMI_EXT_ALLOC == 2);
IS(sizeof(enum BMI_io_type) == 4 && BMI_IO_READ == 1 && BMI_IO_WRITE == 2);
IS(BMI_INIT_SERVER == 1 && BMI_TCP_BIND_SPECIFIC == 2 && BMI_AUTO_REF_COUNT == 4);

IS(BMI_DROP_ADDR == 1 && BMI_CHECK_INIT == 2 && BMI_CHECK_MAXSIZE == 3);
IS(BMI_GET_METH_ADDR == 4 && BMI_INC_ADDR_REF == 5 && BMI_DEC_ADDR_REF == 6);
IS(BMI_DROP_ADDR_QUERY == 7 && BMI_FORCEFUL_CANCEL_MODE == 8 && BMI_TRUSTED_CONNECTION == 9);
IS(BMI_GET_UNEXP_SIZE == 10 && BMI_TCP_BUFFER_SEND_SIZE == 11);
IS(BMI_TCP_BUFFER_RECEIVE_SIZE == 12 && BMI_TCP_CLOSE_SOCKET == 13);
IS(BMI_OPTIMISTIC_BUFFER_REG == 14 && BMI_TCP_CHECK_UNEXPECTED == 15);
#ifdef BMI_API_ORANGEFS
IS(BMI_TRANSPORT_METHODS_STRING == 16 && BMI_MAX_ADDR_LEN == 2048);
#else
IS(BMI_ZOID_POST_TIMEOUT == 16 && BMI_TRANSPORT_METHODS_STRING == 17 && BMI_TCP_GET_PORT == 18);
IS(BMI_MAX_ADDR_LEN == 256);
#endif

IS(BMI_ERROR_BIT == 0x40000000 && BMI_NON_ERRNO_ERROR_BIT == 0x20000000);
IS(BMI_NON_ERROR_BIT == 0x60000000 && BMI_ERROR == 0x80);
IS(BMIE(22) == 0x40000016 && (BMIE(4) | BMI_ERROR) == BMI_EIO);
IS(BMI_EINVAL == 0x4000008f && BMI_EPROTO == 0x400000a6 && BMI_ECONNRESET == 0x400000bb);
IS(BMI_ECANCEL == 0x60000081);

/* Each code: its value, the number in it, what it is called. */
#define ERRNO(number, name) {BMI_##name, 0x40000080 + number, #name}
#define OTHER(number, name) {BMI_##name, 0x60000080 + number, #name}

static const struct {
    int code, value;
    const char *name;
} codes[] = {
    ERRNO(1, EPERM), ERRNO(2, ENOENT), ERRNO(3, EINTR), ERRNO(4, EIO), ERRNO(5, ENXIO),
    ERRNO(6, EBADF), ERRNO(7, EAGAIN), ERRNO(8, ENOMEM), ERRNO(9, EFAULT), ERRNO(10, EBUSY),
    ERRNO(11, EEXIST), ERRNO(12, ENODEV), ERRNO(13, ENOTDIR), ERRNO(14, EISDIR),
    ERRNO(15, EINVAL), ERRNO(16, EMFILE), ERRNO(17, EFBIG), ERRNO(18, ENOSPC), ERRNO(19, EROFS),
    ERRNO(20, EMLINK), ERRNO(21, EPIPE), ERRNO(22, EDEADLK), ERRNO(23, ENAMETOOLONG),
    ERRNO(24, ENOLCK), ERRNO(25, ENOSYS), ERRNO(26, ENOTEMPTY), ERRNO(27, ELOOP),
    ERRNO(28, EWOULDBLOCK), ERRNO(29, ENOMSG), ERRNO(30, EUNATCH), ERRNO(31, EBADR),
    ERRNO(32, EDEADLOCK), ERRNO(33, ENODATA), ERRNO(34, ETIME), ERRNO(35, ENONET),
    ERRNO(36, EREMOTE), ERRNO(37, ECOMM), ERRNO(38, EPROTO), ERRNO(39, EBADMSG),
    ERRNO(40, EOVERFLOW), ERRNO(41, ERESTART), ERRNO(42, EMSGSIZE), ERRNO(43, EPROTOTYPE),
    ERRNO(44, ENOPROTOOPT), ERRNO(45, EPROTONOSUPPORT), ERRNO(46, EOPNOTSUPP),
    ERRNO(47, EADDRINUSE), ERRNO(48, EADDRNOTAVAIL), ERRNO(49, ENETDOWN),
    ERRNO(50, ENETUNREACH), ERRNO(51, ENETRESET), ERRNO(52, ENOBUFS), ERRNO(53, ETIMEDOUT),
    ERRNO(54, ECONNREFUSED), ERRNO(55, EHOSTDOWN), ERRNO(56, EHOSTUNREACH), ERRNO(57, EALREADY),
    ERRNO(58, EACCES), ERRNO(59, ECONNRESET), OTHER(1, ECANCEL), OTHER(2, EDEVINIT),
    OTHER(3, EDETAIL), OTHER(4, EHOSTNTFD), OTHER(5, EADDRNTFD), OTHER(6, ENORECVR),
    OTHER(7, ETRYAGAIN),
};
IS(sizeof codes / sizeof codes[0] == 59 + 7);

static void little_endian(void)
{
    const unsigned char bytes[] = {8, 7, 6, 5, 4, 3, 2, 1};
    uint64_t eight = htobmi64(0x0102030405060708);
    uint32_t four = htobmi32(0x05060708);
    uint16_t two = htobmi16(0x0708);
    CHECK(memcmp(&eight, bytes, 8) == 0 && bmitoh64(eight) == 0x0102030405060708);
    CHECK(memcmp(&four, bytes, 4) == 0 && bmitoh32(four) == 0x05060708);
    CHECK(memcmp(&two, bytes, 2) == 0 && bmitoh16(two) == 0x0708);
}

/* What can be asked for before there is a library. */
static void without_a_library(void)
{
    char *methods = NULL;
    int count;
    CHECK(BMI_get_info(0, BMI_CHECK_INIT, NULL) == -BMI_ENETDOWN);
    CHECK(BMI_get_info(0, BMI_CHECK_MAXSIZE, &count) == -BMI_ENETDOWN);
    /* By both flavours' numbers: two modules at least, each with its comma. */
    for (int option = 16; option <= 17; option++) {
        int commas = 0;
        count = BMI_get_info(0, option, &methods);
        CHECK(count >= 2 && strstr(methods, "tcp,") != NULL && strstr(methods, "shm,") != NULL);
        for (const char *at = methods; *at != '\0'; at++)
            commas += *at == ',';
        CHECK(commas == count && methods[strlen(methods) - 1] == ',');
        free(methods);
        CHECK(BMI_get_info(0, option, NULL) == -BMI_EINVAL);
    }
}

int main(void)
{
    struct bmi_optimistic_buffer_info hint = {&hint, sizeof hint, BMI_IO_WRITE};
    size_t index;
    for (index = 0; index < sizeof codes / sizeof codes[0]; index++) {
        CHECK(codes[index].code == codes[index].value);
        CHECK(strcmp(bmi_status_string(-codes[index].code), codes[index].name) == 0);
    }
    CHECK(strcmp(bmi_status_string(0), "no error") == 0);
    CHECK(strcmp(bmi_status_string(-0x400000bc), "unknown error") == 0);
    CHECK(hint.rw == 2);
    little_endian();
    without_a_library();
    puts("ok");
    return 0;
}
