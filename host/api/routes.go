package api

import (
	"net/http"
	"net/url"
	"slices"
	"strings"

	"github.com/pawlhost/pawl/host"
)

type authKind int

const (
	byKey           authKind = iota // the Authorization header, before anything else
	open                            // nobody asks
	byKeyUnlessOpen                 // as the configuration says
	itself                          // the handler (WebSocket: other credentials, and the origin comes first)
)

// route is one method of one path: what serves it, and what /openapi.json says about it.
type route struct {
	method, path string
	auth         authKind
	serve        func(s *Server, w http.ResponseWriter, r *request) error

	summary string
	query   []string    // names of query parameters
	body    any         // a value of the request body's type; nil: none
	needs   []string    // its required members
	idem    bool        // takes an Idempotency-Key
	prefer  bool        // takes Prefer: wait
	answers map[int]any // status → a value of the answer's type; nil: no body. Problems are added.
	errors  []int       // the problems' statuses beyond 400, 401, 403, 404, 413, 429, 500 and 503
	stream  string      // content type of an answer that is not JSON
}

var pageQuery = []string{"limit", "cursor"}

// routes is the whole wire. The router, /openapi.json and the tests all read it.
func routes() []route {
	return []route{
		{method: "POST", path: "/v1/runs", serve: createRun, summary: "Start a run", body: host.NewRun{}, needs: []string{"agent"}, idem: true, prefer: true, answers: map[int]any{201: host.Run{}}, errors: []int{409, 422, 503, 507}},
		{method: "GET", path: "/v1/runs", serve: listRuns, summary: "List runs, oldest first, or order=newest", query: append([]string{"state", "agent", "order"}, pageQuery...), answers: map[int]any{200: runList{}}},
		{method: "GET", path: "/v1/runs/{run}", serve: getRun, summary: "Inspect a run; nothing runs", answers: map[int]any{200: host.Run{}}},
		{method: "GET", path: "/v1/runs/{run}/trajectory", serve: trajectory, summary: "The messages of a run", answers: map[int]any{200: messageList{}}},
		{method: "POST", path: "/v1/runs/{run}/calls", serve: propose, summary: "Propose a turn (external planner)", body: host.Batch{}, needs: []string{"turn", "calls"}, idem: true, answers: map[int]any{200: host.Run{}}, errors: []int{409, 422, 503, 507}},
		{method: "POST", path: "/v1/runs/{run}/finish", serve: finish, summary: "End a run with its output (external planner)", body: host.Final{}, needs: []string{"turn", "output"}, idem: true, answers: map[int]any{200: host.Run{}}, errors: []int{409, 422, 503, 507}},
		{method: "POST", path: "/v1/runs/{run}/input", serve: input, summary: "Give a waiting run a further message; it may take the place of an open pause", body: host.NewInput{}, needs: []string{"input"}, idem: true, answers: map[int]any{200: host.Run{}}, errors: []int{409, 410, 422, 503, 507}},
		{method: "POST", path: "/v1/runs/{run}/cancel", serve: cancelRun, summary: "Cancel a run; again is fine", body: nothing{}, answers: map[int]any{200: host.Run{}}, errors: []int{409, 503, 507}},
		{method: "POST", path: "/v1/runs/{run}/token", serve: rotateToken, summary: "Give the open pause a new resume token; the old one stops working", body: nothing{}, answers: map[int]any{200: host.Run{}}, errors: []int{409, 410, 503, 507}},
		{method: "GET", path: "/v1/runs/{run}/approvals", serve: runApprovals, summary: "The approvals of a run", answers: map[int]any{200: approvalList{}}},
		{method: "POST", path: "/v1/runs/{run}/approvals", serve: decide, summary: "Decide every pending approval of a run that you may decide", body: decisionsBody{}, needs: []string{"decisions"}, idem: true, answers: map[int]any{200: host.Run{}}, errors: []int{409, 410, 422, 503, 507}},
		{method: "GET", path: "/v1/runs/{run}/events", serve: runEvents, summary: "The events of a run, as server-sent events; 204 after its last one, so that an EventSource stops coming back", query: []string{"after"}, answers: map[int]any{200: nil, 204: nil}, errors: []int{410, 503}, stream: "text/event-stream"},
		{method: "GET", path: "/v1/approvals", serve: listApprovals, summary: "The queue of approvals", query: append([]string{"state"}, pageQuery...), answers: map[int]any{200: approvalList{}}},
		{method: "GET", path: "/v1/approvals/{approval}", serve: getApproval, summary: "One approval, whatever became of it", answers: map[int]any{200: host.Approval{}}},
		{method: "POST", path: "/v1/resume", serve: resume, summary: "Answer a pause by its one-time token", body: resumeBody{}, needs: []string{"resume_token"}, idem: true, answers: map[int]any{200: host.Run{}}, errors: []int{409, 410, 422, 503, 507}},
		{method: "GET", path: "/v1/tools", serve: listTools, summary: "The tools of this host, by name", query: pageQuery, answers: map[int]any{200: toolList{}}},
		{method: "POST", path: "/v1/tools/{tool}/call", serve: callTool, summary: "Call one tool, as a run of one call", body: host.DirectCall{}, needs: []string{"arguments"}, idem: true, answers: map[int]any{200: toolAnswer{}, 202: toolAnswer{}}, errors: []int{409, 422, 503, 507}},
		{method: "GET", path: "/v1/agents", serve: listAgents, summary: "List agents", query: pageQuery, answers: map[int]any{200: agentList{}}},
		{method: "GET", path: "/v1/agents/{name}", serve: getAgent, summary: "One agent", answers: map[int]any{200: host.Agent{}}},
		{method: "PUT", path: "/v1/agents/{name}", serve: saveAgent, summary: "Save an agent as its next version", body: host.AgentDoc{}, needs: []string{"planner", "tools"}, answers: map[int]any{200: host.Agent{}, 201: host.Agent{}}, errors: []int{409, 503, 507}},
		{method: "DELETE", path: "/v1/agents/{name}", serve: deleteAgent, summary: "Delete an agent; its runs keep their version", answers: map[int]any{204: nil}, errors: []int{409, 503, 507}},
		{method: "GET", path: "/v1/audit", serve: audit, summary: "The audit log, oldest first; a page may be short or empty and still have a next one", query: []string{"after", "action", "actor", "target", "from", "to", "limit"}, answers: map[int]any{200: rowList{}}},
		{method: "GET", path: "/v1/audit/head", serve: auditHead, summary: "How far the audit log is, and the hash that vouches for all of it: keep it elsewhere", answers: map[int]any{200: host.AuditHead{}}},
		{method: "GET", path: "/v1/audit/export", serve: auditExport, summary: "A stretch of the audit log as JSON lines, one AuditRow each: all rows from the first that is not before from up to the last that is before to", query: []string{"after", "from", "to"}, answers: map[int]any{200: nil}, errors: []int{503}, stream: ndjson},
		{method: "GET", path: "/v1/keys", serve: listKeys, summary: "List API keys, without their secrets", query: pageQuery, answers: map[int]any{200: keyList{}}},
		{method: "POST", path: "/v1/keys", serve: createKey, summary: "Create an API key; it is shown once", body: host.NewKey{}, needs: []string{"principal", "roles", "kind"}, idem: true, answers: map[int]any{201: host.Key{}}, errors: []int{409, 422, 503, 507}},
		{method: "DELETE", path: "/v1/keys/{id}", serve: revokeKey, summary: "Revoke an API key and close its sockets", answers: map[int]any{204: nil}, errors: []int{409, 503, 507}},
		{method: "GET", path: "/v1/principals", serve: listPrincipals, summary: "List the tenant's principals", query: pageQuery, answers: map[int]any{200: principalList{}}},
		{method: "GET", path: "/v1/principals/{id}", serve: getPrincipal, summary: "One principal", answers: map[int]any{200: host.Principal{}}},
		{method: "PUT", path: "/v1/principals/{id}", serve: savePrincipal, summary: "Make or change a principal; another role counts at once, a disabled one's sockets close", body: host.PrincipalDoc{}, needs: []string{"roles"}, answers: map[int]any{200: host.Principal{}, 201: host.Principal{}}, errors: []int{409, 503, 507}},
		{method: "DELETE", path: "/v1/principals/{id}", serve: removePrincipal, summary: "Remove a principal and revoke its keys", answers: map[int]any{204: nil}, errors: []int{409, 503, 507}},
		{method: "GET", path: "/v1/tenant", serve: getTenant, summary: "The caller's own tenant", answers: map[int]any{200: host.Tenant{}}},
		{method: "PATCH", path: "/v1/tenant", serve: changeTenant, summary: "Change the settings of the caller's own tenant", body: host.TenantChange{}, answers: map[int]any{200: host.Tenant{}}, errors: []int{409, 503, 507}},
		{method: "GET", path: "/v1/tenants", serve: listTenants, summary: "List the tenants of the host (for its operators)", query: pageQuery, answers: map[int]any{200: tenantList{}}},
		{method: "POST", path: "/v1/tenants", serve: createTenant, summary: "Make a tenant, and the key of its first owner (for operators)", body: host.NewTenant{}, needs: []string{"name"}, idem: true, answers: map[int]any{201: host.Tenant{}}, errors: []int{409, 422, 503, 507}},
		{method: "GET", path: "/v1/tenants/{name}", serve: getTenantOf, summary: "Any tenant (for operators)", answers: map[int]any{200: host.Tenant{}}},
		{method: "PATCH", path: "/v1/tenants/{name}", serve: changeTenantOf, summary: "Change the settings of any tenant, or disable it (for operators)", body: host.TenantChange{}, answers: map[int]any{200: host.Tenant{}}, errors: []int{409, 503, 507}},
		{method: "GET", path: "/v1/policy", serve: getPolicy, summary: "The rules in force, and why a changed folder was refused", answers: map[int]any{200: host.Policy{}}},
		{method: "POST", path: "/v1/policy/evaluate", serve: evaluate, summary: "Ask policy about a call; nothing runs", body: host.Evaluation{}, needs: []string{"agent", "call"}, answers: map[int]any{200: anyObject{}}},
		{method: "POST", path: "/v1/ws/ticket", serve: wsTicket, summary: "A one-time ticket for a browser's WebSocket", body: nothing{}, answers: map[int]any{201: Ticket{}}, errors: []int{503}},
		{method: "GET", path: "/v1/ws", auth: itself, serve: webSocket, summary: "Open a WebSocket (subprotocol pawl.v1)", answers: map[int]any{101: nil}, errors: []int{426, 503}},
		{method: "GET", path: "/healthz", auth: open, serve: healthz, summary: "Is the process alive", answers: map[int]any{200: status{}}},
		{method: "GET", path: "/readyz", auth: open, serve: readyz, summary: "Does the host take new runs", answers: map[int]any{200: status{}}, errors: []int{503, 507}},
		{method: "GET", path: "/metrics", auth: byKeyUnlessOpen, serve: serveMetrics, summary: "Metrics in Prometheus' text format", answers: map[int]any{200: nil}, stream: "text/plain"},
		{method: "GET", path: "/openapi.json", auth: open, serve: openAPI, summary: "This description", answers: map[int]any{200: anyObject{}}},
	}
}

