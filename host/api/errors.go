package api

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"

	"github.com/pawlhost/pawl/host"
	"github.com/pawlhost/pawl/host/ijson"
)

// Codes that only a transport can give.
const (
	codeMethodNotAllowed host.Code = "method_not_allowed"
	codeUpgradeRequired  host.Code = "upgrade_required"
)

// statuses maps each code to its HTTP status and title. A code that is missing here is internal.
var statuses = map[host.Code]struct {
	status int
	title  string
}{
	host.CodeUnauthenticated: {http.StatusUnauthorized, "Unauthenticated"},
	host.CodeNotFound:        {http.StatusNotFound, "Not found"},
	host.CodeForbidden:       {http.StatusForbidden, "Forbidden"},
	host.CodeInvalid:         {http.StatusBadRequest, "Invalid request"},
	host.CodeNotAllowed:      {http.StatusBadRequest, "Decision not allowed"},
	host.CodeOutOfScope:      {http.StatusBadRequest, "Edit out of scope"},
	host.CodeAmbiguous:       {http.StatusBadRequest, "Ambiguous answer"},
	host.CodeIdempotency:     {http.StatusUnprocessableEntity, "Idempotency key reused"},
	host.CodeIncomplete:      {http.StatusConflict, "Incomplete decisions"},
	host.CodeAlreadyDecided:  {http.StatusConflict, "Already decided"},
	host.CodeChanged:         {http.StatusConflict, "Arguments changed"},
	host.CodeTokenUsed:       {http.StatusConflict, "Token used"},
	host.CodeWrongTurn:       {http.StatusConflict, "Wrong turn"},
	host.CodeWrongState:      {http.StatusConflict, "Wrong state"},
	host.CodeLastOwner:       {http.StatusConflict, "Last owner"},
	host.CodeTokenExpired:    {http.StatusGone, "Token expired"},
	host.CodeApprovalExpired: {http.StatusGone, "Approval expired"},
	host.CodeCursorExpired:   {http.StatusGone, "Cursor expired"},
	host.CodeTooLarge:        {http.StatusRequestEntityTooLarge, "Too large"},
	host.CodeRateLimited:     {http.StatusTooManyRequests, "Rate limited"},
	host.CodeInternal:        {http.StatusInternalServerError, "Internal error"},
	host.CodeUnavailable:     {http.StatusServiceUnavailable, "Unavailable"},
	host.CodeNoSpace:         {http.StatusInsufficientStorage, "No space"},
	codeMethodNotAllowed:     {http.StatusMethodNotAllowed, "Method not allowed"},
	codeUpgradeRequired:      {http.StatusUpgradeRequired, "Upgrade required"},
}

// Problem is an error on the wire: RFC 9457, with the members that wire.md adds.
type Problem struct {
	Type        string           `json:"type"`
	Title       string           `json:"title"`
	Status      int              `json:"status"`
	Detail      string           `json:"detail"`
	Code        host.Code        `json:"code"`
	TraceID     string           `json:"trace_id,omitempty"`
	Pointer     *string          `json:"pointer,omitempty"`
	Parameter   string           `json:"parameter,omitempty"` // of a GET: the query parameter that the pointer means
	Reasons     []string         `json:"reasons,omitempty"`
	Outstanding []string         `json:"outstanding,omitempty"`
	Decisions   []host.DecidedBy `json:"decisions,omitempty"`
}

// problemOf translates an error. The text of an error without a code stays here: it may quote anything.
func problemOf(err error, trace string) Problem {
	e, ok := errors.AsType[*host.Error](err)
	if !ok {
		if j, isJSON := errors.AsType[*ijson.Error](err); isJSON {
			e = &host.Error{Code: host.CodeInvalid, Detail: j.Detail, Pointer: j.Pointer}
		} else if errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
			e = &host.Error{Code: host.CodeUnavailable, Detail: "the request was cut off before it was done: look at the run's state, then try again"}
		} else {
			e = &host.Error{Code: host.CodeInternal}
		}
	}
	s, known := statuses[e.Code]
	if !known || e.Code == host.CodeInternal {
		e = &host.Error{Code: host.CodeInternal, Detail: "something failed inside the host: give the trace_id to the operator, whose log tells more"}
		s = statuses[host.CodeInternal]
	}
	p := Problem{
		Type: "urn:pawl:problem:" + string(e.Code), Title: s.title, Status: s.status, Detail: e.Detail, Code: e.Code,
		TraceID: trace, Reasons: e.Reasons, Outstanding: e.Outstanding, Decisions: e.Decisions,
	}
	if s.status == http.StatusBadRequest {
		p.Pointer, p.Parameter = &e.Pointer, e.Parameter
	}
	if e.Code == host.CodeNotFound {
		// Answers about unknown and foreign things are equal to the byte; an id of each answer would not be.
		p.TraceID = ""
	}
	return p
}

// fail answers with err as problem+json. The caller has set no headers of a success.
func fail(w http.ResponseWriter, err error, trace string) {
	p := problemOf(err, trace)
	h := w.Header()
	switch p.Code {
	case host.CodeUnauthenticated:
		h.Set("WWW-Authenticate", `Bearer realm="pawl"`)
	case host.CodeRateLimited:
		if h.Get("Retry-After") == "" {
			h.Set("Retry-After", "1")
		}
	case host.CodeUnavailable:
		h.Set("Retry-After", "2")
	case codeUpgradeRequired:
		h.Set("Upgrade", "websocket")
	}
	b, err := json.Marshal(p)
	if err != nil { // strings and numbers only
		panic(err)
	}
	send(w, p.Status, "application/problem+json", append(b, '\n'))
}

func invalid(pointer, detail string) *host.Error {
	return &host.Error{Code: host.CodeInvalid, Pointer: pointer, Detail: detail}
}

func isIJSON(err error) bool {
	_, ok := errors.AsType[*ijson.Error](err)
	return ok
}
