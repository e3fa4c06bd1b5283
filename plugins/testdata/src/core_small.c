/* What a small tool costs: it reads its request and gives it back. */
#include "pawl.h"
static char b[16384];
EXPORT("pawl_call") int call(void) {
  int n = op("input", "");
  if (n < 0 || n > (int)sizeof b) return 1;
  n = pawl_rd(b, n);
  return pawl_op("output", 6, b, n) < 0;
}
