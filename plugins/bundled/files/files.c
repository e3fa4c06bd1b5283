/* files: a virtual file system in the plugin's KV. Level 2, no libc.
 *
 * The content of /a/b is at key "file/a/b", up to 64 KiB of it; the rest of a
 * longer one is at "more/a/b//0001", "more/a/b//0002" and so on (no path has an
 * empty segment, so these are nobody's files). A part is cut between characters
 * and only the last part is shorter than 64 KiB - 3: so a shorter one is the end,
 * and a small file costs one get and one put. Directories exist by their files. */
#include "pawl.h"

enum {
  PART = 65536,      /* bytes of a KV value */
  FULL = PART - 3,   /* from here on a part may have a successor */
  MAX_PATH = 1000,   /* bytes; leaves room in a key for "more" and "//0001" */
  MAX_FILE = 1000000, /* bytes of the content as a JSON string, so that read_file's result fits */
  MAX_ENTRIES = 1000,
  PAGE = 200,
};

enum outcome { FOUND, ABSENT, FAILED }; /* FAILED: the call's error is set */

static pawl_str join(pawl_str a, pawl_str b, pawl_str c) {
  pawl_buf all = {0};
  pawl_room(&all, a.n + b.n + c.n);
  pawl_raw(&all, a);
  pawl_raw(&all, b);
  pawl_raw(&all, c);
  return pawl_text(&all);
}

#define say(before, what, after) join(PAWL_STR(before), what, PAWL_STR(after))

static enum outcome fail(const char *code, pawl_str message) {
  pawl_fail(pawl_cstr(code), message, false);
  return FAILED;
}

static enum outcome refused(pawl_answer a) {
  pawl_fail(a.code, a.message, a.retryable);
  return FAILED;
}

static pawl_str file_key(pawl_str path) { return say("file", path, ""); }

static pawl_str part_key(pawl_str path, size_t part) {
  char digits[6] = "//0000";
  for (int i = 5; i > 1; i--, part /= 10) digits[i] = (char)('0' + part % 10);
  return join(PAWL_STR("more"), path, (pawl_str){digits, sizeof digits});
}

static enum outcome get(pawl_str key, pawl_str *value) {
  pawl_buf req = {0};
  pawl_lit(&req, "{\"key\":");
  pawl_quote(&req, key);
  pawl_lit(&req, "}");
  pawl_answer a = pawl_do("kv.get", pawl_text(&req));
  if (!a.ok.n) return refused(a);
  if (pawl_get_string(a.ok, "value", value)) return FOUND;
  if (pawl_get(a.ok, "value_b64").n) return fail("not_text", say("", pawl_from(key, 4), " is not UTF-8 text"));
  return ABSENT;
}

static enum outcome put(pawl_str key, pawl_str value) {
  pawl_buf req = {0};
  pawl_room(&req, key.n + value.n + 64);
  pawl_lit(&req, "{\"key\":");
  pawl_quote(&req, key);
  pawl_lit(&req, ",\"value\":");
  pawl_quote(&req, value);
  pawl_lit(&req, "}");
  pawl_answer a = pawl_do("kv.put", pawl_text(&req));
  return a.ok.n ? FOUND : refused(a);
}

/* One page of keys below prefix; *keys is a JSON array. */
static enum outcome list(pawl_str prefix, pawl_str after, int limit, pawl_str *keys, pawl_str *next) {
  pawl_buf req = {0};
  pawl_lit(&req, "{\"prefix\":");
  pawl_quote(&req, prefix);
  if (after.n) {
    pawl_lit(&req, ",\"after\":");
    pawl_quote(&req, after);
  }
  pawl_lit(&req, ",\"limit\":");
  pawl_int(&req, limit);
  pawl_lit(&req, "}");
  pawl_answer a = pawl_do("kv.list", pawl_text(&req));
  if (!a.ok.n) return refused(a);
  *keys = pawl_get(a.ok, "keys");
  *next = (pawl_str){NULL, 0};
  pawl_get_string(a.ok, "next", next);
  return FOUND;
}

