/* Raw endpoints of MX, for programs that map the network: whole frames, and a say in the table of peers. A board
 * on which MXoE is spoken has one. Ethernet finds its ways itself: ports are 0, and routes are not kept.
 */
#ifndef MX_RAW_H
#define MX_RAW_H

#include "mx_io.h"
#include "myriexpress.h"

#ifdef __cplusplus
extern "C" {
#endif

#define MX_SET_ROUTE_TAKES_MAGID 1
#define MX_HAS_RAW_LINE_SPEED 1
#define MX_HAS_RAW_SET_NIC_REPLY_INFO 1

typedef struct mx_raw_endpoint *mx_raw_endpoint_t;

/* What kind of event there was. */
typedef int mx_raw_status_t;
#define MX_RAW_NO_EVENT 0
#define MX_RAW_SEND_COMPLETE 1
#define MX_RAW_RECV_COMPLETE 2

/* What native cards die of. A board that is gone is an error here: MX_NIC_DEAD. */
#define MX_DEAD_RECOVERABLE_SRAM_PARITY_ERROR 10
#define MX_DEAD_SRAM_PARITY_ERROR 11
#define MX_DEAD_WATCHDOG_TIMEOUT 12
#define MX_DEAD_COMMAND_TIMEOUT 13
#define MX_DEAD_ENDPOINT_CLOSE_TIMEOUT 14
#define MX_DEAD_ROUTE_UPDATE_TIMEOUT 15
#define MX_DEAD_PCI_PARITY_ERROR 16
#define MX_DEAD_PCI_MASTER_ABORT 17

/* What runs on the host of a card. */
typedef enum {
    MX_HOST_GM = 1,
    MX_HOST_XM = 2,
    MX_HOST_MX = 3,
    MX_HOST_MXvM = 4
} mx_host_type_t;

mx_return_t mx_raw_open_endpoint(uint32_t board_number, mx_param_t *params_array,
                                 uint32_t params_count, mx_raw_endpoint_t *endpoint);
mx_return_t mx_raw_close_endpoint(mx_raw_endpoint_t endpoint);
/* A descriptor to poll, readable while an event waits. */
mx_endpt_handle_t mx_raw_handle(mx_raw_endpoint_t endpoint);

/* A frame of 14 to 1024 bytes, which begins with its Ethernet header. The buffer is free at once; there is an event
 * with the context, for which at most 64 sends wait. */
mx_return_t mx_raw_send(mx_raw_endpoint_t endpoint, uint32_t physical_port, void *route_pointer,
                        uint32_t route_length, void *send_buffer, uint32_t buffer_length,
                        void *context);
/* `recv_bytes` says how much room there is, and then how much of it was filled. A time-out of 0 does not wait,
 * and 0xffffffff waits for ever. At most 32 frames wait; others are dropped. */
mx_return_t mx_raw_next_event(mx_raw_endpoint_t endpoint, uint32_t *incoming_port, void **context,
                              void *recv_buffer, uint32_t *recv_bytes, uint32_t timeout_ms,
                              mx_raw_status_t *status);

/* A card that has a route is in the table of peers. */
mx_return_t mx_raw_set_route_begin(mx_raw_endpoint_t endpoint);
mx_return_t mx_raw_set_route_end(mx_raw_endpoint_t endpoint);
mx_return_t mx_raw_set_route(mx_raw_endpoint_t endpoint, uint64_t destination_id, void *route,
                             uint32_t route_length, uint32_t input_port, uint32_t output_port,
                             mx_host_type_t host_type);
mx_return_t mx_raw_set_route_mag(mx_raw_endpoint_t endpoint, uint64_t destination_id, void *route,
                                 uint32_t route_length, uint32_t input_port, uint32_t output_port,
                                 mx_host_type_t host_type, uint32_t mag_id);
mx_return_t mx_raw_clear_routes(mx_raw_endpoint_t endpoint, uint64_t destination_id, uint32_t port);
/* It comes back when it is heard. */
mx_return_t mx_raw_remove_peer(mx_raw_endpoint_t endpoint, uint64_t destination_id);
mx_return_t mx_raw_set_peer_name(mx_raw_endpoint_t endpoint, uint64_t nic_id, char *hostname);
mx_return_t mx_raw_set_hostname(mx_raw_endpoint_t endpoint, char *hostname);
/* What mx__get_mapper_state tells. */
mx_return_t mx_raw_set_map_version(mx_raw_endpoint_t endpoint, uint32_t physical_port,
                                   uint64_t mapper_id, uint32_t map_version, uint32_t num_nodes,
                                   uint32_t mapping_complete);
mx_return_t mx_raw_set_nic_reply_info(mx_raw_endpoint_t endpoint, void *blob, uint32_t size);

mx_return_t mx_raw_num_ports(mx_raw_endpoint_t endpoint, uint32_t *num_ports);
mx_return_t mx_raw_line_speed(mx_raw_endpoint_t endpoint, mx_line_speed_t *speed);

#ifdef __cplusplus
}
#endif

#endif
