package api

import (
	"errors"
	"io"
	"net/http"
	"net/url"
	"time"

	"github.com/pawlhost/pawl/host"
)

type rowList struct {
	Rows []host.AuditRow `json:"rows"`
	Next string          `json:"next,omitempty"`
}

// ndjson is the type of JSON lines.
const ndjson = "application/x-ndjson"

func audit(s *Server, w http.ResponseWriter, r *request) error {
	rows, next, err := s.host.Audit(r.Context(), r.actor, func() (host.AuditFilter, error) {
		q := r.query()
		f, err := auditStretch(q)
		if err != nil {
			return f, err
		}
		f.Action, f.Actor, f.Target = q.Get("action"), q.Get("actor"), q.Get("target")
		p, err := r.page()
		f.Limit = p.Limit
		return f, err
	})
	return answer(w, http.StatusOK, rowList{listOf(rows), next}, err)
}

// auditStretch reads the part of a filter that lists and exports share.
func auditStretch(q url.Values) (f host.AuditFilter, err error) {
	if f.After = q.Get("after"); f.After == "" {
		f.After = q.Get("cursor") // as every other list
	}
	for _, m := range []struct {
		name string
		to   *host.Time
	}{{"from", &f.From}, {"to", &f.To}} {
		v := q.Get(m.name)
		if v == "" {
			continue
		}
		t, err := time.Parse(time.RFC3339, v)
		if err != nil {
			return f, invalid("/"+m.name, m.name+" must be a time like 2026-01-31T12:00:00.000Z (a + in it is %2B)")
		}
		*m.to = host.Time(t)
	}
	return f, nil
}

func auditHead(s *Server, w http.ResponseWriter, r *request) error {
	head, err := s.host.AuditHead(r.Context(), r.actor)
	return answer(w, http.StatusOK, head, err)
}

// auditExport streams rows as JSON lines. Each write has its own deadline, and between two nothing of the store is held. A stream that
// cannot go on is cut off in a way that no client takes for its end.
func auditExport(s *Server, w http.ResponseWriter, r *request) error {
	ctx, release, err := s.hold(r.Context())
	if err != nil {
		return err
	}
	defer release()
	ctx, stop := s.untilRevoked(ctx, r.actor)
	defer stop()
	if err := s.authenticate(r); err != nil { // again: the key may have been revoked before it was watched
		return err
	}
	e, err := s.host.ExportAudit(ctx, r.actor, func() (host.AuditFilter, error) {
		if err := r.known(); err != nil {
			return host.AuditFilter{}, err
		}
		return auditStretch(r.query())
	})
	if err != nil {
		return err
	}
	rows, err := e.Next(ctx)
	if err != nil && !errors.Is(err, io.EOF) {
		return err
	}
	h := w.Header()
	h.Set("Content-Type", ndjson)
	h.Set("Connection", "close") // its write deadline must not outlive it
	w.WriteHeader(http.StatusOK)
	rc := http.NewResponseController(w)
	for ; err == nil; rows, err = e.Next(ctx) {
		for _, row := range rows {
			line, eerr := encode(row)
			if eerr != nil {
				return s.cut(r, eerr)
			}
			_ = rc.SetWriteDeadline(time.Now().Add(answerTimeout)) // a recorder in a test has none
			if _, werr := w.Write(line); werr != nil {
				return nil // the client is gone or stuck
			}
		}
		if ctx.Err() != nil {
			return s.cut(r, ctx.Err())
		}
	}
	if !errors.Is(err, io.EOF) {
		return s.cut(r, err)
	}
	return nil
}

// cut breaks an answer off that has begun, so that its client sees that it is not whole.
func (s *Server) cut(r *request, err error) error {
	s.log.Warn("an answer was cut off", "trace_id", r.trace, "route", r.name(), "error", err)
	panic(http.ErrAbortHandler)
}
