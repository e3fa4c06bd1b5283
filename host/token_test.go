package host_test

import (
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"reflect"
	"strings"
	"testing"

	"github.com/pawlhost/pawl/host"
	"github.com/pawlhost/pawl/host/hosttest"
	"github.com/pawlhost/pawl/store"
)

// unread is a body that a request must be answered without.
func unread(t testing.TB) host.Lazy[host.Answer] {
	return func() (host.Answer, error) {
		t.Error("the body was read")
		return host.Answer{}, errors.New("the body was read")
	}
}

func resume(h *hosttest.Host, a host.Actor, token string, ans host.Answer) (host.Run, error) {
	return h.Resume(h.Context(), a, token, host.Idempotency{}, hosttest.Body(ans))
}

func approveAll(r host.Run) host.Answer {
	var ans host.Answer
	for _, ap := range r.Pause.Approvals {
		ans.Decisions = append(ans.Decisions, host.Decision{ApprovalID: ap.ID, Kind: "approve"})
	}
	return ans
}

// Public failure DX10.
func TestToken_IsUsedOnce(t *testing.T) {
	t.Parallel()
	h := hosttest.New(t, hosttest.Options{})
	h.External("pay", gatedTransfer)
	r := h.Batch(hosttest.Member, "pay", twoCalls)
	idem := host.Idempotency{Key: "r", Method: "POST", Path: "/v1/resume", Body: "b"}
	if _, err := h.Resume(t.Context(), hosttest.Admin, r.Pause.ResumeToken, idem, hosttest.Body(approveAll(r))); err != nil {
		t.Fatal(err)
	}
	h.Settled(r.ID)
	_, err := h.Resume(t.Context(), hosttest.Admin, r.Pause.ResumeToken, host.Idempotency{}, unread(t))
	if e := refusal(t, err, host.CodeTokenUsed); len(e.Decisions) != 1 || e.Decisions[0].DecidedBy != "admin" {
		t.Errorf("a used token is told %+v", e.Decisions)
	}
	again, err := h.Resume(t.Context(), hosttest.Admin, r.Pause.ResumeToken, idem, unread(t))
	if err != nil || again.State != store.RunAwaitingPlanner {
		t.Errorf("a repeat with its Idempotency-Key: %s, %v", again.State, err)
	}
	if n := h.Ran.Count("transfer"); n != 1 {
		t.Errorf("the tool ran %d times", n)
	}
	_, err = h.Resume(t.Context(), hosttest.Member2, r.Pause.ResumeToken, host.Idempotency{}, unread(t))
	refusal(t, err, host.CodeForbidden) // who may not use it is not told more
	// Decided by its approvals route, and cancelled: used up all the same.
	for _, end := range []func(host.Run) error{
		func(r host.Run) error { _, err := h.DecideAll(hosttest.Admin, r, "reject"); return err },
		func(r host.Run) error { _, err := h.Cancel(t.Context(), hosttest.Member, r.ID); return err },
	} {
		r := h.Batch(hosttest.Member, "pay", twoCalls)
		if err := end(r); err != nil {
			t.Fatal(err)
		}
		_, err := h.Resume(t.Context(), hosttest.Admin, r.Pause.ResumeToken, host.Idempotency{}, unread(t))
		refusal(t, err, host.CodeTokenUsed)
	}
}

func TestToken_RotationSupersedesIt(t *testing.T) {
	t.Parallel()
	h := hosttest.New(t, hosttest.Options{})
	h.External("pay", gatedTransfer)
	r := h.Batch(hosttest.Member, "pay", twoCalls)
	tokens := []string{r.Pause.ResumeToken}
	for _, a := range []host.Actor{hosttest.Member, hosttest.Admin, hosttest.Owner} {
		v, err := h.RotateToken(t.Context(), a, r.ID)
		if err != nil || v.Pause == nil || v.Pause.ResumeToken == "" {
			t.Fatalf("rotate as %s: %v", a.ID, err)
		}
		for _, old := range tokens {
			if old == v.Pause.ResumeToken {
				t.Fatal("a rotation gave an old token")
			}
			_, err := h.Resume(t.Context(), hosttest.Admin, old, host.Idempotency{}, unread(t))
			refusal(t, err, host.CodeTokenUsed)
		}
		tokens = append(tokens, v.Pause.ResumeToken)
	}
	_, err := h.RotateToken(t.Context(), hosttest.Member2, r.ID)
	refusal(t, err, host.CodeNotFound)
	_, err = h.RotateToken(t.Context(), hosttest.OtherAdmin, r.ID)
	refusal(t, err, host.CodeNotFound)
	_, err = h.RotateToken(t.Context(), hosttest.Service, r.ID)
	refusal(t, err, host.CodeForbidden)
	if _, err := resume(h, hosttest.Admin, tokens[len(tokens)-1], approveAll(r)); err != nil {
		t.Fatal(err)
	}
	_, err = h.RotateToken(t.Context(), hosttest.Member, r.ID)
	refusal(t, err, host.CodeWrongState)
}

