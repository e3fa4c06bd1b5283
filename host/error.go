package host

import (
	"errors"
	"fmt"
	"time"

	"github.com/pawlhost/pawl/store"
)

// Code names a kind of error. Package api maps each to a status; an error without a code is internal and its text never
// leaves the host.
type Code string

// The codes, with the status that HTTP gives them.
const (
	CodeUnauthenticated Code = "unauthenticated" // 401
	CodeNotFound        Code = "not_found"       // 404, also for what is another tenant's
	CodeForbidden       Code = "forbidden"       // 403
	CodeInvalid         Code = "invalid"         // 400
	CodeNotAllowed      Code = "not_allowed"     // 400: a decision kind outside allowed_decisions
	CodeOutOfScope      Code = "out_of_scope"    // 400: an edit leaves what stopped the call
	CodeAmbiguous       Code = "ambiguous"       // 400: user_input with more than one open question
	CodeIdempotency     Code = "idempotency_mismatch"
	CodeIncomplete      Code = "incomplete"       // 409
	CodeAlreadyDecided  Code = "already_decided"  // 409
	CodeChanged         Code = "changed"          // 409: the digest shown is not the digest stored
	CodeTokenUsed       Code = "token_used"       // 409
	CodeWrongTurn       Code = "wrong_turn"       // 409
	CodeWrongState      Code = "wrong_state"      // 409
	CodeLastOwner       Code = "last_owner"       // 409: the change would leave a tenant without an owner
	CodeTokenExpired    Code = "token_expired"    // 410
	CodeApprovalExpired Code = "approval_expired" // 410
	CodeCursorExpired   Code = "cursor_expired"   // 410
	CodeTooLarge        Code = "too_large"        // 413
	CodeRateLimited     Code = "rate_limited"     // 429
	CodeInternal        Code = "internal"         // 500
	CodeUnavailable     Code = "unavailable"      // 503
	CodeNoSpace         Code = "no_space"         // 507
)

// Error is an error for a client: what went wrong and what to do about it.
type Error struct {
	Code   Code
	Detail string
	// Pointer is the JSON pointer of the offending member of the request.
	Pointer string
	// Parameter is the name of the query parameter, where the request has a query and no body.
	Parameter string
	// Reasons says why policy refused.
	Reasons []string
	// Outstanding lists the approvals that an incomplete request left out.
	Outstanding []string
	// Decisions tells who decided what, when somebody else was first.
	Decisions []DecidedBy
	cause     error
}

// DecidedBy is one decision as a loser of the race gets to see it.
type DecidedBy struct {
	ApprovalID string `json:"approval_id"`
	Kind       string `json:"kind"`
	DecidedBy  string `json:"decided_by"`
	DecidedAt  Time   `json:"decided_at"`
}

func (e *Error) Error() string { return string(e.Code) + ": " + e.Detail }

// Unwrap returns the leaf's error that was given a code, if there is one.
func (e *Error) Unwrap() error { return e.cause }

// coded gives the store's errors the code that a client can act on.
func coded(err error) error {
	var e *Error
	switch {
	case errors.Is(err, store.ErrFull):
		e = errf(CodeNoSpace, "the host is short of disk space; ask the operator to free some")
	case errors.Is(err, store.ErrTooLarge):
		e = errf(CodeTooLarge, "the request is larger than one commit can be; send less at once")
	case errors.Is(err, store.ErrClosed):
		e = errf(CodeUnavailable, "the host is shutting down")
	default:
		return err
	}
	e.cause = err
	return e
}

// CodeOf returns the code of err: CodeInternal for an error without one, "" for nil.
func CodeOf(err error) Code {
	if err == nil {
		return ""
	}
	if e, ok := errors.AsType[*Error](err); ok {
		return e.Code
	}
	return CodeInternal
}

func errf(code Code, format string, args ...any) *Error {
	return &Error{Code: code, Detail: fmt.Sprintf(format, args...)}
}

func invalid(pointer, format string, args ...any) *Error {
	return &Error{Code: CodeInvalid, Pointer: pointer, Detail: fmt.Sprintf(format, args...)}
}

// errNotFound is one text for what is unknown and what is foreign, so that they look alike.
func errNotFound(what string) *Error {
	return errf(CodeNotFound, "no such %s", what)
}

// Time is a moment on the wire: RFC 3339, UTC, milliseconds.
type Time time.Time

// MarshalJSON implements json.Marshaler.
func (t Time) MarshalJSON() ([]byte, error) {
	return []byte(time.Time(t).UTC().Format(`"2006-01-02T15:04:05.000Z"`)), nil
}

// UnmarshalJSON implements json.Unmarshaler.
func (t *Time) UnmarshalJSON(b []byte) error {
	v, err := time.Parse(`"`+time.RFC3339+`"`, string(b))
	*t = Time(v)
	return err
}

func (t Time) String() string { return time.Time(t).UTC().Format("2006-01-02T15:04:05.000Z") }
