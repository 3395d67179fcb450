/* The commit that the program was built from: the Makefile's, which alone knows it. */
#include "parts.h"

const char *eval_commit(void)
{
    return EVAL_COMMIT;
}
