package host

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/pawlhost/pawl/policy"
	"github.com/pawlhost/pawl/store"
)

// rules are the policy as the host asks it: the set of rules that the context is bound to, or else the one in force. The folder may change
// at any time; bind makes all that is asked in one request or about one batch be answered by one set.
type rules struct {
	live *policy.Live
	log  *slog.Logger
	// taken and refused count the reloads.
	taken, refused atomic.Int64
}

type boundRules struct{}

func (r *rules) engine(ctx context.Context) *policy.Engine {
	if e, ok := ctx.Value(boundRules{}).(*policy.Engine); ok {
		return e
	}
	return r.live.Current().Engine
}

func (r *rules) bind(ctx context.Context) context.Context {
	return context.WithValue(ctx, boundRules{}, r.engine(ctx))
}

func (r *rules) Gate(ctx context.Context, on *policy.Interrupts, in *policy.Input) policy.Decision {
	d := r.engine(ctx).Gate(ctx, on, in)
	if d.Code != "" {
		r.log.Error("policy could not answer, so a call is denied", "code", d.Code, "detail", d.Detail, "tenant", in.Tenant, "agent", in.Agent.Name, "run_id", in.Run.ID, "tool", in.Call.Name)
	}
	return d
}

func (r *rules) Fires(ctx context.Context, on *policy.Interrupts, in *policy.Input, ids []string) (bool, []string, *policy.Decision) {
	return r.engine(ctx).Fires(ctx, on, in, ids)
}

func (r *rules) Authz(ctx context.Context, in *policy.AuthzInput) policy.Verdict {
	v := r.engine(ctx).Authz(ctx, in)
	if v.Code != "" {
		r.log.Error("policy could not answer, so an act is refused", "code", v.Code, "detail", v.Detail, "tenant", in.Principal.Tenant, "principal", in.Principal.ID, "act", in.Act)
	}
	return v
}

func (r *rules) Compile(interruptOn json.RawMessage) (*policy.Interrupts, error) {
	return r.live.Current().Compile(interruptOn) // the same with every set
}

func (r *rules) Abandoned() int64 { return r.live.Abandoned() }

// OneRuleset binds a context to the rules that are in force now, so that what is asked with it sees one set and never half of each of two. It
// is for one request and not for a stream, which would keep old rules for as long as it lives.
func (h *Host) OneRuleset(ctx context.Context) context.Context { return h.policy.bind(ctx) }

// goneRules are those of the rules that stopped a call and would not stop it any more: the folder has changed since.
func (h *Host) goneRules(ctx context.Context, r *run, f *frame, c *store.Call, stopped []string) ([]string, error) {
	args, err := h.text(ctx, r.Tenant, c.Arguments)
	if err != nil {
		return nil, err
	}
	docs, i, tc, err := h.editDocs(ctx, r, f, c, args)
	if err != nil {
		return nil, err
	}
	d := h.policy.Gate(ctx, f.agent.interrupts, h.gateInput(r, f, docs, i, f.Turn, f.Before, tc))
	return slices.DeleteFunc(slices.Clone(stopped), func(rule string) bool { return slices.Contains(d.Rules, rule) }), nil
}

// outOfScope refuses an edit that leaves the rules which stopped the call. Of a rule that is gone nobody knows what was within it.
func outOfScope(at string, missing, gone []string) *Error {
	detail := fmt.Sprintf("the edited call is outside what stopped it (%q); an edit may not leave that scope", missing)
	if len(gone) > 0 {
		detail = fmt.Sprintf("the rules %q, which stopped this call, are gone or have changed, so that nobody can say what is within them: approve the call as it is, reject it, or answer for it", gone)
	}
	return &Error{Code: CodeOutOfScope, Pointer: at, Detail: detail}
}

// rulesLoop looks at the rules folder until ctx is done.
func (h *Host) rulesLoop(ctx context.Context) {
	t := time.NewTicker(h.rulesInterval)
	defer t.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-t.C:
			h.LookAtRules(ctx)
		}
	}
}

