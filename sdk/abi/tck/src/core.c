/* The conformance guest of level 2. What it can be told to do is in core.json,
 * which is also what it describes. */
#include "pawl.h"

static const char manifest[] =
#include "core.inc"
    ;

static volatile char *keep;
static int calls_seen;

static int edges(void);

__attribute__((export_name("pawl_describe"))) int describe(void) {
  return pawl_output((pawl_str){manifest, sizeof manifest - 1});
}

PAWL_TOOL int run(void) {
  pawl_str request = pawl_input(), args = pawl_get(request, "arguments"), tool = {0};
  pawl_get_string(request, "tool", &tool);
  if (pawl_eq(tool, PAWL_STR("echo"))) {
    pawl_buf b = {0};
    pawl_lit(&b, "{\"arguments\":");
    pawl_raw(&b, pawl_value(args));
    pawl_lit(&b, ",\"nonce\":0,\"more\":0}");
    return pawl_output(pawl_text(&b));
  }
  if (pawl_eq(tool, PAWL_STR("do"))) {
    pawl_str each, op;
    pawl_buf answers = {0};
    pawl_lit(&answers, "[");
    for (size_t at = 0; pawl_next(pawl_get(args, "calls"), &at, NULL, &each);) {
      pawl_str req = {0};
      size_t inner = 0;
      if (!pawl_next(each, &inner, NULL, &op) || !pawl_next(each, &inner, NULL, &req) || !pawl_string(op, &op)) return 3;
      if (answers.n > 1) pawl_lit(&answers, ",");
      req = pawl_value(req);
      int32_t n = pawl_import_call(op.p, op.n, req.p, req.n);
      if (n < 0) {
        pawl_int(&answers, n);
        continue;
      }
      pawl_import_read(pawl_room(&answers, (size_t)n), (size_t)n);
      answers.n += (size_t)n;
    }
    pawl_lit(&answers, "]");
    return pawl_get_true(args, "silent") ? 0 : pawl_output(pawl_text(&answers));
  }
  if (pawl_eq(tool, PAWL_STR("edges"))) return edges();
  if (pawl_eq(tool, PAWL_STR("remember"))) { /* 1, if the instance is fresh */
    pawl_buf b = {0};
    pawl_int(&b, ++calls_seen);
    return pawl_output(pawl_text(&b));
  }
  if (pawl_eq(tool, PAWL_STR("return"))) {
    pawl_str code = pawl_value(pawl_get(args, "code"));
    int n = 0;
    for (size_t i = 0; i < code.n; i++) n = n * 10 + (code.p[i] - '0');
    return n;
  }
  if (pawl_eq(tool, PAWL_STR("bytes"))) return pawl_output(PAWL_STR("\"\xff\xfe\"")), 0;
  if (pawl_eq(tool, PAWL_STR("trap"))) __builtin_trap();
  if (pawl_eq(tool, PAWL_STR("loop")))
    for (volatile int i = 0;; i++) {
    }
  if (pawl_eq(tool, PAWL_STR("grow")))
    for (;;) keep = pawl_alloc(1 << 20), keep[0] = 1;
  return pawl_fail(PAWL_STR("no_tool"), PAWL_STR("no such tool"), false);
}

static pawl_buf numbers;

static void note(int32_t n) {
  if (numbers.n > 1) pawl_lit(&numbers, ",");
  pawl_int(&numbers, n);
}

/* What call and read return at the edges of the memory and of their limits. */
static int edges(void) {
  enum { MAX_OP = 64, MAX_REQUEST = 2 << 20 };
  char *big = pawl_alloc(MAX_REQUEST + 1), small[8] = {0};
  const char *end = (const char *)(__builtin_wasm_memory_size(0) << 16);
  for (size_t i = 0; i <= MAX_REQUEST; i++) big[i] = ' ';
  big[0] = '"', big[1] = '"';
  pawl_lit(&numbers, "[");
  note(pawl_import_read(small, 8));                         /* 0: input is still there, but read to its end */
  note(pawl_import_call("log", 3, end - 1, 2));             /* -1: one byte beyond */
  note(pawl_import_call("log", 3, end, 0) > 0);             /* 1: nothing, at the very end: {} */
  note(pawl_import_call(end - 1, 2, "{}", 2));              /* -1 */
  note(pawl_import_call("log", 3, (const char *)-1, 2));    /* -1: wraps around */
  note(pawl_import_call("log", 3, "{}", (size_t)-1));       /* -1 */
  note(pawl_import_read(small, 8));                         /* 0: none is ready after a refused call */
  note(pawl_import_call("l\xffg", 3, "{}", 2));             /* -2: op is no UTF-8 */
  note(pawl_import_call("log", 3, "\"\xff\"", 3));          /* -2: request is no UTF-8 */
  note(pawl_import_call("log", 3, "{", 1));                 /* -2: no JSON */
  note(pawl_import_call("log", 3, "{} {}", 5));             /* -2: two values */
  note(pawl_import_call("log", 3, "{\"a\":1,\"a\":2}", 13)); /* -2: no I-JSON */
  note(pawl_import_call("log", 3, "\"\\ud800\"", 8));       /* -2: a lone surrogate */
  note(pawl_import_call(big, MAX_OP + 1, "{}", 2));         /* -3 */
  note(pawl_import_call("log", 3, big, MAX_REQUEST + 1));   /* -3 */
  note(pawl_import_call("output", 6, "1", 1) == 9);         /* 1: {"ok":{}} */
  note(pawl_import_read((char *)end - 4, 5));               /* -1: nothing copied */
  note(pawl_import_read((char *)-1, 2));                    /* -1 */
  note(pawl_import_read(small, 0));                         /* 0: no room */
  note(pawl_import_read(small, 4));                         /* 4 */
  note(small[0] == '{' && small[3] == 'k' && !small[4]);    /* 1 */
  note(pawl_import_read(small, 8));                         /* 5: the rest */
  note(small[0] == '"' && small[4] == '}' && !small[5]);    /* 1 */
  note(pawl_import_read(small, 8));                         /* 0 */
  note(pawl_import_call("output", 6, "2", 1) == 9);         /* 1 */
  note(pawl_import_call("output", 6, "3", 1) == 9);         /* 1: the answer before is gone */
  note(pawl_import_read((char *)end - 9, 9));               /* 9: exactly to the end */
  pawl_lit(&numbers, "]");
  return pawl_output(pawl_text(&numbers));
}
