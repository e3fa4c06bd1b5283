// What a terminal shows of a tool call was written by a model. Text that cannot be seen, or that moves other text, is shown
// as an escape, so that what is approved is what is on the screen.

const hidden = /[^\P{C}]|[\p{Zl}\p{Zp}\p{Me}\p{Variation_Selector}\p{Default_Ignorable_Code_Point}\u2800\ufffc]|(?! )\p{Zs}/gu;

const escape = (c) => [...Array(c.length).keys()].map((i) => "\\u" + c.charCodeAt(i).toString(16).padStart(4, "0")).join("");

/** One line of text with controls, bidi, zero-width and format characters as \uXXXX, and backslashes doubled. */
export const visible = (s) => String(s).replaceAll("\\", "\\\\").replace(hidden, escape);

/** The same for JSON text, which stays JSON of the same value. */
export const visibleJSON = (json) => json.replace(hidden, escape);
