/* One rank ends the job while the others wait for it. */
#include "check.h"

int main(void)
{
    int rank;
    OK(rw_init());
    OK(rw_rank(&rank));
    if (rank == 1)
        rw_abort(9, "there is no use");
    rw_barrier();
    return 0;
}