func TestInvariant10_UnknownMalformedAndForeignTokensLookAlike(t *testing.T) {
	t.Parallel()
	h := hosttest.New(t, hosttest.Options{})
	h.External("pay", gatedTransfer)
	r := h.Batch(hosttest.Member, "pay", twoCalls)
	token := r.Pause.ResumeToken
	b, err := base64.RawURLEncoding.DecodeString(token)
	if err != nil || len(b) != 52 {
		t.Fatalf("a token of %d bytes, %v", len(b), err)
	}
	before := h.Stored()
	_, unknown := h.Resume(t.Context(), hosttest.Admin, "nonsense", host.Idempotency{}, unread(t))
	refusal(t, unknown, host.CodeNotFound)
	same := func(what string, a host.Actor, token string) {
		t.Helper()
		_, err := h.Resume(t.Context(), a, token, host.Idempotency{}, unread(t))
		if !reflect.DeepEqual(err, unknown) {
			t.Fatalf("%s: %#v, want what an unknown token gets: %#v", what, err, unknown)
		}
	}
	for i := range len(b) * 8 {
		flipped := append([]byte(nil), b...)
		flipped[i/8] ^= 1 << (i % 8)
		same("one bit flipped", hosttest.Admin, base64.RawURLEncoding.EncodeToString(flipped))
	}
	for i := range token {
		same("truncated", hosttest.Admin, token[:i])
	}
	const alphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"
	last := strings.IndexByte(alphabet, token[len(token)-1])
	for bits := 1; bits < 16; bits++ { // 52 bytes leave four bits of the last character unused
		same("non-canonical", hosttest.Admin, token[:len(token)-1]+string(alphabet[last|bits]))
	}
	for what, s := range map[string]string{
		"empty": "", "padded": token + "==", "trailing newline": token + "\n", "newline inside": token[:10] + "\n" + token[10:], "carriage return": token[:10] + "\r" + token[10:],
		"leading space": " " + token, "longer": token + "AAAA", "its pause's id": r.Pause.ID, "its run's id": r.ID, "hex": hex.EncodeToString(b), "very long": strings.Repeat(token, 1000),
		"no UTF-8": "\xff\xfe", "standard alphabet": "+/" + token[2:], "zero bytes": base64.RawURLEncoding.EncodeToString(make([]byte, 52)),
	} {
		same(what, hosttest.Admin, s)
	}
	for _, a := range []host.Actor{hosttest.OtherAdmin, hosttest.OtherMember} {
		same("another tenant's", a, token)
	}
	// A twin of the actor in the other tenant, with the same name and roles.
	twin := hosttest.Admin
	twin.Tenant = "other"
	same("another tenant's twin", twin, token)
	h.Unchanged(before)
	if _, err := resume(h, hosttest.Admin, token, approveAll(r)); err != nil {
		t.Fatalf("the token itself: %v", err)
	}
}

