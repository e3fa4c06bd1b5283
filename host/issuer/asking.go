package issuer

import (
	"bytes"
	"errors"
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
// In between, the last answer stands: keys that were given a moment ago are the keys, and a provider that was away is away.
type paced struct {
	next  http.RoundTripper
	every time.Duration

	mu   sync.Mutex
	last time.Time
	err  error
}

var errTooSoon = errors.New("the keys were asked for a moment ago")

// RoundTrip implements http.RoundTripper.
func (p *paced) RoundTrip(r *http.Request) (*http.Response, error) {
	p.mu.Lock()
	if err := p.err; !p.last.IsZero() && time.Since(p.last) < p.every {
		p.mu.Unlock()
		if err != nil {
			return nil, err
		}
		return nil, errTooSoon
	}
	p.last, p.err = time.Now(), nil
	p.mu.Unlock()
	resp, err := p.next.RoundTrip(r)
	p.mu.Lock()
	defer p.mu.Unlock()
	p.err = err
	return resp, err
}
