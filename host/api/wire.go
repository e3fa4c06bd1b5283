package api

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	jsonv2 "github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/pawlhost/pawl/host"
	"github.com/pawlhost/pawl/host/ijson"
)

const (
	maxBody  = 1 << 20
	maxLimit = 200
	maxWait  = 60 * time.Second
	maxKey   = 255
)

// encode writes v as the wire has it. encoding/json and not its successor: there, omitempty would drop a result that is
// null or "", which is a result.
func encode(v any) ([]byte, error) {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	err := e.Encode(v)
	return b.Bytes(), err
}

func reply(w http.ResponseWriter, status int, v any) error {
	b, err := encode(v)
	if err != nil {
		return err
	}
	send(w, status, "application/json", b)
	return nil
}

// answerTimeout is how long a client may take nothing of an answer before it is cut off: an answer that nobody reads may not be
// held for ever.
const answerTimeout = 15 * time.Second

// send writes an answer in pieces, each under a deadline of its own: a slow line gets its time, a stuck client does not. A
// client that left reads nothing, which is no error here.
func send(w http.ResponseWriter, status int, contentType string, b []byte) {
	h := w.Header()
	h.Set("Content-Type", contentType)
	h.Set("Content-Length", strconv.Itoa(len(b)))
	rc := http.NewResponseController(w)
	_ = rc.SetWriteDeadline(time.Now().Add(answerTimeout)) // a recorder in a test has none
	w.WriteHeader(status)
	for len(b) > 0 {
		_ = rc.SetWriteDeadline(time.Now().Add(answerTimeout))
		n, err := w.Write(b[:min(len(b), 64<<10)])
		if err != nil {
			return
		}
		b = b[n:]
	}
}

// object checks that b is one I-JSON object.
func object(b []byte) error {
	if err := ijson.Check(b); err != nil {
		return err
	}
	if k := jsontext.Value(b).Kind(); k != '{' {
		return invalid("", "the body must be a JSON object")
	}
	return nil
}

// decode reads an I-JSON object into T. Names are matched as they are spelled; a member that T does not have, a member of
// another type, and a member that T's `required` tag asks for and that is missing or null are errors with a pointer.
func decode[T any](b []byte) (T, error) {
	var v T
	if err := object(b); err != nil {
		return v, err
	}
	return v, unmarshal(b, &v)
}

func unmarshal(b []byte, v any) error {
	options := jsonv2.RejectUnknownMembers(true)
	if bytes.Contains(b, []byte(`""`)) {
		options = jsonv2.JoinOptions(options, jsonv2.WithUnmarshalers(jsonv2.UnmarshalFromFunc(readName)))
	}
	err := jsonv2.Unmarshal(b, v, options)
	if err == nil {
		return nil
	}
	if e, ok := errors.AsType[*host.Error](err); ok {
		return e
	}
	s, ok := errors.AsType[*jsonv2.SemanticError](err)
	if !ok {
		return fmt.Errorf("decode a checked body: %w", err)
	}
	p := string(s.JSONPointer)
	if errors.Is(s.Err, jsonv2.ErrUnknownName) {
		return invalid(p, "unknown member: remove it or look at /openapi.json for its name")
	}
	return invalid(p, "wrong type: "+kindName(s.GoType)+" is needed here")
}

// names are the members that are left out to ask for a default. An empty one is a variable of the client that nobody has set, and what it
// would get is a run of its own instead of the user's, another agent's rules, or no check at all.
var names = []string{"user", "agent", "subagent", "args_digest", "kind", "principal"}

// readName reads a text of the wire's own, which raw JSON of a caller never is, and refuses an empty name.
func readName(d *jsontext.Decoder, s *string) error {
	at := d.StackPointer()
	if d.PeekKind() != '"' || !slices.Contains(names, at.LastToken()) {
		return errors.ErrUnsupported // read as any other
	}
	v, err := d.ReadValue()
	if err != nil {
		return err
	}
	text, err := jsontext.AppendUnquote(nil, v)
	if *s = string(text); err == nil && *s == "" {
		return invalid(string(at), "empty: give a name, or leave the member out")
	}
	return err
}

