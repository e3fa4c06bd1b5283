package host_test

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/pawlhost/pawl/host"
	"github.com/pawlhost/pawl/host/hosttest"
	"github.com/pawlhost/pawl/store"
)

// question is a batch of one call that asks with a schema.
func question(reason, schema string) string {
	return fmt.Sprintf(`[{"tool_call_id":"q","tool":"ask","arguments":{"reason":%q,"payload":{"question":"How many?"},"schema":%s}}]`, reason, schema)
}

// order is canonical: the asking tool here sends its own arguments on.
const order = `{"additionalProperties":false,"properties":{"n":{"default":1,"minimum":1,"type":"integer"},"size":{"enum":["S","M"]},"to":{"items":{"type":"string"}}},"required":["size"],"type":"object"}`

func TestAnswerSchema_ABadAnswerIsRefusedWithAPointerAndTheQuestionStaysOpen(t *testing.T) {
	t.Parallel()
	h := hosttest.New(t, hosttest.Options{})
	h.External("shop", `{}`)
	r := h.Settled(h.Batch(hosttest.Member, "shop", question("await_input", order)).ID)
	if r.State != store.RunAwaitingInput || string(r.Pause.Approvals[0].Schema) != order {
		t.Fatalf("state %s, schema %s", r.State, r.Pause.Approvals[0].Schema)
	}
	before := h.Stored()
	id, token := r.Pause.Approvals[0].ID, mine(t, h, r).Pause.ResumeToken
	for _, tc := range []struct{ value, pointer, says string }{
		{`{}`, "", "size"},
		{`null`, "", "object"},
		{`"M"`, "", "object"},
		{`{"size":"L"}`, "/size", "'S', 'M'"},
		{`{"size":"M","n":0}`, "/n", "minimum"},
		{`{"size":"M","n":"1"}`, "/n", "integer"},
		{`{"size":"M","to":["a",2]}`, "/to/1", "string"},
		{`{"size":"M","colour":"red"}`, "", "colour"},
		{`{"size":"M","n":9007199254740993}`, "", "I-JSON"},
		{`{"size":"M","size":"S"}`, "", "I-JSON"},
	} {
		_, err := h.Answer(hosttest.Member, r.ID, host.Decision{ApprovalID: id, Kind: "respond", Value: raw(tc.value)})
		pointed(t, err, "/decisions/0/value"+tc.pointer, tc.says)
		_, err = resume(h, hosttest.Member, token, host.Answer{UserInput: raw(tc.value)})
		pointed(t, err, "/user_input"+tc.pointer, tc.says)
	}
	_, err := h.Answer(hosttest.Member, r.ID, host.Decision{ApprovalID: id, Kind: "respond", Message: "M"})
	pointed(t, err, "/decisions/0/message", "want object")
	h.Unchanged(before)

	h = restart(t, h, hosttest.Options{}) // the schema is as durable as the question
	_, err = resume(h, hosttest.Member, token, host.Answer{UserInput: raw(`{"size":"L"}`)})
	pointed(t, err, "/user_input/size", "")
	if _, err := resume(h, hosttest.Member, token, host.Answer{UserInput: raw(` {"to": [], "size": "M"} `)}); err != nil {
		t.Fatal(err)
	}
	if got := resultOf(h.Settled(r.ID).Calls[0]); got != `{"reason":"await_input","decision":"respond","user_input":{"size":"M","to":[]}}` {
		t.Errorf("the observation is %s; what was said, and no default that nobody said", got)
	}
}

// mine is the run as its member reads it, with the token.
func mine(t *testing.T, h *hosttest.Host, r host.Run) host.Run {
	t.Helper()
	v, err := h.GetRun(t.Context(), hosttest.Member, r.ID)
	if err != nil {
		t.Fatal(err)
	}
	return v
}

func pointed(t *testing.T, err error, pointer, says string) {
	t.Helper()
	refusal(t, err, host.CodeInvalid)
	if e, ok := err.(*host.Error); ok && (e.Pointer != pointer || !strings.Contains(e.Detail, says)) {
		t.Errorf("pointer %q, %s; want %q and %q", e.Pointer, e.Detail, pointer, says)
	}
}

func TestAnswerSchema_FalsyAnswersAreAnswers(t *testing.T) {
	t.Parallel()
	h := hosttest.New(t, hosttest.Options{})
	h.External("shop", `{}`)
	for _, v := range []string{`false`, `0`, `""`, `null`, `[]`, `{}`} {
		for _, schema := range []string{`{}`, fmt.Sprintf(`{"const":%s}`, v)} {
			for _, byToken := range []bool{false, true} {
				r := h.Settled(h.Batch(hosttest.Member, "shop", question("await_input", schema)).ID)
				var err error
				if byToken {
					_, err = resume(h, hosttest.Member, mine(t, h, r).Pause.ResumeToken, host.Answer{UserInput: raw(v)})
				} else {
					_, err = h.Answer(hosttest.Member, r.ID, host.Decision{ApprovalID: r.Pause.Approvals[0].ID, Kind: "respond", Value: raw(v)})
				}
				if err != nil {
					t.Errorf("%s for %s: %v", v, schema, err)
					continue
				}
				want := fmt.Sprintf(`{"reason":"await_input","decision":"respond","user_input":%s}`, v)
				if got := resultOf(h.Settled(r.ID).Calls[0]); got != want {
					t.Errorf("%s for %s: %s", v, schema, got)
				}
			}
		}
	}
}

