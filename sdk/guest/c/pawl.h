/* pawl.h: a pawl tool in C, level 2 (sdk/abi/ABI.md), in one header.
 *
 * Freestanding: no libc, no WASI, no start-up code. Compile with
 *
 *   clang --target=wasm32 -mbulk-memory -O2 -nostdlib -ffreestanding -fno-builtin
 *
 * A call runs in a fresh instance and ends soon, so memory is only ever taken:
 * there is no free. When the host gives no more, the guest traps.
 *
 * Compiled for anything but WebAssembly the two imports are plain functions
 * that a test defines: pawl_import_call and pawl_import_read. With PAWL_LIBC the
 * memory comes from malloc; then the JSON functions serve level 0 and 1 too. */
#ifndef PAWL_H
#define PAWL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __wasm__
#define PAWL_IMPORT(name) __attribute__((import_module("pawl"), import_name(name)))
#define PAWL_TOOL __attribute__((export_name("pawl_call")))
#else
#define PAWL_IMPORT(name)
#define PAWL_TOOL
#endif
#define PAWL_FN __attribute__((unused)) static

PAWL_IMPORT("call") int32_t pawl_import_call(const char *op, size_t op_len, const char *req, size_t req_len);
PAWL_IMPORT("read") int32_t pawl_import_read(char *dst, size_t cap);

/* ---- bytes ------------------------------------------------------------- */

/* A run of bytes that somebody else owns; n == 0 is also "none". */
typedef struct {
  const char *p;
  size_t n;
} pawl_str;

#define PAWL_STR(literal) ((pawl_str){(literal), sizeof(literal) - 1})

PAWL_FN pawl_str pawl_cstr(const char *s) {
  size_t n = 0;
  while (s[n]) n++;
  return (pawl_str){s, n};
}

PAWL_FN bool pawl_eq(pawl_str a, pawl_str b) {
  if (a.n != b.n) return false;
  for (size_t i = 0; i < a.n; i++)
    if (a.p[i] != b.p[i]) return false;
  return true;
}

PAWL_FN pawl_str pawl_from(pawl_str s, size_t at) { return (pawl_str){s.p + at, s.n - at}; }

/* ---- memory ------------------------------------------------------------ */

#if defined(__wasm__) && !defined(PAWL_LIBC)
extern char __heap_base;
static char *pawl_top;

/* n bytes at the top of the memory, not cleared, aligned to 8. */
PAWL_FN char *pawl_alloc(size_t n) {
  if (!pawl_top) pawl_top = (char *)(((size_t)&__heap_base + 7) & ~(size_t)7);
  size_t have = __builtin_wasm_memory_size(0) << 16, at = (size_t)pawl_top;
  if (n > (1u << 30)) __builtin_trap();
  n = (n + 7) & ~(size_t)7;
  if (at + n > have && __builtin_wasm_memory_grow(0, (at + n - have + 65535) >> 16) == (size_t)-1) __builtin_trap();
  pawl_top += n;
  return (char *)at;
}

/* Whether block p of old bytes could be made n bytes where it is. */
PAWL_FN bool pawl_extend(char *p, size_t old, size_t n) {
  if (p == NULL || p + ((old + 7) & ~(size_t)7) != pawl_top) return false;
  pawl_top = p;
  pawl_alloc(n);
  return true;
}
#else
#include <stdlib.h>
PAWL_FN char *pawl_alloc(size_t n) {
  char *p = malloc(n ? n : 1);
  if (!p) abort();
  return p;
}
PAWL_FN bool pawl_extend(char *p, size_t old, size_t n) {
  (void)p, (void)old, (void)n;
  return false;
}
#endif

/* ---- writing JSON ------------------------------------------------------ */

/* Text under construction; {0} is an empty one. */
typedef struct {
  char *p;
  size_t n, cap;
} pawl_buf;

/* Room for n more bytes. */
PAWL_FN char *pawl_room(pawl_buf *b, size_t n) {
  if (b->cap - b->n < n) {
    size_t cap = b->cap * 2 > b->n + n ? b->cap * 2 : b->n + n;
    if (!pawl_extend(b->p, b->cap, cap)) {
      char *p = pawl_alloc(cap);
      if (b->n) __builtin_memcpy(p, b->p, b->n);
      b->p = p;
    }
    b->cap = cap;
  }
  return b->p + b->n;
}

