/* A reactor that describes itself. */
#include "pawl.h"
static int ready;
EXPORT("_initialize") void init(void) { ready = 5; }
EXPORT("pawl_describe") int describe(void) {
  if (ready != 5) return 1;
  return op("output", "{\"abi\":1,\"level\":2,\"tools\":[{\"name\":\"ready\",\"description\":\"is it initialized\",\"effects\":\"read\",\"input_schema\":{\"type\":\"object\"}}]}") < 0;
}
EXPORT("pawl_call") int call(void) { return op("output", ready == 5 ? "true" : "false") < 0; }
