/* Says which node of memory each board is next to. usage: nodes */
#include "check.h"

int main(void)
{
    uint32_t count = 0, node;
    OK(mx_init());
    OK(mx_get_info(NULL, MX_NIC_COUNT, NULL, 0, &count, sizeof count));
    for (uint32_t board = 0; board < count; board++) {
        OK(mx_get_info(NULL, MX_NUMA_NODE, &board, sizeof board, &node, sizeof node));
        printf("%u\n", (unsigned)node);
    }
    OK(mx_finalize());
    return 0;
}