// router finds routes. It is its own and not net/http's, because that one redirects unclean paths and answers 404 and 405
// itself, in plain text and before authentication.
type router struct {
	byLength map[int][]*route
}

func newRouter(rs []route) *router {
	t := &router{byLength: map[int][]*route{}}
	for i := range rs {
		n := strings.Count(rs[i].path, "/")
		t.byLength[n] = append(t.byLength[n], &rs[i])
	}
	return t
}

// find returns the route of a method and an escaped path. If only other methods match, it returns those.
func (t *router) find(method, path string) (*route, map[string]string, []string) {
	segments := strings.Split(path, "/")
	var allow []string
	for _, rt := range t.byLength[len(segments)-1] {
		params, ok := match(rt.path, segments)
		if !ok {
			continue
		}
		if rt.method == method || method == http.MethodHead && rt.method == http.MethodGet && rt.stream != "text/event-stream" && rt.stream != ndjson && rt.auth != itself {
			return rt, params, nil
		}
		if !slices.Contains(allow, rt.method) {
			allow = append(allow, rt.method)
		}
	}
	slices.Sort(allow)
	return nil, nil, allow
}

func match(pattern string, segments []string) (map[string]string, bool) {
	var params map[string]string
	i := 0
	for p := range strings.SplitSeq(pattern, "/") {
		got, err := url.PathUnescape(segments[i])
		i++
		switch {
		case err != nil:
			return nil, false
		case strings.HasPrefix(p, "{"):
			if got == "" {
				return nil, false
			}
			if params == nil {
				params = map[string]string{}
			}
			params[p[1:len(p)-1]] = got
		case p != got:
			return nil, false
		}
	}
	return params, true
}
