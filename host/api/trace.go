package api

import (
	"context"
	"net/http"
	"strings"
	"time"

	"github.com/pawlhost/pawl/host"
	"github.com/pawlhost/pawl/host/telemetry"
)

// newRequest gives a request its span: in the caller's trace, if it sent one traceparent (W3C Trace Context) that is well formed, else
// in a trace of its own. Problems, log lines and audit rows carry its id, also where spans are not exported.
func (s *Server) newRequest(hr *http.Request) *request {
	r := &request{Request: hr}
	if sent := hr.Header["Traceparent"]; len(sent) == 1 {
		r.parent = telemetry.Remote(sent[0])
	}
	r.span = s.host.Telemetry().Begin(r.parent, "request")
	r.trace = r.span.TraceID().String()
	r.Request = hr.WithContext(telemetry.With(hr.Context(), r.span))
	return r
}

// traced writes the span of a request that was answered. Streams and sockets have none, since they last as long as their clients;
// what a socket's frame does has its own.
func (s *Server) traced(r *request, status int, began time.Time) {
	if r.route == nil || r.route.auth == itself || r.route.stream != "" || !strings.HasPrefix(r.route.path, "/v1/") {
		return
	}
	s.host.Telemetry().Emit(telemetry.Span{
		Name: r.Method + " " + r.route.path, Server: true, Context: r.span, Parent: r.parent, Start: began, End: time.Now(), Failed: status >= 500,
		Attrs: append(who(r.actor), telemetry.String("http.request.method", r.Method), telemetry.String("http.route", r.route.path),
			telemetry.Int("http.response.status_code", status)),
	})
}

func who(a host.Actor) []telemetry.Attr {
	if a.ID == "" {
		return nil
	}
	return []telemetry.Attr{telemetry.String("pawl.tenant", a.Tenant), telemetry.String("pawl.principal", a.ID)}
}

// traceFrame gives a frame that decides something a span, which done writes.
func (c *socket) traceFrame(kind string) (ctx context.Context, done func(error)) {
	span := c.s.host.Telemetry().Begin(telemetry.SpanContext{}, "request")
	began := time.Now()
	return telemetry.With(c.ctx, span), func(err error) {
		code := string(host.CodeOf(err))
		attrs := append(who(c.actor), telemetry.String("http.route", "/v1/ws"), telemetry.String("pawl.ws.frame", kind))
		if code != "" {
			attrs = append(attrs, telemetry.String("error.type", code))
		}
		c.s.host.Telemetry().Emit(telemetry.Span{
			Name: "WS " + kind, Server: true, Context: span, Start: began, End: time.Now(), Failed: code == string(host.CodeInternal), Attrs: attrs,
		})
	}
}