func TestToken_KeysRotateAndRestartsChangeNothing(t *testing.T) {
	t.Parallel()
	k1, k2 := strings.Repeat("01", 32), strings.Repeat("02", 32)
	with := func(keys string) func(*host.Config) {
		parsed, err := host.ParseTokenKeys(keys)
		if err != nil {
			t.Fatal(err)
		}
		return func(c *host.Config) { c.HostKeys = parsed }
	}
	h := hosttest.New(t, hosttest.Options{Config: with(k1)})
	h.External("pay", gatedTransfer)
	a, b := h.Batch(hosttest.Member, "pay", twoCalls), h.Batch(hosttest.Member, "pay", twoCalls)
	get := func(id string) string {
		t.Helper()
		r, err := h.GetRun(t.Context(), hosttest.Member, id)
		if err != nil || r.Pause == nil || r.Pause.ResumeToken == "" {
			t.Fatalf("get: %v, pause %+v", err, r.Pause)
		}
		return r.Pause.ResumeToken
	}
	if get(a.ID) != a.Pause.ResumeToken {
		t.Error("a reconnecting client is given another token")
	}
	h = restart(t, h, hosttest.Options{Config: with(k1)})
	if get(a.ID) != a.Pause.ResumeToken {
		t.Error("a restart changed the token")
	}
	h = restart(t, h, hosttest.Options{Config: with(k2 + "," + k1)})
	fresh := get(a.ID)
	if fresh == a.Pause.ResumeToken {
		t.Error("the new key does not sign")
	}
	if _, err := resume(h, hosttest.Admin, a.Pause.ResumeToken, approveAll(a)); err != nil {
		t.Errorf("a token of the old key, while both verify: %v", err)
	}
	_, err := resume(h, hosttest.Admin, fresh, approveAll(a))
	refusal(t, err, host.CodeTokenUsed) // two spellings of one token: used together
	newB := get(b.ID)
	h = restart(t, h, hosttest.Options{Config: with(k2)})
	_, err = resume(h, hosttest.Admin, b.Pause.ResumeToken, approveAll(b))
	refusal(t, err, host.CodeNotFound) // its key was dropped
	if _, err := resume(h, hosttest.Admin, newB, approveAll(b)); err != nil {
		t.Error(err)
	}
}

func TestInvariant7_HoldingATokenIsNotEnough(t *testing.T) {
	t.Parallel()
	h := hosttest.New(t, hosttest.Options{})
	h.External("pay", gatedTransfer)
	r := h.Batch(hosttest.Member, "pay", twoCalls)
	before := h.Stored()
	for _, a := range []host.Actor{hosttest.Member, hosttest.Member2, hosttest.Service} {
		_, err := h.Resume(t.Context(), a, r.Pause.ResumeToken, host.Idempotency{}, unread(t))
		if e := refusal(t, err, host.CodeForbidden); len(e.Reasons) == 0 {
			t.Errorf("%s is refused without a reason", a.ID)
		}
	}
	h.Unchanged(before)
	denied := map[string]int{}
	for _, row := range h.AuditRows("demo") {
		if row.Action == "approval.decide" && row.Outcome == "denied" && row.TargetKind == "pending_approval" && row.TargetID == r.Pause.Approvals[0].ID {
			denied[*row.ActorID]++
		}
	}
	if denied["member"] != 1 || denied["member2"] != 1 || denied["bot"] != 1 {
		t.Errorf("refusals in the audit: %v", denied)
	}
	// Who is given the token: creator, and whoever may decide. A service that only sees the run is not.
	for a, want := range map[*host.Actor]bool{&hosttest.Member: true, &hosttest.Admin: true, &hosttest.Owner: true, &hosttest.Service: false} {
		v, err := h.GetRun(t.Context(), *a, r.ID)
		if err != nil || (v.Pause.ResumeToken != "") != want {
			t.Errorf("%s: %v, given the token: %v, want %v", a.ID, err, !want, want)
		}
	}
}

