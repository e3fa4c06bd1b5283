/* word_count: a pawl tool without any SDK. It reads one line of JSON, prints one
 * JSON value, and ends: an ordinary program, which also runs outside of pawl:
 *
 *   cc word_count.c && echo '{"arguments":{"text":"to be"}}' | ./a.out
 *
 * C has no JSON reader, so half of this is one; use your language's. */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *space(const char *p) { return p + strspn(p, " \t\r\n"); }

/* Behind the value at p. */
static const char *skip(const char *p) {
  int depth = 0;
  do {
    if (*p == '"') {
      for (p++; *p && *p != '"'; p++)
        if (*p == '\\' && p[1]) p++;
      if (*p) p++;
    } else if (*p == '{' || *p == '[') {
      depth++, p++;
    } else if (*p == '}' || *p == ']') {
      depth--, p++;
    } else if (depth) {
      p++;
    } else {
      p += strcspn(p, ",}] \t\r\n");
    }
  } while (depth > 0 && *p);
  return p;
}

/* The value of an object's member, or NULL. */
static const char *member(const char *p, const char *quoted) {
  if (!p || *p != '{') return NULL;
  for (p = space(p + 1); *p == '"'; p = space(p + 1)) {
    int found = !strncmp(p, quoted, strlen(quoted));
    p = space(space(skip(p)) + 1); /* over the name and the colon */
    if (found) return p;
    p = space(skip(p));
    if (*p != ',') break;
  }
  return NULL;
}

int main(void) {
  char *in = NULL;
  size_t size = 0;
  if (getline(&in, &size, stdin) < 0) return 1;
  const char *p = member(member(space(in), "\"arguments\""), "\"text\"");
  if (!p || *p != '"') {
    fprintf(stderr, "give the text to count as \"text\"\n");
    return 1; /* the call fails, with that message */
  }
  long words = 0, lines = 0, characters = 0;
  for (int word = 0, newline = 1; *++p && *p != '"';) {
    unsigned c = (unsigned char)*p;
    if (c == '\\') {
      c = (unsigned char)*++p;
      c = c == 'n' ? '\n' : c == 't' ? '\t' : c == 'r' ? '\r' : c == 'f' ? '\f' : c;
      if (c == 'u') {
        char hex[5] = {0};
        strncpy(hex, p + 1, 4);
        p += strlen(hex);
        c = (unsigned)strtoul(hex, NULL, 16);
        if (c >= 0xDC00 && c < 0xE000) continue; /* the second half of a pair */
      }
    } else if ((c & 0xC0) == 0x80) {
      continue; /* inside a character */
    }
    int blank = c == ' ' || (c >= '\t' && c <= '\r');
    characters++;
    words += !blank && !word;
    word = !blank;
    lines += newline;
    newline = c == '\n';
  }
  printf("{\"characters\":%ld,\"lines\":%ld,\"words\":%ld}\n", characters, lines, words);
  return 0;
}
