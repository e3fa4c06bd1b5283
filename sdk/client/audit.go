package client

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"iter"
	"net/http"
	"net/url"
	"strconv"
	"time"
)

// AuditRow is one row of the tenant's audit log. Rows of before the log was chained have no hashes.
type AuditRow struct {
	Tenant     string         `json:"tenant"`
	Seq        uint64         `json:"seq"`
	PrevHash   string         `json:"prev_hash,omitempty"`
	Hash       string         `json:"hash,omitempty"`
	Time       time.Time      `json:"time"`
	ActorKind  string         `json:"actor_kind"`
	ActorID    string         `json:"actor_id"` // "" for the host itself
	Action     string         `json:"action"`
	TargetKind string         `json:"target_kind"`
	TargetID   string         `json:"target_id"`
	Outcome    string         `json:"outcome"` // ok, denied or error
	Reason     string         `json:"reason,omitempty"`
	TraceID    string         `json:"trace_id,omitempty"`
	Detail     map[string]any `json:"detail"`
}

// AuditFilter selects rows; zero members select all. Rows count from From on, and up to but not including To.
type AuditFilter struct {
	Action, Actor, Target string
	From, To              time.Time
	// After is the cursor of a list (its next), or the number of a row.
	After string
	// Limit is the most rows of a page of a list.
	Limit int
}

func (f AuditFilter) query() url.Values {
	q := url.Values{}
	for name, v := range map[string]string{"action": f.Action, "actor": f.Actor, "target": f.Target, "after": f.After} {
		if v != "" {
			q.Set(name, v)
		}
	}
	for name, t := range map[string]time.Time{"from": f.From, "to": f.To} {
		if !t.IsZero() {
			q.Set(name, t.UTC().Format(time.RFC3339Nano))
		}
	}
	if f.Limit > 0 {
		q.Set("limit", strconv.Itoa(f.Limit))
	}
	return q
}

// Audit lists rows, oldest first. next is "" on the last page; a page may be short, or empty, and have a next one all the same.
func (c *Client) Audit(ctx context.Context, f AuditFilter) (rows []AuditRow, next string, err error) {
	var out struct {
		Rows []AuditRow
		Next string
	}
	_, err = c.do(ctx, call{method: http.MethodGet, path: "/v1/audit", query: f.query()}, &out)
	return out.Rows, out.Next, err
}

// AuditHead is how far the audit log is. Hash vouches for every chained row up to Seq: who keeps it elsewhere can tell later that
// none of them was changed or cut off.
type AuditHead struct {
	Seq  uint64    `json:"seq"`
	Hash string    `json:"hash"`
	Time time.Time `json:"time"`
}

// AuditHead returns the head of the tenant's audit log.
func (c *Client) AuditHead(ctx context.Context) (h AuditHead, err error) {
	_, err = c.do(ctx, call{method: http.MethodGet, path: "/v1/audit/head"}, &h)
	return h, err
}

// AuditExport yields a stretch of the audit log as it is, one JSON object a row, without a hole: what the hashes of the rows are
// checked on. Of the filter From, To and After count. The last pair carries the error, if there is one: an export that breaks off has one.
func (c *Client) AuditExport(ctx context.Context, f AuditFilter) iter.Seq2[json.RawMessage, error] {
	return func(yield func(json.RawMessage, error) bool) {
		f.Action, f.Actor, f.Target, f.Limit = "", "", "", 0
		resp, err := c.send(ctx, call{method: http.MethodGet, path: "/v1/audit/export", query: f.query()})
		if err != nil {
			yield(nil, err)
			return
		}
		defer resp.Body.Close()
		in := bufio.NewReaderSize(resp.Body, 64<<10)
		for {
			line, err := in.ReadBytes('\n')
			switch {
			case err == nil:
				if !yield(bytes.TrimSuffix(line, []byte("\n")), nil) {
					return
				}
				continue
			case errors.Is(err, io.EOF) && len(line) == 0:
				return
			case errors.Is(err, io.EOF):
				err = io.ErrUnexpectedEOF
			}
			yield(nil, fmt.Errorf("pawl: the export broke off: %w", err))
			return
		}
	}
}
