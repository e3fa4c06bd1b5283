/* slugify: a pawl tool in C, level 2, with sdk/guest/c/pawl.h. */
#include "pawl.h"

/* U+00C0 to U+00FF without their marks; - separates words. */
static const char latin1[] = "aaaaaaaceeeeiiiidnooooo-ouuuuyts"
                             "aaaaaaaceeeeiiiidnooooo-ouuuuyty";

static int max_length(pawl_str args) {
  pawl_str json = pawl_value(pawl_get(args, "max_length"));
  int n = 0;
  for (size_t i = 0; i < json.n && i < 4; i++) n = n * 10 + (json.p[i] - '0');
  return json.n ? n : 80;
}

PAWL_TOOL int slugify(void) {
  pawl_str args = pawl_get(pawl_input(), "arguments"), text;
  if (!pawl_get_string(args, "text", &text)) return pawl_fail(PAWL_STR("invalid"), PAWL_STR("text is missing"), false);
  int max = max_length(args), n = 0, whole = 0; /* whole: behind the last whole word */
  char *slug = pawl_alloc(text.n);
  bool gap = false, full = false;
  for (size_t i = 0; i < text.n && !full; i++) {
    unsigned char c = (unsigned char)text.p[i];
    if (c == 0xC3 && i + 1 < text.n) c = (unsigned char)latin1[(unsigned char)text.p[++i] & 63]; /* U+00C0 to U+00FF */
    if (c >= 'A' && c <= 'Z') c |= 32;
    if (c == '\'') continue; /* don't becomes dont */
    if (!(c >= 'a' && c <= 'z') && !(c >= '0' && c <= '9')) {
      gap = true;
      whole = n;
      continue;
    }
    gap = gap && n;
    full = n + gap >= max;
    if (full) break;
    if (gap) slug[n++] = '-';
    gap = false;
    slug[n++] = (char)c;
  }
  if (!full || !whole) whole = n; /* all of it; or one word that is too long, cut */
  if (!whole) return pawl_fail(PAWL_STR("empty"), PAWL_STR("the text has no letter or digit that a slug can have"), false);
  pawl_buf out = {0};
  pawl_lit(&out, "{\"slug\":");
  pawl_quote(&out, (pawl_str){slug, (size_t)whole});
  pawl_lit(&out, "}");
  return pawl_output(pawl_text(&out));
}
