/* Layouts and numbers that programs were compiled with. usage: layouts */
#include <mx_extensions.h>
#include <mx_io.h>
#include <mx_raw.h>
#include <myriexpress.h>
#include <omx_raw.h>
#include <open-mx.h>
#include <stdio.h>

#ifdef __cplusplus
#define STATIC(condition) static_assert(condition, #condition)
#else
#define STATIC(condition) _Static_assert(condition, #condition)
#endif

STATIC(sizeof(mx_endpoint_t) == 8 && sizeof(mx_request_t) == 8);
STATIC(sizeof(mx_endpoint_addr_t) == MX_SIZEOF_ADDR && MX_SIZEOF_ADDR == 16);
STATIC(sizeof(mx_segment_t) == 16 && offsetof(mx_segment_t, segment_length) == 8);
STATIC(sizeof(mx_status_t) == 48);
STATIC(offsetof(mx_status_t, code) == 0 && offsetof(mx_status_t, source) == 8);
STATIC(offsetof(mx_status_t, match_info) == 24 && offsetof(mx_status_t, msg_length) == 32);
STATIC(offsetof(mx_status_t, xfer_length) == 36 && offsetof(mx_status_t, context) == 40);
STATIC(sizeof(mx_param_t) == 16 && offsetof(mx_param_t, val) == 8);
STATIC(offsetof(mx_param_t, val.context_id.shift) == 9);
STATIC(sizeof(omx_status_t) == sizeof(mx_status_t) && offsetof(omx_status_t, addr) == 8);
STATIC(sizeof(omx_seg_t) == sizeof(mx_segment_t));
STATIC(sizeof(omx_endpoint_param_t) == sizeof(mx_param_t));
STATIC(sizeof(mx_mapper_state_t) == 36 && offsetof(mx_mapper_state_t, num_hosts) == 16);
STATIC(sizeof(mx_endpt_handle_t) == 4 && MX__INVALID_HANDLE == -1);
STATIC(sizeof(mx_raw_endpoint_t) == 8 && sizeof(omx_raw_endpoint_t) == 8);
STATIC(sizeof(mx_raw_status_t) == 4 && sizeof(mx_host_type_t) == 4);
STATIC(MX_RAW_NO_EVENT == 0 && MX_RAW_SEND_COMPLETE == 1 && MX_RAW_RECV_COMPLETE == 2);
STATIC(OMX_RAW_NO_EVENT == 0 && OMX_RAW_SEND_COMPLETE == 1 && OMX_RAW_RECV_COMPLETE == 2);
STATIC(MX_DEAD_RECOVERABLE_SRAM_PARITY_ERROR == 10 && MX_DEAD_PCI_MASTER_ABORT == 17);
STATIC(MX_HOST_GM == 1 && MX_HOST_MXvM == 4 && MX_RAW_POLL_SUPPORTED == 1);
STATIC(sizeof(mx_return_t) == 4 && sizeof(mx_status_code_t) == 4);

