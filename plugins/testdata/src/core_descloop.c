/* Never says what it is. */
#include "pawl.h"
static volatile int n;
EXPORT("pawl_describe") int describe(void) { for (;;) n++; }
EXPORT("pawl_call") int call(void) { return op("output", "1") < 0; }
