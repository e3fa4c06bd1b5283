package host

import (
	"cmp"
	"errors"

	"github.com/pawlhost/pawl/host/ijson"
	"github.com/pawlhost/pawl/plugins"
	"github.com/pawlhost/pawl/store"
)

// answersTo are the decisions that a tool's own stop takes. There is nothing to edit. A question whose answer has a shape is
// answered or refused: an approval would be neither, and the tool would go on without what it asked for.
func answersTo(s *store.Stop) []string {
	if s.Reason == reasonInput && len(s.Schema) > 0 {
		return []string{kindReject, kindRespond}
	}
	return []string{kindApprove, kindReject, kindRespond}
}

// checkAnswer holds the value of a respond to the schema that the tool gave with its stop. A message without a value is the
// answer as a text. at is the decision's place in the request.
func (p *planned) checkAnswer(at string) error {
	if len(p.approval.Schema) == 0 {
		return nil
	}
	value, where := p.Value, cmp.Or(p.at, at+"/value")
	if value == nil {
		value, where = mustJSON(p.Message), at+"/message"
	}
	value, err := ijson.Parse(value)
	if err != nil {
		return invalid(where, "not I-JSON: %v", err)
	}
	schema, err := plugins.CompileSchema(p.approval.Schema)
	if err != nil {
		return err
	}
	if se, ok := errors.AsType[*plugins.SchemaError](schema.Validate(value)); ok {
		return invalid(where+se.Pointer, "the answer misses the schema of the question: %s", se.Message)
	}
	return nil
}