/* The host refuses other forms by the schema ("format": "path"); this guard is
 * for the keys' sake, whoever calls. */
static bool canonical(pawl_str p) {
  if (p.n == 0 || p.n > MAX_PATH || p.p[0] != '/') return false;
  if (p.n == 1) return true;
  for (size_t i = 0, start = 1; i <= p.n; i++) {
    unsigned char c = i < p.n ? (unsigned char)p.p[i] : '/';
    if (c < 0x20 || c == 0x7f || c == '\\') return false;
    if (c != '/' || i == 0) continue;
    size_t n = i - start;
    if (n == 0 || (n == 1 && p.p[start] == '.') || (n == 2 && p.p[start] == '.' && p.p[start + 1] == '.')) return false;
    start = i + 1;
  }
  return true;
}

static bool less(pawl_str a, pawl_str b) {
  size_t i = 0;
  while (i < a.n && i < b.n && a.p[i] == b.p[i]) i++;
  return i < b.n && (i == a.n || (unsigned char)a.p[i] < (unsigned char)b.p[i]);
}

static bool is_root(pawl_str p) { return p.n == 1; }

/* Whether a directory is at path, that is, whether any file is below it. */
static enum outcome directory(pawl_str path) {
  pawl_str keys, next, key;
  size_t at = 0;
  if (is_root(path)) return FOUND;
  if (list(say("file", path, "/"), (pawl_str){NULL, 0}, 1, &keys, &next) == FAILED) return FAILED;
  return pawl_next(keys, &at, NULL, &key) ? FOUND : ABSENT;
}

static enum outcome not_found(pawl_str path) { return fail("not_found", say("", path, " does not exist; use ls to see what does")); }

static enum outcome is_directory(pawl_str path) {
  return fail("is_directory", say("", path, " is a directory; give the path of a file"));
}

static enum outcome read_whole(pawl_str path, pawl_str *content) {
  pawl_str part;
  enum outcome o = get(file_key(path), &part);
  *content = part;
  if (o != FOUND || part.n < FULL) return o;
  pawl_buf whole = {0};
  pawl_raw(&whole, part);
  for (size_t i = 1; part.n >= FULL && (o = get(part_key(path, i), &part)) == FOUND; i++) pawl_raw(&whole, part);
  *content = pawl_text(&whole);
  return o == FAILED ? FAILED : FOUND;
}

/* old is the length of what was there, 0 for nothing. */
static enum outcome write_whole(pawl_str path, pawl_str content, size_t old) {
  if (pawl_quoted(content) > MAX_FILE)
    return fail("too_large", say("", path, " would be longer than 1,000,000 bytes of JSON text; split it into several files"));
  size_t parts = 0;
  do {
    size_t n = content.n < PART ? content.n : PART;
    while (n < content.n && (content.p[n] & 0xC0) == 0x80) n--;
    if (put(parts ? part_key(path, parts) : file_key(path), (pawl_str){content.p, n}) == FAILED) return FAILED;
    content = pawl_from(content, n);
    parts++;
  } while (content.n);
  if (old < FULL) return FOUND;
  /* A part left over behind a full last one would be read as its successor. */
  pawl_str keys, next = {NULL, 0}, json, key, first = part_key(path, parts);
  do {
    if (list(say("more", path, "//"), next, PAGE, &keys, &next) == FAILED) return FAILED;
    for (size_t at = 0; pawl_next(keys, &at, NULL, &json);) {
      if (!pawl_string(json, &key) || less(key, first)) continue; /* all of one length */
      pawl_buf req = {0};
      pawl_lit(&req, "{\"key\":");
      pawl_quote(&req, key);
      pawl_lit(&req, "}");
      pawl_answer a = pawl_do("kv.delete", pawl_text(&req));
      if (!a.ok.n) return refused(a);
    }
  } while (next.n);
  return FOUND;
}

