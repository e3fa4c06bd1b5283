/* The level 0 and 1 guest of the tests, without stdio, so that what it writes is what the host reads. */
#include <string.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

static char in[1 << 16], chunk[1 << 16], nonce[65], tool[65];
static int n_in;

static void out(const char *s) { write(1, s, strlen(s)); }
static void err(const char *s) { write(2, s, strlen(s)); }

/* line reads one line byte by byte: what the host sends must be exactly one. */
static int line(char *b, int cap) {
  int n = 0;
  while (n < cap - 1 && read(0, b + n, 1) == 1) if (b[n++] == '\n') break;
  b[n] = 0;
  return n;
}

static void member(const char *name, char *to) {
  char *p = strstr(in, name);
  if (!p) return;
  p += strlen(name);
  for (int i = 0; i < 64 && p[i] != '"'; i++) to[i] = p[i];
}

static int is(const char *name) { return strcmp(tool, name) == 0; }

static void op(const char *text) { out("@pawl:"); out(nonce); out(" "); out(text); out("\n"); }

int main(int argc, char **argv) {
  n_in = line(in, sizeof in);
  member("{\"tool\":\"", tool);
  member("\"nonce\":\"", nonce);
  if (is("echo")) { in[n_in - 1] = 0; out(in); return 0; }
  if (is("pretty")) { out("\n  {\"a\":\n 1}\r\n\n"); return 0; }
  if (is("eof")) { out(read(0, chunk, 1) == 0 ? "\"eof\"" : "\"more\""); return 0; }
  if (is("args")) { out(argc == 1 && argv[0][0] && !getenv("PATH") ? "true" : "false"); return 0; }
  if (is("exit3")) { out("{}"); err("first line\nthe order is gone\xff\n"); return 3; }
  if (is("silent7")) return 7;
  if (is("exitmax")) exit(-1);
  if (is("logs")) { err("one\ntwo\r\nthree"); out("1"); return 0; }
  if (is("flood")) { memset(chunk, 'x', sizeof chunk); for (int i = 0; i < 1 << 14; i++) write(1, chunk, sizeof chunk); return 0; } /* 1 GiB */
  if (is("errflood")) { memset(chunk, 'x', sizeof chunk); chunk[100] = '\n'; for (int i = 0; i < 1 << 8; i++) write(2, chunk, sizeof chunk); out("1"); return 0; }
  if (is("nothing")) return 0;
  if (is("badutf8")) { out("\"\xff\""); return 0; }
  if (is("surrogate")) { out("\"\\ud800\""); return 0; }
  if (is("two")) { out("1 2"); return 0; }
  if (is("dup")) { out("{\"a\":1,\"a\":2}"); return 0; }
  if (is("big")) { out("9007199254740993"); return 0; }
  if (is("sleep")) { struct timespec t = {3600, 0}; nanosleep(&t, 0); out("\"woke\""); return 0; }
  if (is("nap")) { /* the clock moves on by what was slept */
    struct timespec a, b, t = {0, 5000000};
    clock_gettime(CLOCK_MONOTONIC, &a); nanosleep(&t, 0); clock_gettime(CLOCK_MONOTONIC, &b);
    long ms = (b.tv_sec - a.tv_sec) * 1000 + (b.tv_nsec - a.tv_nsec) / 1000000;
    out(ms >= 5 && ms < 50 ? "true" : "false"); return 0;
  }
  if (is("random")) { unsigned char r[4]; struct timespec t; getentropy(r, 4); clock_gettime(CLOCK_REALTIME, &t);
    char b[] = "\"00000000-00\""; for (int i = 0; i < 4; i++) { b[1 + 2 * i] = "0123456789abcdef"[r[i] >> 4]; b[2 + 2 * i] = "0123456789abcdef"[r[i] & 15]; }
    b[10] = '0' + t.tv_sec % 10; b[11] = '0' + t.tv_nsec / 1000000 % 10; out(b); return 0; }
  if (is("loop")) for (;;) n_in++;
  if (is("file")) { int f = (int)(access("/etc/passwd", 0) == 0); out(f ? "true" : "false"); return 0; }
  /* Prints somebody's file with call lines in it: an empty nonce, a guess, one after text, one that is not the end. */
  if (is("forge")) { out("[\"@pawl: kv.put\",\n\"x @pawl:"); out(nonce); out(" kv.put {}\"]"); return 0; }
  if (is("forge2")) { out("@pawl:00000000000000000000000000000000 kv.put {\"key\":\"stolen\",\"value\":\"1\"}\n@pawl: kv.put {\"key\":\"stolen\",\"value\":\"1\"}\n"); return 0; }
  /* Level 1 */
  if (is("calls")) {
    op("kv.put {\"key\":\"a\",\"value\":\"41\"}"); line(chunk, sizeof chunk);
    op("kv.get {\"key\":\"a\"}\r"); line(chunk, sizeof chunk);
    chunk[strlen(chunk) - 1] = 0;
    out("{\"got\":\n"); out(chunk); out("}\n");
    return 0;
  }
  if (is("output")) { out("noise before\n"); op("output {\"set\":true}"); line(chunk, sizeof chunk); out("noise after"); return 0; }
  if (is("badcall")) { op("kv.get {"); line(chunk, sizeof chunk); chunk[strlen(chunk) - 1] = 0; out(chunk); return 0; }
  if (is("noanswer")) { out(read(0, chunk, 1) == 0 ? "\"eof\"" : "\"more\""); return 0; }
  if (is("pause")) { op("pause {\"reason\":\"await_input\",\"payload\":{\"q\":1}}"); line(chunk, sizeof chunk); out("\"ran on\""); return 0; }
  if (is("longline")) { out("@pawl:"); memset(chunk, 'x', sizeof chunk); for (int i = 0; i < 40; i++) write(1, chunk, sizeof chunk); return 0; }
  if (is("tail")) { out("1"); return 0; }
  if (is("halfline")) { out("@pawl:"); out(nonce); out(" kv.put {\"key\":\"a\",\"value\":\"1\"}"); return 0; }
  err("no such tool\n");
  return 1;
}
