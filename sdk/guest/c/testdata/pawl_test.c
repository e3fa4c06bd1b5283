/* pawl.h compiled natively, for pawl_test.go: reads one JSON document a line,
 * each as hex, and does with it what the first argument says.
 *
 *   string   its text as hex, and that text quoted again as hex
 *   answer   pawl_do of a host that gives this answer
 *   any      every function, on every prefix of the line; prints nothing */
#include "../pawl.h"

#include <stdio.h>
#include <string.h>

static pawl_str given;
static size_t given_read;

int32_t pawl_import_call(const char *op, size_t op_len, const char *req, size_t req_len) {
  (void)op, (void)op_len, (void)req, (void)req_len;
  given_read = 0;
  return (int32_t)given.n;
}

int32_t pawl_import_read(char *dst, size_t cap) {
  size_t n = given.n - given_read < cap ? given.n - given_read : cap;
  memcpy(dst, given.p + given_read, n);
  given_read += n;
  return (int32_t)n;
}

static void hex(pawl_str s) {
  for (size_t i = 0; i < s.n; i++) printf("%02x", (unsigned char)s.p[i]);
}

static void show_answer(void) {
  pawl_answer a = pawl_do("kv.get", PAWL_STR("{}"));
  pawl_str v;
  if (!a.ok.n) {
    printf("error ");
    hex(a.code);
    printf(" ");
    hex(a.message);
    printf(" %d\n", a.retryable);
  } else if (pawl_get_string(a.ok, "value", &v)) {
    printf("value ");
    hex(v);
    printf("\n");
  } else {
    printf("other ");
    hex(pawl_value(a.ok));
    printf("\n");
  }
}

static void walk(pawl_str json, int depth) {
  pawl_str name, value, text;
  pawl_value(json);
  if (pawl_string(json, &text)) {
    pawl_buf b = {0};
    pawl_quote(&b, text);
    if (b.n != pawl_quoted(text)) __builtin_trap();
  }
  if (depth > 8) return;
  for (size_t at = 0; pawl_next(json, &at, NULL, &value);) walk(value, depth + 1);
  for (size_t at = 0; pawl_next(json, &at, &name, &value);) walk(value, depth + 1);
}

int main(int argc, char **argv) {
  static char line[1 << 20];
  if (argc < 2) return 2;
  while (fgets(line, sizeof line, stdin)) {
    size_t n = 0;
    while (line[2 * n] > ' ' && line[2 * n + 1] > ' ') n++;
    char *p = malloc(n ? n : 1); /* exactly as long, so that the sanitizer sees one byte too many */
    for (size_t i = 0; i < n; i++) {
      unsigned v;
      sscanf(line + 2 * i, "%2x", &v);
      p[i] = (char)v;
    }
    given = (pawl_str){p, n};
    if (!strcmp(argv[1], "string")) {
      pawl_str text;
      pawl_buf again = {0};
      if (!pawl_string(given, &text)) {
        printf("no string\n");
      } else {
        pawl_quote(&again, text);
        hex(text);
        printf(" ");
        hex(pawl_text(&again));
        printf("\n");
      }
    } else if (!strcmp(argv[1], "answer")) {
      show_answer();
    } else {
      for (; given.n; given.n--) {
        char *exact = malloc(given.n);
        memcpy(exact, p, given.n);
        walk((pawl_str){exact, given.n}, 0);
        free(exact);
      }
    }
    free(p);
  }
  return 0;
}