PAWL_FN void pawl_raw(pawl_buf *b, pawl_str s) {
  if (!s.n) return;
  __builtin_memcpy(pawl_room(b, s.n), s.p, s.n);
  b->n += s.n;
}

PAWL_FN void pawl_lit(pawl_buf *b, const char *s) { pawl_raw(b, pawl_cstr(s)); }

PAWL_FN void pawl_int(pawl_buf *b, int64_t v) {
  char d[20];
  size_t n = sizeof d;
  uint64_t u = v < 0 ? 0 - (uint64_t)v : (uint64_t)v;
  do d[--n] = (char)('0' + u % 10);
  while (u /= 10);
  if (v < 0) d[--n] = '-';
  pawl_raw(b, (pawl_str){d + n, sizeof d - n});
}

/* The short escape of c, 'u' for a six-byte one, 0 for none (RFC 8785). */
PAWL_FN char pawl_escape(unsigned char c) {
  if (c >= 0x20) return c == '"' || c == '\\' ? (char)c : 0;
  return "uuuuuuuubtnufruuuuuuuuuuuuuuuuuu"[c];
}

/* How many bytes s takes as a JSON string, quotes included. */
PAWL_FN size_t pawl_quoted(pawl_str s) {
  size_t n = 2;
  for (size_t i = 0; i < s.n; i++) {
    char e = pawl_escape((unsigned char)s.p[i]);
    n += e == 0 ? 1 : e == 'u' ? 6 : 2;
  }
  return n;
}

/* s, which must be UTF-8, as a JSON string. */
PAWL_FN void pawl_quote(pawl_buf *b, pawl_str s) {
  size_t len = pawl_quoted(s);
  char *o = pawl_room(b, len);
  b->n += len;
  *o++ = '"';
  if (len == s.n + 2) { /* nothing to escape */
    if (s.n) __builtin_memcpy(o, s.p, s.n);
    o += s.n;
  } else {
    for (size_t i = 0; i < s.n; i++) {
      unsigned char c = (unsigned char)s.p[i];
      char e = pawl_escape(c);
      if (!e) {
        *o++ = (char)c;
        continue;
      }
      *o++ = '\\';
      *o++ = e;
      if (e == 'u') {
        *o++ = '0';
        *o++ = '0';
        *o++ = (char)('0' + (c >> 4));
        *o++ = "0123456789abcdef"[c & 15];
      }
    }
  }
  *o = '"';
}

PAWL_FN pawl_str pawl_text(const pawl_buf *b) { return (pawl_str){b->p, b->n}; }

/* ---- reading JSON ------------------------------------------------------ */
/* The host sends well-formed JSON. Whatever else arrives is never read past
 * its end, and yields "none" or an unspecified value. */

PAWL_FN size_t pawl_space(pawl_str s, size_t i) {
  while (i < s.n && (s.p[i] == ' ' || s.p[i] == '\n' || s.p[i] == '\t' || s.p[i] == '\r')) i++;
  return i;
}

/* The offset after the string that begins at i. */
PAWL_FN size_t pawl_skip_string(pawl_str s, size_t i) {
  for (i++; i < s.n && s.p[i] != '"'; i++)
    if (s.p[i] == '\\') i++;
  return i < s.n ? i + 1 : s.n;
}

/* The offset after the value that begins at i. */
PAWL_FN size_t pawl_skip(pawl_str s, size_t i) {
  for (size_t depth = 0; i < s.n;) {
    char c = s.p[i];
    if (c == '"') {
      i = pawl_skip_string(s, i);
    } else if (c == '{' || c == '[') {
      depth++, i++;
      continue;
    } else if (c == '}' || c == ']') {
      if (!depth) return i;
      depth--, i++;
    } else if (depth) {
      i++;
      continue;
    } else {
      while (i < s.n && s.p[i] != ',' && s.p[i] != '}' && s.p[i] != ']' && s.p[i] > ' ') i++;
    }
    if (!depth) return i;
  }
  return s.n;
}

