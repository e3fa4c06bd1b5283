/* Never gets ready. */
#include "pawl.h"
static volatile int n;
EXPORT("_initialize") void init(void) { for (;;) n++; }
EXPORT("pawl_call") int call(void) { return op("output", "1") < 0; }
