/* Raw endpoints by their native names: frames alone. Who changes the table of peers, too, includes mx_raw.h, which
 * has its own handles.
 */
#ifndef OMX_RAW_H
#define OMX_RAW_H

#include "open-mx.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct omx_raw_endpoint *omx_raw_endpoint_t;

typedef int omx_raw_status_t;
#define OMX_RAW_NO_EVENT 0
#define OMX_RAW_SEND_COMPLETE 1
#define OMX_RAW_RECV_COMPLETE 2

omx_return_t omx_raw_open_endpoint(uint32_t board_number,
                                   const omx_endpoint_param_t *params_array,
                                   uint32_t params_count, omx_raw_endpoint_t *endpoint);
omx_return_t omx_raw_close_endpoint(omx_raw_endpoint_t endpoint);

/* Without an event, and frames alone: events of sends wait on. */
omx_return_t omx_raw_send(omx_raw_endpoint_t endpoint, const void *send_buffer,
                          uint32_t buffer_length);
omx_return_t omx_raw_next_event(omx_raw_endpoint_t endpoint, void *recv_buffer,
                                uint32_t *recv_bytes, uint32_t timeout_ms,
                                omx_raw_status_t *status);

/* With events of sends, where `need_event` and `maybe_send` are not 0. */
omx_return_t omx__raw_send(omx_raw_endpoint_t endpoint, const void *send_buffer,
                           uint32_t buffer_length, int need_event, const void *event_context);
omx_return_t omx__raw_next_event(omx_raw_endpoint_t endpoint, uint32_t *incoming_port,
                                 void **context, void *recv_buffer, uint32_t *recv_bytes,
                                 uint32_t timeout_ms, omx_raw_status_t *status, int maybe_send);

#ifdef __cplusplus
}
#endif

#endif