/* The next element of an array, or the next member's name and value of an
 * object (then *name is its JSON string). *at is 0 at first. False at the end. */
PAWL_FN bool pawl_next(pawl_str s, size_t *at, pawl_str *name, pawl_str *value) {
  size_t i = *at;
  if (i == 0) {
    i = pawl_space(s, 0);
    if (i >= s.n || (s.p[i] != '[' && s.p[i] != '{')) return false;
    i++;
  }
  i = pawl_space(s, i);
  if (i < s.n && s.p[i] == ',') i = pawl_space(s, i + 1);
  if (i >= s.n || s.p[i] == ']' || s.p[i] == '}') return false;
  if (name) {
    size_t end = pawl_skip(s, i);
    *name = (pawl_str){s.p + i, end - i};
    i = pawl_space(s, end);
    if (i >= s.n || s.p[i] != ':') return false;
    i = pawl_space(s, i + 1);
  }
  size_t end = pawl_skip(s, i);
  if (end == i) return false;
  *value = (pawl_str){s.p + i, end - i};
  *at = end;
  return true;
}

PAWL_FN int32_t pawl_hex4(const char *p) {
  int32_t v = 0;
  for (int i = 0; i < 4; i++) {
    char c = p[i];
    int d = c >= '0' && c <= '9' ? c - '0' : (c | 32) >= 'a' && (c | 32) <= 'f' ? (c | 32) - 'a' + 10 : -1;
    if (d < 0) return -1;
    v = v << 4 | d;
  }
  return v;
}

/* The text of a JSON string; false if json is not one. A lone surrogate, which
 * no host sends, becomes U+FFFD. Without an escape nothing is copied. */
PAWL_FN bool pawl_string(pawl_str json, pawl_str *out) {
  if (json.n < 2 || json.p[0] != '"' || json.p[json.n - 1] != '"') return false;
  pawl_str s = {json.p + 1, json.n - 2};
  size_t i = 0;
  while (i < s.n && s.p[i] != '\\') i++;
  if (i == s.n) {
    *out = s;
    return true;
  }
  char *o = pawl_alloc(s.n), *start = o;
  __builtin_memcpy(o, s.p, i);
  o += i;
  while (i < s.n) {
    char c = s.p[i++];
    if (c != '\\') {
      *o++ = c;
      continue;
    }
    if (i == s.n) return false;
    switch (c = s.p[i++]) {
      case 'b': *o++ = '\b'; break;
      case 'f': *o++ = '\f'; break;
      case 'n': *o++ = '\n'; break;
      case 'r': *o++ = '\r'; break;
      case 't': *o++ = '\t'; break;
      case '"': case '\\': case '/': *o++ = c; break;
      case 'u': {
        int32_t u = s.n - i >= 4 ? pawl_hex4(s.p + i) : -1;
        if (u < 0) return false;
        i += 4;
        if (u >= 0xD800 && u < 0xE000) {
          int32_t lo = u < 0xDC00 && s.n - i >= 6 && s.p[i] == '\\' && s.p[i + 1] == 'u' ? pawl_hex4(s.p + i + 2) : -1;
          if (lo >= 0xDC00 && lo < 0xE000) {
            i += 6;
            u = 0x10000 + ((u - 0xD800) << 10) + (lo - 0xDC00);
          } else {
            u = 0xFFFD;
          }
        }
        if (u < 0x80) {
          *o++ = (char)u;
        } else if (u < 0x800) {
          *o++ = (char)(0xC0 | u >> 6);
          *o++ = (char)(0x80 | (u & 63));
        } else if (u < 0x10000) {
          *o++ = (char)(0xE0 | u >> 12);
          *o++ = (char)(0x80 | (u >> 6 & 63));
          *o++ = (char)(0x80 | (u & 63));
        } else {
          *o++ = (char)(0xF0 | u >> 18);
          *o++ = (char)(0x80 | (u >> 12 & 63));
          *o++ = (char)(0x80 | (u >> 6 & 63));
          *o++ = (char)(0x80 | (u & 63));
        }
        break;
      }
      default: return false;
    }
  }
  *out = (pawl_str){start, (size_t)(o - start)};
  return true;
}