// LookAtRules looks once whether the rules folder has changed, and takes what has settled there.
func (h *Host) LookAtRules(ctx context.Context) policy.Look { return h.lookAtRules(ctx, false) }

// reloadTries bounds how long ReloadRules waits for a folder that keeps changing.
const reloadTries = 20

// ReloadRules takes the contents of the rules folder now, changed or not, as soon as they have settled. An error says why the old rules stay
// in force; it is logged, counted and audited already.
func (h *Host) ReloadRules(ctx context.Context) error {
	for range reloadTries {
		switch h.lookAtRules(ctx, true) {
		case policy.Taken:
			return nil
		case policy.Refused:
			return h.policy.live.Failed().Err
		case policy.Unchanged:
			return errors.New("this host has no rules folder: start it with --rules DIR")
		case policy.Unsettled:
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(policy.Settle / 2):
		}
	}
	err := errors.New("the rules folder keeps changing; the old rules stay in force until it does not")
	h.log.Warn("the rules were not reloaded", "error", err)
	return err
}

// doubtRules tells the operator which of the rules in force deny every call that they match.
func (h *Host) doubtRules() {
	if err := h.policy.live.Current().Doubts(); err != nil {
		h.log.Warn("there are rules that deny every call they match: their values can never be right", "error", err)
	}
}

func (h *Host) lookAtRules(ctx context.Context, again bool) policy.Look {
	before := h.policy.live.Current()
	look := h.policy.live.Look(ctx, h.clock(), again)
	now := h.policy.live.Current()
	note := Note{
		Action: "policy.reload", TargetKind: "policy", Target: now.Revision(),
		Detail: map[string]any{"revision": now.Revision(), "files": len(now.Files)},
	}
	switch look {
	case policy.Taken:
		h.policy.taken.Add(1)
		note.Detail["previous"] = before.Revision()
		h.log.Info("the rules were reloaded", "revision", now.Revision(), "previous", before.Revision(), "files", len(now.Files))
		h.doubtRules()
	case policy.Refused:
		h.policy.refused.Add(1)
		why := h.policy.live.Failed().Err.Error()
		note.Failed, note.Reason = true, "rules_refused"
		note.Detail["error"] = clip(why, maxErrorText)
		h.log.Error("the rules folder cannot be used; the old rules stay in force", "revision", now.Revision(), "error", why)
	default:
		return look
	}
	if err := h.Note(ctx, note); err != nil {
		h.log.Error("the reload of the rules could not be audited", "error", err)
	}
	return look
}

// Policy is the set of rules in force.
type Policy struct {
	Revision string       `json:"revision"`
	LoadedAt Time         `json:"loaded_at"`
	Files    []PolicyFile `json:"files"` // of the operator's folder, by name
	// Refused is there while the folder's present contents are not in force.
	Refused *PolicyRefused `json:"refused,omitempty"`
}

// PolicyFile is one module of the operator.
type PolicyFile struct {
	Name   string `json:"name"`
	Digest string `json:"digest"`
	Bytes  int    `json:"bytes"`
}

// PolicyRefused says why a changed folder was not taken: a line for each problem, with file and line number.
type PolicyRefused struct {
	At       Time     `json:"at"`
	Problems []string `json:"problems"`
}

// GetPolicy tells which rules are in force.
func (h *Host) GetPolicy(ctx context.Context, a Actor) (Policy, error) {
	if err := h.allow(ctx, a, "policy.read", policy.Resource{Kind: "policy", Tenant: a.Tenant}); err != nil {
		return Policy{}, h.refused(ctx, a, "policy.read", "tenant", a.Tenant, err)
	}
	now, failed := h.policy.live.Current(), h.policy.live.Failed()
	out := Policy{Revision: now.Revision(), LoadedAt: Time(now.At), Files: []PolicyFile{}}
	for _, f := range now.Files {
		out.Files = append(out.Files, PolicyFile{Name: f.Name, Digest: f.Digest, Bytes: f.Bytes})
	}
	if failed != nil {
		out.Refused = &PolicyRefused{At: Time(failed.At), Problems: strings.Split(failed.Err.Error(), "\n")}
	}
	return out, nil
}