static int ls(pawl_str path) {
  pawl_str prefix = is_root(path) ? PAWL_STR("file/") : say("file", path, "/");
  pawl_str keys, json, key, after = {NULL, 0}, dir = {NULL, 0};
  pawl_buf out = {0};
  int entries = 0;
  bool truncated = false;
  pawl_lit(&out, "{\"path\":");
  pawl_quote(&out, path);
  pawl_lit(&out, ",\"entries\":[");
  do {
    bool below = false; /* the page's last key is in directory dir */
    if (list(prefix, after, PAGE, &keys, &after) == FAILED) return 1;
    for (size_t at = 0; pawl_next(keys, &at, NULL, &json);) {
      if (!pawl_string(json, &key) || key.n <= prefix.n) continue;
      pawl_str name = pawl_from(key, prefix.n);
      size_t slash = 0;
      while (slash < name.n && name.p[slash] != '/') slash++;
      below = slash < name.n;
      name.n = slash;
      if (below && pawl_eq(name, dir)) continue;
      if (entries == MAX_ENTRIES) {
        truncated = true;
        break;
      }
      if (below) dir = name;
      if (entries++) pawl_lit(&out, ",");
      pawl_lit(&out, "{\"name\":");
      pawl_quote(&out, name);
      pawl_raw(&out, below ? PAWL_STR(",\"type\":\"directory\"}") : PAWL_STR(",\"type\":\"file\"}"));
    }
    /* The largest character ends a directory: step over it, however full it is. */
    if (after.n && below) {
      pawl_buf b = {0};
      pawl_raw(&b, prefix);
      pawl_raw(&b, dir);
      pawl_lit(&b, "/\xF4\x8F\xBF\xBF");
      after = pawl_text(&b);
    }
  } while (after.n && !truncated);
  if (!entries && !is_root(path)) {
    pawl_str content;
    enum outcome o = get(file_key(path), &content);
    if (o == FOUND) fail("not_a_directory", say("", path, " is a file; use read_file"));
    if (o == ABSENT) not_found(path);
    return 1;
  }
  pawl_raw(&out, truncated ? PAWL_STR("],\"truncated\":true}") : PAWL_STR("]}"));
  return pawl_output(pawl_text(&out));
}

/* The content of a file that must be there. */
static enum outcome existing(pawl_str path, pawl_str *content) {
  if (is_root(path)) return is_directory(path);
  enum outcome o = read_whole(path, content);
  if (o != ABSENT) return o;
  o = directory(path);
  return o == FOUND ? is_directory(path) : o == ABSENT ? not_found(path) : FAILED;
}

static int read_file(pawl_str path) {
  pawl_str content;
  if (existing(path, &content) != FOUND) return 1;
  pawl_buf out = {0};
  pawl_lit(&out, "{\"content\":");
  pawl_quote(&out, content);
  pawl_lit(&out, "}");
  return pawl_output(pawl_text(&out));
}

static int write_file(pawl_str path, pawl_str content) {
  pawl_str old = {NULL, 0}, unused;
  if (is_root(path)) return is_directory(path), 1;
  enum outcome o = get(file_key(path), &old);
  if (o == FAILED) return 1;
  if (o == ABSENT) { /* a new name must not be a directory, nor lie below a file */
    old.n = 0;
    enum outcome d = directory(path);
    if (d == FOUND) is_directory(path);
    if (d != ABSENT) return 1;
    for (size_t i = 1; i < path.n; i++) {
      if (path.p[i] != '/') continue;
      pawl_str parent = {path.p, i};
      d = get(file_key(parent), &unused);
      if (d == FOUND) fail("not_a_directory", say("", parent, " is a file; nothing can be written below it"));
      if (d != ABSENT) return 1;
    }
  }
  if (write_whole(path, content, old.n) == FAILED) return 1;
  pawl_buf out = {0};
  pawl_lit(&out, "{\"path\":");
  pawl_quote(&out, path);
  pawl_lit(&out, ",\"bytes\":");
  pawl_int(&out, (int64_t)content.n);
  pawl_raw(&out, o == ABSENT ? PAWL_STR(",\"created\":true}") : PAWL_STR(",\"created\":false}"));
  return pawl_output(pawl_text(&out));
}