// Public failure HV3.
func TestInvariant14_NoTokenLeavesItsPlace(t *testing.T) {
	t.Parallel()
	h := hosttest.New(t, hosttest.Options{Tools: map[string]hosttest.Func{"request": showRequest}})
	h.External("pay", gatedTransfer)
	r := h.Batch(hosttest.Member, "pay", `[{"tool":"transfer","arguments":{"amount":10}},{"tool":"request","arguments":{}}]`)
	token := r.Pause.ResumeToken
	b, err := base64.RawURLEncoding.DecodeString(token)
	if err != nil {
		t.Fatal(err)
	}
	spellings := []string{token, token[20:40], string(b[20:]), hex.EncodeToString(b[20:]), base64.StdEncoding.EncodeToString(b[20:]), hosttest.HostKey}
	absent := func(where, text string) {
		t.Helper()
		for i, s := range spellings {
			if strings.Contains(text, s) {
				t.Errorf("%s holds the token (spelling %d)", where, i)
			}
		}
	}
	look := func() {
		t.Helper()
		for k, v := range h.Stored() {
			absent("store "+k, k+v)
		}
		absent("log", h.Log.String())
		runs, _, err := h.ListRuns(t.Context(), hosttest.Admin, host.RunFilter{}, host.Page{})
		absent("list of runs", text(t, runs, err))
		aps, _, err := h.Approvals(t.Context(), hosttest.Admin, "pending", host.Page{})
		absent("queue", text(t, aps, err))
		aps, err = h.RunApprovals(t.Context(), hosttest.Admin, r.ID)
		absent("approvals of the run", text(t, aps, err))
		msgs, err := h.Trajectory(t.Context(), hosttest.Admin, r.ID)
		absent("trajectory", text(t, msgs, err))
		snap, _, s, err := h.WatchRun(t.Context(), hosttest.Admin, r.ID, nil)
		absent("snapshot of the run", text(t, snap, err))
		s.Close()
		aps, _, s, err = h.WatchQueue(t.Context(), hosttest.Admin, "")
		absent("snapshot of the queue", text(t, aps, err))
		s.Close()
		absent("events", text(t, h.Events(r.ID), nil))
		absent("audit", text(t, h.AuditRows("demo"), nil))
	}
	look()
	_, err = resume(h, hosttest.Member, token, approveAll(r))
	refusal(t, err, host.CodeForbidden)
	absent("a refusal", text(t, err, nil))
	if _, err := resume(h, hosttest.Admin, token, approveAll(r)); err != nil {
		t.Fatal(err)
	}
	_, err = resume(h, hosttest.Admin, token, approveAll(r))
	absent("a refusal", text(t, err, nil)+err.Error())
	h.Settled(r.ID)
	look() // the request that a tool was given is in there, as its result
	if !strings.Contains(text(t, h.Events(r.ID), nil), "run_id") {
		t.Error("there was nothing to look at")
	}
}

func text(t testing.TB, v any, err error) string {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
	b, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// Public failure MX3.
func TestToken_UserInputAnswersTheOneQuestion(t *testing.T) {
	t.Parallel()
	h := hosttest.New(t, hosttest.Options{})
	h.External("ask", gatedTransfer)
	const question = `{"tool":"ask","arguments":{"reason":"await_input","payload":{"question":"Which account?"}}}`
	gate := h.Batch(hosttest.Member, "ask", twoCalls)
	one := h.Settled(h.Batch(hosttest.Member, "ask", "["+question+"]").ID)
	two := h.Settled(h.Batch(hosttest.Member, "ask", "["+question+","+question+"]").ID)
	tokenOf := func(r host.Run) string {
		v, err := h.GetRun(t.Context(), hosttest.Admin, r.ID)
		if err != nil || v.Pause == nil {
			t.Fatalf("get %s: %v", r.ID, err)
		}
		return v.Pause.ResumeToken
	}
	before := h.Stored()
	for _, tc := range []struct {
		name    string
		run     host.Run
		answer  host.Answer
		code    host.Code
		pointer string
	}{
		{"on a gate stop", gate, host.Answer{UserInput: raw(`"approved"`)}, host.CodeInvalid, "/user_input"},
		{"with two open questions", two, host.Answer{UserInput: raw(`"checking"`)}, host.CodeAmbiguous, "/user_input"},
		{"neither input nor decisions", one, host.Answer{}, host.CodeInvalid, ""},
		{"both", one, host.Answer{UserInput: raw(`1`), Decisions: []host.Decision{}}, host.CodeInvalid, "/user_input"},
		{"one of two by decisions", two, host.Answer{Decisions: []host.Decision{{ApprovalID: two.Pause.Approvals[0].ID, Kind: "respond", Value: raw("1")}}}, host.CodeIncomplete, ""},
		{"no decisions on an open pause", one, host.Answer{Decisions: []host.Decision{}}, host.CodeIncomplete, ""},
	} {
		_, err := resume(h, hosttest.Admin, tokenOf(tc.run), tc.answer)
		e, ok := errors.AsType[*host.Error](err)
		if !ok || e.Code != tc.code || e.Pointer != tc.pointer {
			t.Errorf("%s: %v at %q, want %s at %q", tc.name, err, pointerOf(err), tc.code, tc.pointer)
		}
	}
	h.Unchanged(before)
	if _, err := resume(h, hosttest.Member, tokenOf(one), host.Answer{UserInput: raw(`"savings"`)}); err != nil { // its own question
		t.Fatal(err)
	}
	if got := resultOf(h.Settled(one.ID).Calls[0]); got != `{"reason":"await_input","decision":"respond","user_input":"savings"}` {
		t.Errorf("the observation is %s", got)
	}
}
