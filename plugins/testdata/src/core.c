/* The level 2 guest of the tests: the tool's first letters say what it does. */
#include "pawl.h"
static char in[1 << 17], big[1 << 20];
static unsigned n_in;

/* find returns what follows `"name":"` in the request, and its length. */
static char *member(const char *name, unsigned *n) {
  unsigned m = len(name);
  for (unsigned i = 0; i + m + 4 < n_in; i++) {
    unsigned j = 0;
    while (j < m && in[i + 1 + j] == name[j]) j++;
    if (in[i] == '"' && j == m && in[i + 1 + m] == '"' && in[i + 2 + m] == ':' && in[i + 3 + m] == '"') {
      char *v = in + i + 4 + m;
      unsigned k = 0;
      while (v[k] != '"') k++;
      *n = k;
      return v;
    }
  }
  *n = 0;
  return 0;
}

static int is(const char *v, unsigned n, const char *want) {
  if (!v || n != len(want)) return 0;
  for (unsigned i = 0; i < n; i++) if (v[i] != want[i]) return 0;
  return 1;
}

static volatile int sink;
/* On the machine's stack, not on the one in memory, and no loop to the compiler. */
static int deep(int);
static int (*volatile self)(int) = deep;
static int deep(int n) { int r = self(n + sink); sink += r; return sink; }
static int global = 7;
static volatile int zero;

EXPORT("pawl_call") int pawl_call(void) {
  int n = op("input", "");
  if (n < 0 || n > (int)sizeof in) return 100;
  n_in = pawl_rd(in, n);
  unsigned t, o, r;
  char *tool = member("tool", &t), *o_ = member("op", &o), *r_ = member("req", &r);
  if (is(tool, t, "echo")) return pawl_op("output", 6, in + 6, n_in - 7) < 0; /* within {"ok":…} */
  if (is(tool, t, "op")) { /* does the operation in the arguments, gives its answer; ' stands for " */
    for (unsigned i = 0; i < r; i++) if (r_[i] == '\'') r_[i] = '"';
    int a = pawl_op(o_, o, r_, r);
    if (a < 0) return a;
    a = pawl_rd(big, a);
    return pawl_op("output", 6, big, a) < 0;
  }
  if (is(tool, t, "loop")) for (;;) sink++;
  if (is(tool, t, "oploop")) for (;;) op("log", "{\"level\":\"info\",\"message\":\"x\"}");
  if (is(tool, t, "trap")) __builtin_trap();
  if (is(tool, t, "div")) return 1234567 / zero;
  if (is(tool, t, "deep")) return deep(0);
  if (is(tool, t, "grow")) { while (__builtin_wasm_memory_grow(0, 16) != (__SIZE_TYPE__)-1) sink++; __builtin_trap(); }
  if (is(tool, t, "growquiet")) { unsigned p = 0; while (__builtin_wasm_memory_grow(0, 16) != (__SIZE_TYPE__)-1) p++; return op("output", p > 0 ? "true" : "false") < 0; }
  if (is(tool, t, "grow4g")) return op("output", __builtin_wasm_memory_grow(0, 65535) == (__SIZE_TYPE__)-1 ? "\"refused\"" : "\"grown\"") < 0;
  if (is(tool, t, "nothing")) return 0;
  if (is(tool, t, "status")) return 42;
  if (is(tool, t, "badutf8")) { int s = pawl_op("output", 6, "\"\xff\"", 3); return s == -2 ? 0 : 1; }
  if (is(tool, t, "nul")) return pawl_op("output", 6, "\"a\0b\"", 5) == -2 ? 0 : 1;
  if (is(tool, t, "fail")) { op("output", "1"); op("fail", "{\"message\":\"no such order\",\"code\":\"not_found\",\"retryable\":true}"); return 0; }
  if (is(tool, t, "pause")) {
    op("kv.put", "{\"key\":\"before\",\"value\":\"1\"}");
    op("pause", "{\"reason\":\"approval_required\",\"payload\":{\"approval_key\":\"k\"}}");
    op("kv.put", "{\"key\":\"after\",\"value\":\"1\"}");
    return op("output", "\"ran on\"") < 0;
  }
  if (is(tool, t, "once")) return op("output", global++ == 7 && big[5] == 0 ? (big[5] = 1, "true") : "false") < 0;
  if (is(tool, t, "edges")) { /* pointers at and beyond the end of memory */
    unsigned end = __builtin_wasm_memory_size(0) << 16;
    if (pawl_op("input", 5, (char *)end, 0) < 0) return 1;         /* empty at the very end: fine */
    if (pawl_op("input", 5, (char *)(end - 1), 2) != -1) return 2; /* one past */
    if (pawl_op("input", 5, (char *)end, 1) != -1) return 3;
    if (pawl_op((char *)(end - 4), 5, "", 0) != -1) return 4;
    if (pawl_op((char *)0xffffffff, 0xffffffff, "", 0) != -1) return 5; /* sum overflows 32 bits */
    if (pawl_op("input", 5, (char *)1, 0xffffffff) != -1) return 6;
    if (pawl_rd((char *)end, 0) != 0) return 7; /* no answer is ready */
    if (op("input", "") < 0) return 8;
    if (pawl_rd((char *)(end - 1), 2) != -1) return 9;
    if (pawl_rd((char *)(end - 1), 1) != 1) return 10;
    if (pawl_rd((char *)0xffffffff, 0xffffffff) != -1) return 11;
    if (pawl_op(in, 65, "", 0) != -3) return 12;
    if (pawl_op("\xff", 1, "", 0) != -2) return 13;
    if (pawl_op("log", 3, "{", 1) != -2) return 14;
    if (pawl_rd(in, 64) != 0) return 15; /* a refused call leaves no answer */
    return op("output", "\"ok\"") < 0;
  }
  return 99;
}
