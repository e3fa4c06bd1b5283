// Package api puts the host on the wire: REST, SSE and WebSocket over one route table. It only translates: every rule is
// the host's, and an answer to a pause enters by the same door whichever protocol carried it.
//
// A request goes through fixed steps, so that what a client learns does not depend on the route: the body's length is held to
// its cap (413), the caller is authenticated (401) and rate limited (429), the body is read, the route is found (404, 405); then
// the host looks for the target (404), asks policy (403), and only then has the body parsed (400).
package api

import (
	"bufio"
	"context"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"runtime/debug"
	"strings"
	"sync"
	"time"

	"github.com/pawlhost/pawl/host"
	"github.com/pawlhost/pawl/host/telemetry"
)

// Options configure a Server. The zero value serves with rate limits, an authorised /metrics, and no foreign origin.
type Options struct {
	// Log receives one line a request, without bodies, queries or credentials. Nil: slog.Default().
	Log *slog.Logger
	// Dev lifts the rate limits.
	Dev bool
	// Origins are the origins of other sites ("https://chat.example") whose pages may open a WebSocket.
	Origins []string
	// MetricsOpen serves /metrics without a credential.
	MetricsOpen bool
	// Version is shown by /metrics and /openapi.json.
	Version string
	// Now is the clock of tickets. Nil: time.Now.
	Now func() time.Time

	// HelloTimeout is how long a WebSocket may stay unauthenticated. Zero: 10 s.
	HelloTimeout time.Duration
	// WriteTimeout is how long a client may take nothing before it counts as stuck. Zero: 10 s.
	WriteTimeout time.Duration
	// Linger is how long a WebSocket that was sent its close frame has to answer it. Zero: 5 s.
	Linger time.Duration
	// Heartbeat is the pace of SSE comments. Zero: 15 s.
	Heartbeat time.Duration
	// KeepAlive is the pace of WebSocket pings; a peer silent for three of them is dropped. Zero: 30 s.
	KeepAlive time.Duration
	// Rate and Burst are requests a second of one key. Zero: 100 and 200.
	Rate  float64
	Burst int
}

// Server serves the host. It is an http.Handler; all its methods are safe for concurrent use.
type Server struct {
	host     *host.Host
	opts     Options
	log      *slog.Logger
	routes   *router
	limits   *limits
	tickets  tickets
	sockets  *hub
	metrics  *metrics
	origins  map[string]bool
	draining context.Context // ends when Drain begins
	drain    context.CancelFunc

	mu      sync.Mutex
	waiting sync.WaitGroup // requests that wait or stream; Add under mu and before draining
}