func kindName(t reflect.Type) string {
	for t != nil && t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	if t == nil {
		return "another value"
	}
	switch t.Kind() {
	case reflect.String:
		return "a string"
	case reflect.Bool:
		return "true or false"
	case reflect.Slice, reflect.Array:
		return "an array"
	case reflect.Struct, reflect.Map:
		return "an object"
	case reflect.Int, reflect.Int64, reflect.Uint64, reflect.Uint32:
		return "an integer"
	}
	return "another value"
}

// missing refuses a request without a member that it needs.
func missing(pointer string) *host.Error { return invalid(pointer, "missing: this member is required") }

// contextObject checks a caller's tool_context: an object, or absent (null says the same).
func contextObject(v *json.RawMessage) error {
	switch k := jsontext.Value(*v).Kind(); {
	case len(*v) == 0 || k == 'n':
		*v = nil
	case k != '{':
		return invalid("/tool_context", "wrong type: an object is needed here")
	}
	return nil
}

func checkCalls(calls []host.ProposedCall) error {
	for i, c := range calls {
		if err := checkCall(c, "/calls/"+strconv.Itoa(i)); err != nil {
			return err
		}
	}
	return nil
}

func checkCall(c host.ProposedCall, at string) error {
	if c.Tool == "" {
		return missing(at + "/tool")
	}
	if c.Arguments == nil {
		return missing(at + "/arguments")
	}
	return nil
}

func checkDecisions(ds []host.Decision) error {
	for i, d := range ds {
		at := "/decisions/" + strconv.Itoa(i)
		if d.ApprovalID == "" {
			return missing(at + "/approval_id")
		}
		if d.Kind == "" {
			return missing(at + "/kind")
		}
	}
	return nil
}

// decisionsBody is the body of a decision by run. It has no user_input, which only a token's holder may send.
type decisionsBody struct {
	Decisions   []host.Decision `json:"decisions"`
	ToolContext json.RawMessage `json:"tool_context"`
}

func (d decisionsBody) answer() (host.Answer, error) {
	if d.Decisions == nil {
		return host.Answer{}, missing("/decisions")
	}
	if err := contextObject(&d.ToolContext); err != nil {
		return host.Answer{}, err
	}
	return host.Answer{Decisions: d.Decisions, ToolContext: d.ToolContext}, checkDecisions(d.Decisions)
}

// resumeBody is the body of an answer by token.
type resumeBody struct {
	ResumeToken string          `json:"resume_token"`
	UserInput   json.RawMessage `json:"user_input"`
	Decisions   []host.Decision `json:"decisions"`
	ToolContext json.RawMessage `json:"tool_context"`
}

func (b resumeBody) answer() (host.Answer, error) {
	switch {
	case b.UserInput != nil && b.Decisions != nil:
		return host.Answer{}, invalid("/user_input", "send user_input or decisions, not both")
	case b.UserInput == nil && b.Decisions == nil:
		return host.Answer{}, invalid("/decisions", "missing: send decisions, or user_input to answer a tool's single question")
	}
	if err := contextObject(&b.ToolContext); err != nil {
		return host.Answer{}, err
	}
	return host.Answer{Decisions: b.Decisions, UserInput: b.UserInput, ToolContext: b.ToolContext}, checkDecisions(b.Decisions)
}

// resumeToken reads the token alone: a used or foreign one is answered before the rest of the body is looked at.
func resumeToken(b []byte) (string, error) {
	if err := object(b); err != nil {
		return "", err
	}
	var v struct {
		ResumeToken *string `json:"resume_token"`
	}
	if err := jsonv2.Unmarshal(b, &v); err != nil {
		return "", invalid("/resume_token", "wrong type: a string is needed here")
	}
	if v.ResumeToken == nil {
		return "", missing("/resume_token")
	}
	return *v.ResumeToken, nil
}

// page reads limit and cursor of a list. It refuses a parameter that the list does not have: a misspelt filter would be answered with
// everything, which is a wrong answer.
func (r *request) page() (host.Page, error) {
	if err := r.known(); err != nil {
		return host.Page{}, err
	}
	q := r.query()
	p := host.Page{Cursor: q.Get("cursor")}
	if v, ok := q["limit"]; ok {
		n, err := strconv.Atoi(v[0])
		if err != nil || n < 1 || n > maxLimit {
			return host.Page{}, invalid("/limit", "limit must be a number from 1 to "+strconv.Itoa(maxLimit))
		}
		p.Limit = n
	}
	return p, nil
}