func TestAnswerSchema_AMessageAloneIsATextAndTheValueGoesFirst(t *testing.T) {
	t.Parallel()
	h := hosttest.New(t, hosttest.Options{})
	h.External("shop", `{}`)
	for _, tc := range []struct {
		schema string
		d      host.Decision
		want   string // of the observation; "" for a refusal
	}{
		{`{"type":"string","minLength":2}`, host.Decision{Message: "red"}, `"user_input":"red","message":"red"}`},
		{`{"type":"string","minLength":2}`, host.Decision{Message: "r"}, ""},
		{`{"type":"integer"}`, host.Decision{Message: "7"}, ""},
		{`{"type":"integer"}`, host.Decision{Message: "as said", Value: raw(`7`)}, `"user_input":7,"message":"as said"}`},
		{`{"type":"string"}`, host.Decision{Message: "as said", Value: raw(`7`)}, ""},
	} {
		r := h.Settled(h.Batch(hosttest.Member, "shop", question("await_input", tc.schema)).ID)
		tc.d.ApprovalID, tc.d.Kind = r.Pause.Approvals[0].ID, "respond"
		_, err := h.Answer(hosttest.Member, r.ID, tc.d)
		if tc.want == "" {
			refusal(t, err, host.CodeInvalid)
			if open := h.Settled(r.ID); open.Pause == nil {
				t.Errorf("%s: the question is closed", tc.schema)
			}
			continue
		}
		if err != nil {
			t.Errorf("%s: %v", tc.schema, err)
		} else if got := resultOf(h.Settled(r.ID).Calls[0]); !strings.HasSuffix(got, tc.want) {
			t.Errorf("%s: %s", tc.schema, got)
		}
	}
}

func TestAnswerSchema_AQuestionWithOneIsAnsweredOrRejected(t *testing.T) {
	t.Parallel()
	h := hosttest.New(t, hosttest.Options{})
	h.External("shop", `{}`)
	for _, tc := range []struct {
		reason, schema string
		want           []string
	}{
		{"await_input", `{"type":"integer"}`, []string{"reject", "respond"}},
		{"approval_required", `{"type":"integer"}`, []string{"approve", "reject", "respond"}},
		{"constraints_conflict", `{}`, []string{"approve", "reject", "respond"}},
		{"external_event", `{}`, []string{"approve", "reject", "respond"}},
	} {
		r := h.Settled(h.Batch(hosttest.Member, "shop", question(tc.reason, tc.schema)).ID)
		if got := r.Pause.Approvals[0].Allowed; !slices.Equal(got, tc.want) {
			t.Errorf("%s: allows %v, want %v", tc.reason, got, tc.want)
		}
		before := h.Stored()
		_, err := h.DecideAll(hosttest.Admin, r, "approve")
		if tc.reason == "await_input" {
			refusal(t, err, host.CodeNotAllowed)
			h.Unchanged(before)
			_, err = h.DecideAll(hosttest.Admin, r, "reject") // a rejection carries no value, so there is nothing to check
		}
		if err != nil {
			t.Errorf("%s: %v", tc.reason, err)
		}
	}
}

// An answer is checked as a tool's arguments are: with a meter, since whoever asks wrote the schema.
func TestAnswerSchema_AnAnswerThatCannotBeCheckedIsRefused(t *testing.T) {
	t.Parallel()
	h := hosttest.New(t, hosttest.Options{})
	h.External("shop", `{}`)
	defs := map[string]any{"d0": map[string]any{}}
	for i := range 30 {
		ref := map[string]string{"$ref": fmt.Sprintf("#/$defs/d%d", i)}
		defs[fmt.Sprintf("d%d", i+1)] = map[string]any{"allOf": []any{ref, ref}}
	}
	schema, err := json.Marshal(map[string]any{"$ref": "#/$defs/d30", "$defs": defs})
	if err != nil {
		t.Fatal(err)
	}
	r := h.Settled(h.Batch(hosttest.Member, "shop", question("await_input", string(schema))).ID)
	_, err = h.Answer(hosttest.Member, r.ID, host.Decision{ApprovalID: r.Pause.Approvals[0].ID, Kind: "respond", Value: raw(`1`)})
	pointed(t, err, "/decisions/0/value", "too many evaluations")
	if _, err := h.DecideAll(hosttest.Member, r, "reject"); err != nil {
		t.Errorf("a question that nobody can answer can still be rejected: %v", err)
	}
}

func TestAnswerSchema_ASchemaThatIsNoneIsTheToolsToHear(t *testing.T) {
	t.Parallel()
	h := hosttest.New(t, hosttest.Options{})
	h.External("shop", `{}`)
	for _, schema := range []string{`{"type":"number or so"}`, `{"$ref":"https://example.com/s.json"}`, `[]`, `{"title":"` + strings.Repeat("x", 16<<10) + `"}`} {
		r := h.Settled(h.Batch(hosttest.Member, "shop", question("await_input", schema)).ID)
		if r.State != store.RunAwaitingPlanner || r.Calls[0].Error == nil || !strings.Contains(r.Calls[0].Error.Message, "schema") {
			t.Errorf("%.60s: state %s, call %+v; want a refusal that the tool could have read", schema, r.State, r.Calls[0].Error)
		}
	}
}
