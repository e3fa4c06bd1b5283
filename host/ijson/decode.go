package ijson

import (
	"errors"

	json "github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
)

// Decode checks b and reads it into v. Names are case-sensitive; a member that v does not know, or a value of another type,
// is refused with its pointer. The error is an *Error.
func Decode(b []byte, v any) error {
	if e := check(b); e != nil {
		return e
	}
	err := json.Unmarshal(b, v, json.RejectUnknownMembers(true))
	if err == nil {
		return nil
	}
	se, ok := errors.AsType[*json.SemanticError](err)
	if !ok {
		return &Error{Detail: "not the JSON that is asked for here"}
	}
	p := string(se.JSONPointer)
	switch {
	case errors.Is(se.Err, json.ErrUnknownName):
		return &Error{Pointer: p, Detail: "unknown member; remove it or check its spelling"}
	case se.GoType != nil && se.JSONKind != 0:
		return &Error{Pointer: p, Detail: "wrong type: " + kindName(se.JSONKind) + " does not fit here"}
	default:
		return &Error{Pointer: p, Detail: "wrong value"}
	}
}

func kindName(k jsontext.Kind) string {
	switch k {
	case 'n':
		return "null"
	case 't', 'f':
		return "a boolean"
	case '"':
		return "a string"
	case '0':
		return "a number"
	case '{':
		return "an object"
	case '[':
		return "an array"
	}
	return "this"
}