/* How often needle occurs in hay, overlaps counted; *at is the first place.
 * Knuth, Morris and Pratt: linear, whatever the arguments are made of. */
static size_t occurrences(pawl_str hay, pawl_str needle, size_t *at) {
  uint32_t *fall = (uint32_t *)pawl_alloc(needle.n * sizeof(uint32_t));
  size_t count = 0, k = 0;
  fall[0] = 0;
  for (size_t i = 1; i < needle.n; i++) {
    while (k && needle.p[i] != needle.p[k]) k = fall[k - 1];
    if (needle.p[i] == needle.p[k]) k++;
    fall[i] = (uint32_t)k;
  }
  k = 0;
  for (size_t i = 0; i < hay.n; i++) {
    while (k && hay.p[i] != needle.p[k]) k = fall[k - 1];
    if (hay.p[i] == needle.p[k]) k++;
    if (k < needle.n) continue;
    if (!count++) *at = i + 1 - needle.n;
    k = fall[k - 1];
  }
  return count;
}

static int edit_file(pawl_str path, pawl_str old, pawl_str new) {
  pawl_str content;
  size_t at = 0;
  if (!old.n) return fail("invalid", PAWL_STR("old is empty; give the text to replace, or use write_file")), 1;
  if (existing(path, &content) != FOUND) return 1;
  size_t times = occurrences(content, old, &at);
  if (times == 0) return fail("no_match", say("old does not occur in ", path, "; read the file and copy the text exactly")), 1;
  if (times > 1) {
    pawl_buf m = {0};
    pawl_lit(&m, "old occurs ");
    pawl_int(&m, (int64_t)times);
    pawl_lit(&m, " times in ");
    pawl_raw(&m, path);
    pawl_lit(&m, " and must occur exactly once; give more of the text around it");
    return fail("not_unique", pawl_text(&m)), 1;
  }
  pawl_buf b = {0};
  pawl_room(&b, content.n - old.n + new.n);
  pawl_raw(&b, (pawl_str){content.p, at});
  pawl_raw(&b, new);
  pawl_raw(&b, pawl_from(content, at + old.n));
  if (write_whole(path, pawl_text(&b), content.n) == FAILED) return 1;
  pawl_buf out = {0};
  pawl_lit(&out, "{\"path\":");
  pawl_quote(&out, path);
  pawl_lit(&out, ",\"replacements\":1}");
  return pawl_output(pawl_text(&out));
}

PAWL_TOOL int files(void) {
  pawl_str request = pawl_input(), args = pawl_get(request, "arguments");
  pawl_str tool, path, a, b;
  if (!pawl_get_string(request, "tool", &tool)) return 1;
  if (!pawl_get_string(args, "path", &path)) path = pawl_eq(tool, PAWL_STR("ls")) ? PAWL_STR("/") : PAWL_STR("");
  if (!canonical(path))
    return fail("invalid", PAWL_STR("path must be absolute and canonical, like /notes/today.md, and at most 1,000 bytes")), 1;
  if (pawl_eq(tool, PAWL_STR("ls"))) return ls(path);
  if (pawl_eq(tool, PAWL_STR("read_file"))) return read_file(path);
  if (pawl_eq(tool, PAWL_STR("write_file")) && pawl_get_string(args, "content", &a)) return write_file(path, a);
  if (pawl_eq(tool, PAWL_STR("edit_file")) && pawl_get_string(args, "old", &a) && pawl_get_string(args, "new", &b))
    return edit_file(path, a, b);
  return fail("invalid", say("an argument of ", tool, " is missing, or there is no such tool")), 1;
}