STATIC(MX_API == 0x301 && MX_MAX_SEGMENTS == 256 && MX_CONTEXT_ID_BITS_MAX == 16);
STATIC(MX_ANY_NIC == 0xffffffffU && MX_ANY_ENDPOINT == 0xffffffffU && MX_INFINITE == 0);
STATIC(OMX_TIMEOUT_INFINITE == 0xffffffffU && MX_MATCH_MASK_NONE == 0xffffffffffffffffULL);
STATIC(MX_MAX_STR_LEN == 128 && MX_MAX_HOSTNAME_LEN == 80 && MX_HAS_ICONNECT_V2 == 1);
STATIC(MX_U32(0x123456789abcdef0ULL) == 0x12345678U && MX_L32(0x123456789abcdef0ULL) == 0x9abcdef0U);
STATIC(MX_BAD_ENDPOINT == 9 && MX_BAD_MATCH_MASK == 14 && MX_BUSY == 20 && MX_TIMEOUT == 30);
STATIC(MX_CONNECTION_FAILED == 33 && MX_NIC_NOT_FOUND == 36 && MX_CLOSE_IN_HANDLER == 41);
STATIC(MX_NOT_SUPPORTED_WITH_CONTEXT_ID == 43 && MX_STATUS_NO_RESOURCES == 16);
STATIC(MX_STATUS_TRUNCATED == 5 && MX_STATUS_ENDPOINT_UNREACHABLE == 9);
STATIC(MX_LINE_SPEED == 16 && MX_COUNTERS_VALUES == 7 && MX_RECV_FINISHED == 1);
STATIC(OMX_INFO_BOARD_MAX == 0 && OMX_INFO_ENDPOINT_MAX == 1 && OMX_INFO_BOARD_COUNT == 2);
STATIC(OMX_INFO_BOARD_IDS == 3 && OMX_INFO_BOARD_HOSTNAME == 4 && OMX_INFO_BOARD_IFACENAME == 5);
STATIC(OMX_INFO_BOARD_NUMA_NODE == 6 && OMX_INFO_COUNTER_MAX == 7);
STATIC(OMX_INFO_COUNTER_VALUES == 8 && OMX_INFO_COUNTER_LABEL == 9);
STATIC(OMX_BAD_ERROR == 1 && OMX_NO_DEVICE_FILE == 5 && OMX_RETURN_CODE_MAX == 100);
STATIC(OMX_BOARD_ADDR_STRLEN == 18 && OMX_HOSTNAMELEN_MAX == 80);
STATIC(OMX_SIZEOF_ADDR == 16 && OMX_ENDPOINT_CONTEXT_ID_BITS_MAX == 16);
STATIC(sizeof(omx_endpoint_addr_t) == OMX_SIZEOF_ADDR);
STATIC(sizeof(((omx_endpoint_addr_t *)0)->data) == OMX_SIZEOF_ADDR);
STATIC(sizeof(mx_segment_ptr_t) == sizeof(void *) && sizeof(omx_seg_ptr_t) == sizeof(void *));
STATIC(OMX_MESSAGE_TRUNCATED == 95 && OMX_CANCELLED == 90 && OMX_NOT_IMPLEMENTED == 99);

/* Names that programs know from these headers, with what they take. */
static int names(void)
{
    mx_matching_callback_t callback = NULL;
    mx_return_t (*all_put)(mx_endpoint_t, void *, uint32_t, mx_endpoint_addr_t, uint64_t, void *,
                           mx_request_t *) = mx_iput;
    mx_return_t (*all_got)(mx_endpoint_t, void *, uint32_t, mx_endpoint_addr_t, uint64_t, void *,
                           mx_request_t *) = mx_iget;
    mx_return_t (*kept)(mx_endpoint_t, mx_request_t *, uint32_t, uint32_t *) = mx_buffered;
    mx_return_t (*called)(mx_endpoint_t, mx_matching_callback_t, void *) =
        mx_register_unexp_callback;
    omx_return_t (*begin)(void) = omx_init;
    return callback == NULL && all_put != all_got && kept != NULL && called != NULL && begin != NULL;
}

int main(void)
{
    /* Data, whose addresses a program may have in tables of its own. */
    static const mx_error_handler_t *const handlers[] = {&MX_ERRORS_ARE_FATAL, &MX_ERRORS_RETURN};
    char text[2] = "t";
    mx_mapper_state_t state;
    state.board_number = 0;
    if (*handlers[0] == *handlers[1] || (*handlers[1])(text, MX_BUSY) != MX_BUSY)
        return 1;
    if ((void *)(size_t)OMX_ERRORS_RETURN == NULL || mx__get_mapper_state(0, &state) != -1)
        return 1;
    mx__regcache_clean(&state, sizeof state);
    if (!names())
        return 1;
    printf("ok\n");
    return 0;
}
