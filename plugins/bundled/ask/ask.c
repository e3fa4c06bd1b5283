/* ask.c: ask_user puts a question to the user. The call ends here: its result is
 * what the user answers, perhaps days later (sdk/abi/ABI.md, pause).
 *
 * What the user is shown are the arguments, as the model wrote them and the host
 * has checked them. A question without a schema has one that takes anything, so
 * that it, too, is answered or rejected and never just approved. */
#include "pawl.h"

PAWL_TOOL int ask(void) {
  pawl_str args = pawl_value(pawl_get(pawl_input(), "arguments")), schema = pawl_value(pawl_get(args, "schema"));
  pawl_answer refused = pawl_pause_for("await_input", args, schema.n ? schema : PAWL_STR("{}"));
  return pawl_fail(refused.code, refused.message, refused.retryable);
}
