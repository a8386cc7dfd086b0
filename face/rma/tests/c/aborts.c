/* One rank ends the job while the others wait for it. With an argument the process is no rank: it is one no more ("late"), or not
 * yet ("early"), and ends by itself. */
#include "check.h"

int main(int argc, char **argv)
{
    int rank;
    if (argc > 1) {
        if (strcmp(argv[1], "late") == 0) {
            OK(rw_init());
            OK(rw_finalize());
        }
        rw_abort(argc > 2 ? 4711 : 9, argv[1]);
        return 0;
    }
    OK(rw_init());
    OK(rw_rank(&rank));
    if (rank == 1)
        rw_abort(9, "there is no use");
    rw_barrier();
    return 0;
}