// New makes a server for h.
func New(h *host.Host, o Options) *Server {
	if o.Log == nil {
		o.Log = slog.Default()
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	orDefault(&o.HelloTimeout, 10*time.Second)
	orDefault(&o.WriteTimeout, 10*time.Second)
	orDefault(&o.Linger, 5*time.Second)
	orDefault(&o.Heartbeat, 15*time.Second)
	orDefault(&o.KeepAlive, 30*time.Second)
	if o.Rate <= 0 {
		o.Rate = 100
	}
	if o.Burst <= 0 {
		o.Burst = 200
	}
	s := &Server{host: h, opts: o, log: o.Log, origins: map[string]bool{}}
	for _, origin := range o.Origins {
		s.origins[strings.ToLower(strings.TrimSuffix(origin, "/"))] = true
	}
	s.draining, s.drain = context.WithCancel(context.Background())
	s.routes = newRouter(routes())
	s.limits = newLimits(o.Rate, o.Burst)
	s.tickets.now = o.Now
	s.sockets = newHub(s)
	s.metrics = newMetrics(s)
	return s
}

func orDefault(d *time.Duration, v time.Duration) {
	if *d <= 0 {
		*d = v
	}
}

// Drain ends what would otherwise not end: WebSockets are closed with 1001, event streams end, waits answer with the run as
// it is, and new ones get 503. It returns when they have ended, or, after cutting them off, when ctx is done. Call it
// before http.Server.Shutdown, which waits for requests and knows nothing of WebSockets.
func (s *Server) Drain(ctx context.Context) {
	s.mu.Lock()
	s.drain()
	s.mu.Unlock()
	s.sockets.drain(ctx)
	done := make(chan struct{})
	go func() { s.waiting.Wait(); close(done) }()
	select {
	case <-done:
	case <-ctx.Done():
	}
}

// hold registers a request that may last, and returns a context that ends with it or with Drain.
func (s *Server) hold(ctx context.Context) (context.Context, func(), error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.draining.Err() != nil {
		return nil, nil, errDraining()
	}
	s.waiting.Add(1)
	ctx, cancel := context.WithCancel(ctx)
	stop := context.AfterFunc(s.draining, cancel)
	return ctx, func() { stop(); cancel(); s.waiting.Done() }, nil
}

func errDraining() *host.Error {
	return &host.Error{Code: host.CodeUnavailable, Detail: "the host is shutting down: try again in a moment"}
}

// request is a request on its way to a handler.
type request struct {
	*http.Request
	trace  string // the id of its trace, in hex
	span   telemetry.SpanContext
	parent telemetry.SpanContext // the caller's
	route  *route
	params map[string]string
	body   []byte
	actor  host.Actor
}

func (r *request) query() url.Values { return r.URL.Query() }

// ServeHTTP implements http.Handler.
func (s *Server) ServeHTTP(w http.ResponseWriter, hr *http.Request) {
	start := time.Now()
	_ = http.NewResponseController(w).SetWriteDeadline(time.Time{}) // the last answer on this connection left one
	r := s.newRequest(hr)
	rec := &recorder{ResponseWriter: w}
	defer func() {
		if p := recover(); p != nil {
			if p == http.ErrAbortHandler {
				panic(p)
			}
			s.logPanic(p, r.trace, r.name())
			if rec.status == 0 {
				fail(rec, errors.New("panic"), r.trace)
			} else {
				panic(http.ErrAbortHandler) // half an answer must not look like a whole one
			}
		}
		took := time.Since(start)
		s.metrics.request(r.name(), hr.Method, rec.status, took)
		s.traced(r, rec.status, start)
		s.log.Info("request", "method", hr.Method, "route", r.name(), "status", rec.status, "ms", took.Milliseconds(), "bytes", rec.bytes,
			"tenant", r.actor.Tenant, "principal", r.actor.ID, "trace_id", r.trace)
	}()
	h := rec.Header()
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Cache-Control", "no-store")
	h.Set("Content-Security-Policy", "default-src 'none'; frame-ancestors 'none'")
	h.Set("Referrer-Policy", "no-referrer")
	if err := s.serve(rec, r); err != nil {
		if host.CodeOf(err) == host.CodeInternal && !errors.Is(err, context.Canceled) && !isIJSON(err) {
			s.log.Error("request failed", "trace_id", r.trace, "route", r.name(), "error", err)
		}
		if rec.status == 0 {
			fail(rec, r.ofQuery(err), r.trace)
		}
	}
}

// ofQuery says of a problem of a request without a body that its pointer means a query parameter.
func (r *request) ofQuery(err error) error {
	e, ok := errors.AsType[*host.Error](err)
	if !ok || e.Pointer == "" || r.Method != http.MethodGet && r.Method != http.MethodHead {
		return err
	}
	of := *e
	of.Parameter = strings.NewReplacer("~1", "/", "~0", "~").Replace(e.Pointer[1:])
	return &of
}

func (s *Server) serve(w *recorder, r *request) (err error) {
	var allow []string
	r.route, r.params, allow = s.routes.find(r.Method, r.URL.EscapedPath())
	if err := checkLength(w, r.Request); err != nil {
		return err
	}
	// Below /v1 nothing is told to strangers, not even which routes exist.
	needsKey := strings.HasPrefix(r.URL.Path, "/v1/") || r.URL.Path == "/v1"
	if r.route != nil {
		needsKey = r.route.auth == byKey || r.route.auth == byKeyUnlessOpen && !s.opts.MetricsOpen
	}
	if needsKey {
		if refused := s.authenticate(r); refused != nil {
			if r.ContentLength < 0 { // of unknown length: too large comes before who it is
				if _, err := readBody(w, r.Request, false); err != nil {
					return err
				}
			}
			return refused
		}
		if err := s.limit(w, r.actor); err != nil {
			return err
		}
		leave, err := s.concurrent(w, r.actor)
		if err != nil {
			return err
		}
		defer leave()
		if r.body, err = readBody(w, r.Request, true); err != nil {
			return err
		}
	}
	switch {
	case r.route != nil:
		if r.route.auth == byKey && r.route.stream == "" {
			r.Request = r.WithContext(s.host.OneRuleset(r.Context()))
		}
		return r.route.serve(s, w, r)
	case allow != nil:
		w.Header().Set("Allow", strings.Join(allow, ", "))
		return &host.Error{Code: codeMethodNotAllowed, Detail: "this route knows " + strings.Join(allow, ", ")}
	}
	return &host.Error{Code: host.CodeNotFound, Detail: "no such route: /openapi.json lists them"}
}

// authenticate sets r.actor from the Authorization header.
func (s *Server) authenticate(r *request) error {
	key, ok := bearer(r.Header)
	if !ok {
		return errNoKey()
	}
	var err error
	r.actor, err = s.host.Authenticate(r.Context(), key)
	return err
}

func errNoKey() *host.Error {
	return &host.Error{Code: host.CodeUnauthenticated, Detail: "send an API key: Authorization: Bearer KEY"}
}

// bearer reads the Authorization header: exactly one, of the Bearer scheme.
func bearer(h http.Header) (string, bool) {
	v := h.Values("Authorization")
	if len(v) != 1 {
		return "", false
	}
	scheme, key, ok := strings.Cut(v[0], " ")
	key = strings.TrimSpace(key)
	return key, ok && strings.EqualFold(scheme, "Bearer") && key != ""
}

func (r *request) name() string {
	if r.route == nil {
		return "unknown"
	}
	return r.route.path
}

// logPanic logs the stack, which holds no body and no token.
func (s *Server) logPanic(p any, trace, route string) {
	s.log.Error("panic", "trace_id", trace, "route", route, "panic", panicText(p), "stack", string(debug.Stack()))
}

// panicText keeps values of unknown types out of the log: a panic may carry a request.
func panicText(p any) string {
	switch v := p.(type) {
	case error:
		return v.Error()
	case string:
		return v
	}
	return "value of another type"
}

// recorder notes what was answered, and lets handlers flush, hijack and set deadlines.
type recorder struct {
	http.ResponseWriter
	status int
	bytes  int64
}

func (w *recorder) Unwrap() http.ResponseWriter { return w.ResponseWriter }

func (w *recorder) WriteHeader(status int) {
	if w.status == 0 {
		w.status = status
	}
	w.ResponseWriter.WriteHeader(status)
}

func (w *recorder) Write(b []byte) (int, error) {
	if w.status == 0 {
		w.status = http.StatusOK
	}
	n, err := w.ResponseWriter.Write(b)
	w.bytes += int64(n)
	return n, err
}

// Hijack implements http.Hijacker, which the WebSocket library asks for by type.
func (w *recorder) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	c, rw, err := http.NewResponseController(w.ResponseWriter).Hijack()
	if err == nil {
		w.status = http.StatusSwitchingProtocols
	}
	return c, rw, err
}
