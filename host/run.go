package host

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/pawlhost/pawl/store"
)

// ref names a run to drive.
type ref struct {
	tenant, id string
	// gated tells that this process has just put the pending batch to policy, so that driving it need not ask again.
	gated bool
}

// run is a run in memory: the head, its live frames with their batches, its pause if one is open, and what it pinned. A step changes it and
// the change is committed; after a lost race the whole value is thrown away and loaded again.
type run struct {
	store.Run
	key       store.Key
	ctx       store.RunContext
	agent     *agentVersion
	frames    []*frame          // the root first, a child after its parent
	pause     *store.Pause      // the open pause, or the last one
	approvals []*store.Approval // of that pause
	grants    []store.Grant
}

// subject is the user the run acts for.
func (r *run) subject() string {
	if r.Subject != "" {
		return r.Subject
	}
	return r.CreatedBy
}

// load reads a run with its current batch in one consistent view; store.ErrNotFound for an unknown or foreign one.
func (h *Host) load(ctx context.Context, tenant, id string) (*run, error) {
	r := &run{key: runKey(tenant, id)}
	err := h.store.View(ctx, func(rd store.Reader) error { return r.read(rd, tenant, id) })
	if err != nil {
		return nil, err
	}
	return r, h.bind(ctx, r)
}

// bind gives a run the agent version that it pinned.
func (h *Host) bind(ctx context.Context, r *run) error {
	agent, err := h.agentVersion(ctx, r.Tenant, r.Agent, r.AgentVersion)
	if err != nil {
		return err
	}
	return r.bind(agent)
}

func (r *run) read(rd store.Reader, tenant, id string) error {
	r.key = runKey(tenant, id)
	head, err := readHead(rd, tenant, id)
	if err != nil {
		return err
	}
	r.Run = head
	if err := get(rd, r.key.With("ctx"), &r.ctx); err != nil {
		return err
	}
	if r.HasGrants {
		var g store.Grants
		if err := get(rd, r.key.With("grants"), &g); err != nil {
			return err
		}
		r.grants = g.List
	}
	if err := r.readFrames(rd); err != nil {
		return err
	}
	if r.PauseID == "" {
		return nil
	}
	return r.readPause(rd)
}

func (r *run) readPause(rd store.Reader) error {
	r.pause = new(store.Pause)
	if err := get(rd, pauseKey(r.key, r.PauseID), r.pause); err != nil {
		return err
	}
	for _, aid := range r.pause.Approvals {
		a := new(store.Approval)
		if err := get(rd, approvalKey(r.key, aid), a); err != nil {
			return err
		}
		r.approvals = append(r.approvals, a)
	}
	return nil
}

// readHead reads the head of a run. Index keys and caches may be stale; this is the primary record that readers verify.
func readHead(rd store.Reader, tenant, id string) (store.Run, error) {
	var head store.Run
	it, err := rd.Get(runKey(tenant, id))
	if err != nil {
		return head, err
	}
	if err := store.Decode(it.Value, &head); err != nil {
		return head, err
	}
	head.Tenant, head.ID, head.Version = tenant, id, it.Version
	return head, nil
}

// get reads and decodes one record.
func get(rd store.Reader, k store.Key, record any) error {
	it, err := rd.Get(k)
	if err != nil {
		return err
	}
	return store.Decode(it.Value, record)
}

// call returns the call of a current batch that an approval is about.
func (r *run) call(a *store.Approval) *store.Call {
	for c := range r.calls() {
		if c.ID == a.CallID {
			return c
		}
	}
	return nil
}

// inlineLimit is the size from which a body is a blob.
const inlineLimit = 64 << 10

// body stores raw inline, or as a blob that is durable before the commit which names it.
func (h *Host) body(ctx context.Context, tenant string, raw json.RawMessage) (store.Body, error) {
	if len(raw) <= inlineLimit {
		return store.Body{Inline: raw}, nil
	}
	return h.blob(ctx, tenant, raw)
}

func (h *Host) blob(ctx context.Context, tenant string, raw json.RawMessage) (store.Body, error) {
	d, err := h.store.PutBlob(ctx, tenant, raw, h.now())
	if err != nil {
		return store.Body{}, coded(fmt.Errorf("store a large body: %w", err))
	}
	return store.Body{Blob: d, Length: len(raw)}, nil
}

// maxInline bounds the arguments that the open calls of a run hold in their records: a step that ends a run writes all of those records
// again, and must fit a commit.
const maxInline = 1 << 20

// inlined is body for one of many texts that one commit may have to hold together; used counts those that are inline.
func (h *Host) inlined(ctx context.Context, tenant string, raw json.RawMessage, used *int) (store.Body, error) {
	if len(raw) > inlineLimit || len(raw) > smallBody && *used+len(raw) > maxInline {
		return h.blob(ctx, tenant, raw)
	}
	*used += len(raw)
	return store.Body{Inline: raw}, nil
}

// smallBody is what is not worth a blob.
const smallBody = 256

// inline is what the open calls hold in their records.
func (r *run) inline() (n int) {
	for c := range r.calls() {
		n += len(c.Arguments.Inline) + len(c.Edited.Inline)
	}
	return n
}

// text returns the bytes of a body.
func (h *Host) text(ctx context.Context, tenant string, b store.Body) (json.RawMessage, error) {
	if b.Blob == "" {
		return b.Inline, nil
	}
	return h.store.Blob(ctx, tenant, b.Blob)
}

// runError turns the store's absence into the wire's: unknown and foreign look alike.
func runError(err error) error {
	if errors.Is(err, store.ErrNotFound) {
		return errNotFound("run")
	}
	return err
}
