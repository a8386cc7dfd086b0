/* Errors end a program that set no handler: before initialize always, after it unless the environment says
 * otherwise. Ends with 1 where it should not come to its end. usage: fatal before|after */
#include "check.h"

int main(int count, char **words)
{
    uint64_t nic;
    CHECK(count == 2);
    if (words[1][0] == 'a') {
        if (mx_init() != MX_SUCCESS)
            return 3;
    }
    printf("%d\n", (int)mx_board_number_to_nic_id(77, &nic));
    printf("ok\n");
    return 0;
}
