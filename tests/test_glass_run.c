/* The tests of test_run.c on an engine whose device memory only operations can touch. */
#include "glass_backend.h"

#define butler_engine_new glass_engine
#include "test_run.c"
