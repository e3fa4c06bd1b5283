/* What the core guests of these tests share. They have no C library. */
#define I(n) __attribute__((import_module("pawl"), import_name(n)))
#define EXPORT(n) __attribute__((export_name(n)))
I("call") int pawl_op(const char *, unsigned, const char *, unsigned);
I("read") int pawl_rd(char *, unsigned);
static unsigned len(const char *s) { unsigned n = 0; while (s[n]) n++; return n; }
static int op(const char *name, const char *req) { return pawl_op(name, len(name), req, len(req)); }
