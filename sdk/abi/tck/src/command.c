/* The conformance guest of levels 0 and 1: one program, two manifests. What it
 * can be told to do is in command0.json and command1.json. */
#define PAWL_LIBC
#include <stdio.h>
#include <unistd.h>

#include "pawl.h"

static pawl_str line(void) {
  pawl_buf b = {0};
  for (int c; (c = getchar()) != EOF && c != '\n';) {
    char ch = (char)c;
    pawl_raw(&b, (pawl_str){&ch, 1});
  }
  return pawl_text(&b);
}

static void print(pawl_str s) { fwrite(s.p, 1, s.n, stdout); }

/* Text with each ~ replaced by this call's nonce. */
static void print_text(pawl_str text, pawl_str nonce) {
  for (size_t i = 0; i < text.n; i++) {
    if (text.p[i] == '~')
      print(nonce);
    else
      putchar(text.p[i]);
  }
}

static volatile char *keep;

int main(void) {
  pawl_str request = line(), tool = {0}, text = {0}, nonce = {0};
  pawl_str args = pawl_get(request, "arguments");
  pawl_get_string(request, "tool", &tool);
  pawl_get_string(args, "text", &text);
  pawl_get_string(pawl_get(request, "context"), "nonce", &nonce);
  if (pawl_eq(tool, PAWL_STR("echo"))) { /* what came in, and that nothing follows it */
    printf("{\"arguments\":");
    print(pawl_value(args));
    printf(",\"nonce\":%zu,\"more\":%d}", nonce.n, getchar() != EOF);
  } else if (pawl_eq(tool, PAWL_STR("print"))) {
    print_text(text, nonce);
  } else if (pawl_eq(tool, PAWL_STR("do"))) { /* calls; the result is the list of their answers */
    pawl_str each, op;
    pawl_buf answers = {0};
    pawl_lit(&answers, "[");
    for (size_t at = 0; pawl_next(pawl_get(args, "calls"), &at, NULL, &each);) {
      pawl_str req = {0};
      size_t inner = 0;
      if (!pawl_next(each, &inner, NULL, &op) || !pawl_next(each, &inner, NULL, &req) || !pawl_string(op, &op)) return 3;
      printf("@pawl:");
      print(nonce);
      printf(" ");
      print(op);
      printf(" ");
      print(pawl_value(req));
      printf("\n");
      fflush(stdout);
      if (answers.n > 1) pawl_lit(&answers, ",");
      pawl_raw(&answers, line());
    }
    pawl_lit(&answers, "]");
    if (!pawl_get_true(args, "silent")) print(pawl_text(&answers));
  } else if (pawl_eq(tool, PAWL_STR("exit"))) {
    pawl_str code = pawl_value(pawl_get(args, "code"));
    int n = 0;
    for (size_t i = 0; i < code.n; i++) n = n * 10 + (code.p[i] - '0');
    fwrite(text.p, 1, text.n, stderr);
    return n;
  } else if (pawl_eq(tool, PAWL_STR("bytes"))) { /* no UTF-8 */
    printf("\"\xff\xfe\"");
  } else if (pawl_eq(tool, PAWL_STR("trap"))) {
    __builtin_trap();
  } else if (pawl_eq(tool, PAWL_STR("loop"))) {
    for (volatile int i = 0;; i++) {
    }
  } else if (pawl_eq(tool, PAWL_STR("grow"))) {
    for (;;) keep = pawl_alloc(1 << 20), keep[0] = 1;
  } else if (pawl_eq(tool, PAWL_STR("flood"))) {
    static char block[65536];
    for (size_t i = 0; i < sizeof block; i++) block[i] = 'x';
    for (int i = 0; i < 16384; i++) fwrite(block, 1, sizeof block, stdout); /* 1 GiB */
  } else {
    fprintf(stderr, "no such tool\n");
    return 1;
  }
  return 0;
}
