package host_test

import (
	"strings"
	"testing"

	"github.com/pawlhost/pawl/host"
	"github.com/pawlhost/pawl/host/hosttest"
)

// A body that is wrong is told so to those who may make keys; to others it is the same 403 whatever they send.
func TestKeys_TheBodyIsReadBetweenTheTwoQuestions(t *testing.T) {
	t.Parallel()
	h := hosttest.New(t, hosttest.Options{})
	for _, tc := range []struct {
		key     host.NewKey
		pointer string
	}{
		{host.NewKey{Roles: []string{"member"}, Kind: "user"}, "/principal"},
		{host.NewKey{Principal: "a b", Roles: []string{"member"}, Kind: "user"}, "/principal"},
		{host.NewKey{Principal: "x", Kind: "user"}, "/roles"},
		{host.NewKey{Principal: "x", Roles: []string{"member", "root"}, Kind: "user"}, "/roles/1"},
		{host.NewKey{Principal: "x", Roles: []string{"member"}}, "/kind"},
		{host.NewKey{Principal: "x", Roles: []string{"member"}, Kind: "system"}, "/kind"},
	} {
		_, err := h.CreateKey(t.Context(), hosttest.Owner, host.Idempotency{}, hosttest.Body(tc.key))
		if e := refusal(t, err, host.CodeInvalid); e.Pointer != tc.pointer {
			t.Errorf("%+v: pointer %q, want %q", tc.key, e.Pointer, tc.pointer)
		}
		_, err = h.CreateKey(t.Context(), hosttest.Member, host.Idempotency{}, hosttest.Body(tc.key))
		refusal(t, err, host.CodeForbidden)
	}
	owner := host.NewKey{Principal: "x", Roles: []string{"owner"}, Kind: "user"}
	_, err := h.CreateKey(t.Context(), hosttest.Admin, host.Idempotency{}, hosttest.Body(owner))
	refusal(t, err, host.CodeForbidden)
	k, err := h.CreateKey(t.Context(), hosttest.Owner, host.Idempotency{}, hosttest.Body(owner))
	if err != nil || !strings.HasPrefix(k.ID, "key_") || !strings.HasPrefix(k.Key, "pawl_") {
		t.Errorf("%+v %v", k, err)
	}
	if a, err := h.Authenticate(t.Context(), k.Key); err != nil || a.ID != "x" || a.KeyID != k.ID {
		t.Errorf("%+v %v", a, err)
	}
}
