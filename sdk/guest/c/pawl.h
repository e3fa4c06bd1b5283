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

/* A literal's; anything else does not compile. */
#define PAWL_STR(literal) ((pawl_str){"" literal, sizeof("" literal) - 1})

PAWL_FN pawl_str pawl_cstr(const char *s) {
  size_t n = 0;
  while (s[n]) n++;
  return (pawl_str){s, n};
}

/* A host that can stop a guest at any time looks in once per turn of a loop, and
 * that costs ten times what the turn does. So the loops over bytes here take
 * eight at a time, or thirty-two. */
PAWL_FN uint64_t pawl_word(const char *p) {
  uint64_t w;
  __builtin_memcpy(&w, p, sizeof w);
  return w;
}

PAWL_FN bool pawl_eq(pawl_str a, pawl_str b) {
  if (a.n != b.n) return false;
  size_t i = 0;
  for (; i + 8 <= a.n; i += 8)
    if (pawl_word(a.p + i) != pawl_word(b.p + i)) return false;
  for (; i < a.n; i++)
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

#define pawl_lit(buf, literal) pawl_raw(buf, PAWL_STR(literal))

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

/* One bit in each byte of w that is a quote, a backslash or a control character;
 * above the lowest of them there may be false ones. */
PAWL_FN uint64_t pawl_marks(uint64_t w) {
  const uint64_t ones = 0x0101010101010101, tops = ones << 7;
  uint64_t quote = w ^ ones * '"', slash = w ^ ones * '\\';
  return (((quote - ones) & ~quote) | ((slash - ones) & ~slash) | ((w - ones * 0x20) & ~w)) & tops;
}

/* The first offset from i on of a quote, a backslash or a control character. */
PAWL_FN size_t pawl_plain(pawl_str s, size_t i) {
  for (; i + 32 <= s.n; i += 32) {
    uint64_t a = pawl_marks(pawl_word(s.p + i)), b = pawl_marks(pawl_word(s.p + i + 8));
    uint64_t c = pawl_marks(pawl_word(s.p + i + 16)), d = pawl_marks(pawl_word(s.p + i + 24));
    if (!(a | b | c | d)) continue;
    if (a) return i + ((size_t)__builtin_ctzll(a) >> 3);
    if (b) return i + 8 + ((size_t)__builtin_ctzll(b) >> 3);
    if (c) return i + 16 + ((size_t)__builtin_ctzll(c) >> 3);
    return i + 24 + ((size_t)__builtin_ctzll(d) >> 3);
  }
  for (; i + 8 <= s.n; i += 8) {
    uint64_t a = pawl_marks(pawl_word(s.p + i));
    if (a) return i + ((size_t)__builtin_ctzll(a) >> 3);
  }
  while (i < s.n && !pawl_escape((unsigned char)s.p[i])) i++;
  return i;
}

/* How many bytes s takes as a JSON string, quotes included. */
PAWL_FN size_t pawl_quoted(pawl_str s) {
  size_t n = s.n + 2;
  for (size_t i = pawl_plain(s, 0); i < s.n; i = pawl_plain(s, i + 1)) n += pawl_escape((unsigned char)s.p[i]) == 'u' ? 5 : 1;
  return n;
}

/* s, which must be UTF-8, as a JSON string. */
PAWL_FN void pawl_quote(pawl_buf *b, pawl_str s) {
  pawl_room(b, s.n + 2);
  pawl_lit(b, "\"");
  for (size_t i = 0;;) {
    size_t end = pawl_plain(s, i);
    pawl_raw(b, (pawl_str){s.p + i, end - i});
    if (end == s.n) break;
    unsigned char c = (unsigned char)s.p[end];
    char escape[6] = {'\\', pawl_escape(c), '0', '0', (char)('0' + (c >> 4)), "0123456789abcdef"[c & 15]};
    pawl_raw(b, (pawl_str){escape, escape[1] == 'u' ? 6 : 2});
    i = end + 1;
  }
  pawl_lit(b, "\"");
}

PAWL_FN pawl_str pawl_text(const pawl_buf *b) { return (pawl_str){b->p, b->n}; }

/* ---- reading JSON ------------------------------------------------------ */
/* A pawl_str of JSON begins where its value does and may go on behind it: the
 * functions stop by themselves, so nothing large is read only to find its end.
 * pawl_value cuts it there. The host sends well-formed JSON; whatever else
 * arrives is never read past its end, and yields "none" or some other value. */

PAWL_FN size_t pawl_space(pawl_str s, size_t i) {
  while (i < s.n && (s.p[i] == ' ' || s.p[i] == '\n' || s.p[i] == '\t' || s.p[i] == '\r')) i++;
  return i;
}

/* The offset after the string that begins at i. */
PAWL_FN size_t pawl_skip_string(pawl_str s, size_t i) {
  for (i = pawl_plain(s, i + 1); i < s.n && s.p[i] != '"';) i = pawl_plain(s, i + (s.p[i] == '\\' ? 2 : 1));
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

/* Exactly the value that json begins with. */
PAWL_FN pawl_str pawl_value(pawl_str json) { return (pawl_str){json.p, pawl_skip(json, 0)}; }

/* The next element of an array, or with name the next member of an object (its
 * name as JSON). *at is 0 at first. False at the end. */
PAWL_FN bool pawl_next(pawl_str s, size_t *at, pawl_str *name, pawl_str *value) {
  size_t i = pawl_space(s, *at);
  if (*at == 0) {
    if (i >= s.n || (s.p[i] != '[' && s.p[i] != '{')) return false;
    i = pawl_space(s, i + 1);
  } else {
    i = pawl_space(s, pawl_skip(s, i));
    if (i >= s.n || s.p[i] != ',') return false;
    i = pawl_space(s, i + 1);
  }
  if (i >= s.n || s.p[i] == ']' || s.p[i] == '}') return false;
  if (name) {
    *name = pawl_from(s, i);
    i = pawl_space(s, pawl_skip(s, i));
    if (i >= s.n || s.p[i] != ':') return false;
    i = pawl_space(s, i + 1);
    if (i >= s.n) return false;
  }
  *value = pawl_from(s, i);
  *at = i;
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

PAWL_FN void pawl_utf8(pawl_buf *b, int32_t u) {
  char c[4] = {(char)u};
  size_t n = 1;
  if (u >= 0x80) {
    n = u < 0x800 ? 2 : u < 0x10000 ? 3 : 4;
    c[3] = (char)(0x80 | (u & 63));
    c[2] = (char)(0x80 | (u >> 6 & 63));
    c[1] = (char)(0x80 | (u >> 12 & 63));
    c[0] = (char)(0xF0 | u >> 18);
    if (n == 3) c[1] = (char)(0xE0 | u >> 12);
    if (n == 2) c[2] = (char)(0xC0 | u >> 6);
    pawl_raw(b, (pawl_str){c + 4 - n, n});
    return;
  }
  pawl_raw(b, (pawl_str){c, n});
}

/* The text of a JSON string; false if json does not begin with one. A lone
 * surrogate, which no host sends, becomes U+FFFD. Without an escape nothing is
 * copied. */
PAWL_FN bool pawl_string(pawl_str json, pawl_str *out) {
  if (json.n < 2 || json.p[0] != '"') return false;
  pawl_buf text = {0};
  for (size_t i = 1, end;;) {
    end = pawl_plain(json, i);
    if (end == json.n) return false;
    pawl_str run = {json.p + i, end - i};
    char c = json.p[end];
    if (c == '"' && !text.p) {
      *out = run;
      return true;
    }
    pawl_raw(&text, run);
    if (c == '"') break;
    i = end + 2;
    if (c != '\\' || i > json.n) return false;
    switch (c = json.p[end + 1]) {
      case '"': case '\\': case '/': break;
      case 'b': c = '\b'; break;
      case 'f': c = '\f'; break;
      case 'n': c = '\n'; break;
      case 'r': c = '\r'; break;
      case 't': c = '\t'; break;
      case 'u': {
        int32_t u = json.n - i >= 4 ? pawl_hex4(json.p + i) : -1, low = -1;
        if (u < 0) return false;
        i += 4;
        if (u >= 0xD800 && u < 0xDC00 && json.n - i >= 6 && json.p[i] == '\\' && json.p[i + 1] == 'u') low = pawl_hex4(json.p + i + 2);
        if (low >= 0xDC00 && low < 0xE000) {
          i += 6;
          u = 0x10000 + ((u - 0xD800) << 10) + (low - 0xDC00);
        } else if (u >= 0xD800 && u < 0xE000) {
          u = 0xFFFD;
        }
        pawl_utf8(&text, u);
        continue;
      }
      default: return false;
    }
    *pawl_room(&text, 1) = c;
    text.n++;
  }
  *out = pawl_text(&text);
  return true;
}

PAWL_FN pawl_str pawl_member(pawl_str object, pawl_str name) {
  pawl_str key, value, text;
  for (size_t at = 0; pawl_next(object, &at, &key, &value);)
    if (pawl_string(key, &text) && pawl_eq(text, name)) return value;
  return (pawl_str){NULL, 0};
}

/* A member of an object, none if it is not there; its name is a literal. */
#define pawl_get(object, name) pawl_member(object, PAWL_STR(name))

/* The text of a member that is a string; false if it is not there or is none. */
#define pawl_get_string(object, name, out) pawl_string(pawl_get(object, name), out)

#define pawl_get_true(object, name) pawl_eq(pawl_value(pawl_get(object, name)), PAWL_STR("true"))

/* ---- calls ------------------------------------------------------------- */

/* An answer: ok begins with the JSON of its value; or, when ok.n is 0, why not. */
typedef struct {
  pawl_str ok, code, message;
  bool retryable;
} pawl_answer;

PAWL_FN pawl_answer pawl_operation(pawl_str op, pawl_str req) {
  pawl_answer a = {{0}, {0}, {0}, false};
  int32_t n = pawl_import_call(op.p, op.n, req.p, req.n);
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

/* Do an operation, a literal like "kv.get"; req is its request as JSON. */
#define pawl_do(op, req) pawl_operation(PAWL_STR(op), req)

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
  if (retryable) pawl_lit(&b, ",\"retryable\":true");
  pawl_lit(&b, "}");
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

/* Stop and ask a person; payload is a JSON object. With a schema, a JSON Schema
 * object, only an answer that matches it is taken. Returns only if the host
 * refuses; then the answer says why. Ask context.approvals first (ABI.md, pause). */
PAWL_FN pawl_answer pawl_pause_for(const char *reason, pawl_str payload, pawl_str schema) {
  pawl_buf b = {0};
  pawl_lit(&b, "{\"reason\":");
  pawl_quote(&b, pawl_cstr(reason));
  pawl_lit(&b, ",\"payload\":");
  pawl_raw(&b, payload);
  if (schema.n) {
    pawl_lit(&b, ",\"schema\":");
    pawl_raw(&b, schema);
  }
  pawl_lit(&b, "}");
  return pawl_do("pause", pawl_text(&b));
}

PAWL_FN pawl_answer pawl_pause(const char *reason, pawl_str payload) {
  return pawl_pause_for(reason, payload, (pawl_str){NULL, 0});
}

#endif