/* The JSON of a member of an object, none if it is not there. */
PAWL_FN pawl_str pawl_get(pawl_str object, const char *name) {
  pawl_str want = pawl_cstr(name), key, value, text;
  for (size_t at = 0; pawl_next(object, &at, &key, &value);)
    if (pawl_string(key, &text) && pawl_eq(text, want)) return value;
  return (pawl_str){NULL, 0};
}

/* The text of a member that is a string; false if it is not there or is none. */
PAWL_FN bool pawl_get_string(pawl_str object, const char *name, pawl_str *out) {
  return pawl_string(pawl_get(object, name), out);
}

PAWL_FN bool pawl_get_true(pawl_str object, const char *name) {
  return pawl_eq(pawl_get(object, name), PAWL_STR("true"));
}

/* ---- calls ------------------------------------------------------------- */

/* An answer: ok is the JSON of its value; or, when ok.n is 0, why not. */
typedef struct {
  pawl_str ok, code, message;
  bool retryable;
} pawl_answer;

/* Do an operation; req is its request as JSON. */
PAWL_FN pawl_answer pawl_do(const char *op, pawl_str req) {
  pawl_answer a = {{0}, {0}, {0}, false};
  pawl_str name = pawl_cstr(op);
  int32_t n = pawl_import_call(name.p, name.n, req.p, req.n);
  if (n < 0) {
    a.code = n == -3 ? PAWL_STR("too_large") : PAWL_STR("invalid");
    a.message = n == -3 ? PAWL_STR("the request is longer than 2 MiB") : PAWL_STR("the request is not JSON in UTF-8");
    return a;
  }
  pawl_str text = {NULL, 0};
  if (n) {
    char *p = pawl_alloc((size_t)n);
    text = (pawl_str){p, (size_t)pawl_import_read(p, (size_t)n)};
  }
  a.ok = pawl_get(text, "ok");
  if (!a.ok.n) {
    pawl_str error = pawl_get(text, "error");
    pawl_get_string(error, "code", &a.code);
    pawl_get_string(error, "message", &a.message);
    a.retryable = pawl_get_true(error, "retryable");
  }
  return a;
}

/* The request document of this call. */
PAWL_FN pawl_str pawl_input(void) { return pawl_do("input", PAWL_STR("{}")).ok; }

/* Set the result; the value for pawl_call to return: 0, or 1 when refused. */
PAWL_FN int pawl_output(pawl_str json) {
  pawl_answer a = pawl_do("output", json);
  if (a.ok.n) return 0;
  pawl_buf b = {0};
  pawl_lit(&b, "{\"message\":");
  pawl_quote(&b, a.message);
  pawl_lit(&b, "}");
  pawl_do("fail", pawl_text(&b));
  return 1;
}

/* End the call with an error; the value for pawl_call to return. */
PAWL_FN int pawl_fail(pawl_str code, pawl_str message, bool retryable) {
  pawl_buf b = {0};
  pawl_lit(&b, "{\"message\":");
  pawl_quote(&b, message);
  if (code.n) {
    pawl_lit(&b, ",\"code\":");
    pawl_quote(&b, code);
  }
  pawl_lit(&b, retryable ? ",\"retryable\":true}" : "}");
  pawl_do("fail", pawl_text(&b));
  return 1;
}

PAWL_FN void pawl_log(const char *level, pawl_str message) {
  pawl_buf b = {0};
  pawl_lit(&b, "{\"level\":");
  pawl_quote(&b, pawl_cstr(level));
  pawl_lit(&b, ",\"message\":");
  pawl_quote(&b, message);
  pawl_lit(&b, "}");
  pawl_do("log", pawl_text(&b));
}

/* Stop and ask a person; payload is a JSON object. Returns only if the host
 * refuses; then the answer says why. Ask context.approvals first (ABI.md, pause). */
PAWL_FN pawl_answer pawl_pause(const char *reason, pawl_str payload) {
  pawl_buf b = {0};
  pawl_lit(&b, "{\"reason\":");
  pawl_quote(&b, pawl_cstr(reason));
  pawl_lit(&b, ",\"payload\":");
  pawl_raw(&b, payload);
  pawl_lit(&b, "}");
  return pawl_do("pause", pawl_text(&b));
}

#endif
