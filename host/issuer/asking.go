package issuer

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"sync"
	"time"

	"github.com/pawlhost/pawl/host"
)

// maxAnswer bounds what the provider may answer.
const maxAnswer = 1 << 20

// wholeAnswers gives 200 with the whole body, or an error that says that the provider is away: half an answer, an answer without
// end, and a page of an outage are all the same.
type wholeAnswers struct{ next http.RoundTripper }

// RoundTrip implements http.RoundTripper.
func (w *wholeAnswers) RoundTrip(r *http.Request) (*http.Response, error) {
	resp, err := w.next.RoundTrip(r)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", host.ErrIssuerAway, err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer+1))
	switch {
	case err != nil:
		return nil, fmt.Errorf("%w: %w", host.ErrIssuerAway, err)
	case len(body) > maxAnswer:
		return nil, fmt.Errorf("%w: it answers more than %d bytes", host.ErrIssuerAway, maxAnswer)
	case resp.StatusCode != http.StatusOK:
		return nil, fmt.Errorf("%w: it answers %s", host.ErrIssuerAway, resp.Status)
	}
	resp.Body = io.NopCloser(bytes.NewReader(body))
	return resp, nil
}

// CloseIdleConnections lets http.Client close what is below.
func (w *wholeAnswers) CloseIdleConnections() {
	if c, ok := w.next.(interface{ CloseIdleConnections() }); ok {
		c.CloseIdleConnections()
	}
}

// paced asks at most once in a while, whatever tokens come: each token with an unknown key, or a wrong signature, makes the library ask.
// In between nobody knows: the keys that were given a moment ago may have changed since, and a provider that was away is away.
type paced struct {
	next  http.RoundTripper
	every time.Duration

	mu   sync.Mutex
	last time.Time
	err  error
	ids  map[string]bool // of the keys in the last answer
}

// gave reports whether the last answer had a key of the id: then a token that names it is of that key or of none.
func (p *paced) gave(id string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.ids[id]
}

// RoundTrip implements http.RoundTripper.
func (p *paced) RoundTrip(r *http.Request) (*http.Response, error) {
	p.mu.Lock()
	if err := p.err; !p.last.IsZero() && time.Since(p.last) < p.every {
		p.mu.Unlock()
		if err != nil {
			return nil, err
		}
		return nil, host.ErrIssuerPaced
	}
	p.last, p.err = time.Now(), nil
	p.mu.Unlock()
	resp, err := p.next.RoundTrip(r)
	var answer struct {
		Keys []struct{ Kid string }
	}
	if err == nil {
		body, _ := io.ReadAll(resp.Body) // whole already: it cannot fail
		resp.Body = io.NopCloser(bytes.NewReader(body))
		_ = json.Unmarshal(body, &answer) // the library tells what is wrong with it
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.err = err; err == nil {
		p.ids = map[string]bool{}
		for _, k := range answer.Keys {
			p.ids[k.Kid] = k.Kid != ""
		}
	}
	return resp, err
}
