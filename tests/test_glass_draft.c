/* The tests of test_draft.c on an engine whose device memory only operations can touch. */
#include "glass_backend.h"

#define butler_engine_new glass_engine
#include "test_draft.c"