// known refuses a query parameter that the route does not have. Every list has limit and cursor.
func (r *request) known() error {
	for _, name := range slices.Sorted(maps.Keys(r.query())) {
		if !slices.Contains(r.route.query, name) && !slices.Contains(pageQuery, name) {
			return invalid("/"+strings.NewReplacer("~", "~0", "/", "~1").Replace(name), "unknown parameter: there are "+strings.Join(slices.Compact(slices.Sorted(slices.Values(slices.Concat(r.route.query, pageQuery)))), ", "))
		}
	}
	return nil
}

// preferWait reads RFC 7240's wait preference, in seconds; a preference that is not understood is ignored, as it says.
func preferWait(h http.Header) time.Duration {
	for _, line := range h.Values("Prefer") {
		for pref := range strings.SplitSeq(line, ",") {
			name, value, _ := strings.Cut(strings.TrimSpace(pref), "=")
			if !strings.EqualFold(strings.TrimSpace(name), "wait") {
				continue
			}
			value, _, _ = strings.Cut(value, ";")
			n, err := strconv.Atoi(strings.Trim(strings.TrimSpace(value), `"`))
			if err == nil && n > 0 {
				return min(time.Duration(min(n, 3600))*time.Second, maxWait)
			}
		}
	}
	return 0
}

// idempotency reads the Idempotency-Key of a request whose body has been read. A malformed key is an error that the body's
// parser reports, so that it comes after 404 and 403.
func idempotency(r *request) (host.Idempotency, error) {
	v := r.Header.Values("Idempotency-Key")
	if len(v) == 0 {
		return host.Idempotency{}, nil
	}
	if len(v) > 1 || v[0] == "" || len(v[0]) > maxKey || strings.ContainsFunc(v[0], func(c rune) bool { return c < 0x20 || c > 0x7e }) {
		return host.Idempotency{}, invalid("", "Idempotency-Key must be one value of 1 to 255 printable ASCII characters")
	}
	sum := sha256.Sum256(r.body)
	return host.Idempotency{Key: v[0], Method: r.Method, Path: r.URL.Path, Body: hex.EncodeToString(sum[:])}, nil
}

// checkLength refuses a body that says it is too large. It throws some of it away, so that a client which is still sending gets
// to read its 413.
func checkLength(w http.ResponseWriter, r *http.Request) error {
	if r.ContentLength <= maxBody {
		return nil
	}
	return tooLarge(w, r)
}

func tooLarge(w http.ResponseWriter, r *http.Request) error {
	w.Header().Set("Connection", "close")
	_ = http.NewResponseController(w).SetReadDeadline(time.Now().Add(2 * time.Second))
	_, _ = io.CopyN(io.Discard, r.Body, 16*maxBody)
	return &host.Error{Code: host.CodeTooLarge, Detail: "the body is larger than 1 MiB: send less, or store the data and send its name"}
}

// readBody reads the whole body, at most maxBody bytes, into memory that grows with what arrives. keep false counts it only: a
// stranger's body is worth no memory, and one of unknown length may still be too large.
func readBody(w http.ResponseWriter, r *http.Request, keep bool) ([]byte, error) {
	if r.Body == nil || r.Body == http.NoBody {
		return nil, nil
	}
	rc := http.NewResponseController(w)
	_ = rc.SetReadDeadline(time.Now().Add(30 * time.Second)) // what cannot be bounded here, the server's own timeouts bound
	defer func() { _ = rc.SetReadDeadline(time.Time{}) }()
	var b bytes.Buffer
	into := io.Writer(&b)
	if !keep {
		into = io.Discard
	}
	n, err := io.Copy(into, io.LimitReader(r.Body, maxBody+1))
	if n > maxBody {
		return nil, tooLarge(w, r)
	}
	if err != nil {
		w.Header().Set("Connection", "close")
		return nil, invalid("", "the body could not be read to its end")
	}
	return b.Bytes(), nil
}
