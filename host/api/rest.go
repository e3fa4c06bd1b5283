package api

import (
	"context"
	"encoding/json"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/pawlhost/pawl/host"
)

// callWait is how long a tool call's answer waits for its result.
const callWait = 30 * time.Second

// The lists and answers that are not a host type already.
type (
	nothing   struct{}
	anyObject map[string]json.RawMessage
	runList   struct {
		Runs []host.Run `json:"runs"`
		Next string     `json:"next,omitempty"`
	}
	messageList struct {
		Messages []host.Message `json:"messages"`
	}
	toolList struct {
		Tools []host.Tool `json:"tools"`
		Next  string      `json:"next,omitempty"`
	}
	agentList struct {
		Agents []host.Agent `json:"agents"`
		Next   string       `json:"next,omitempty"`
	}
	toolAnswer struct {
		Run    host.Run        `json:"run"`
		Result json.RawMessage `json:"result,omitempty"`
		Error  *failure        `json:"error,omitempty"`
	}
	failure struct {
		Code    string `json:"code"`
		Message string `json:"message"`
	}
)

// lazily makes the parser that the host calls when the request has passed its earlier checks. problem is what was wrong
// with the headers or the query.
func lazily[T any](r *request, problem error, check func(*T) error) host.Lazy[T] {
	return func() (T, error) {
		var none T
		if problem != nil {
			return none, problem
		}
		v, err := decode[T](r.body)
		if err != nil {
			return none, err
		}
		if err := check(&v); err != nil {
			return none, err
		}
		return v, nil
	}
}

// listOf returns a slice that encodes as [] when it is empty.
func listOf[T any](v []T) []T {
	if v == nil {
		return []T{}
	}
	return v
}

// noBody refuses a body with members where none is asked for. The routes that use it have no other 400, so that asking
// early changes no order but their own 404 and 403.
func noBody(r *request) error {
	if len(r.body) == 0 {
		return nil
	}
	_, err := decode[nothing](r.body)
	return err
}

func createRun(s *Server, w http.ResponseWriter, r *request) error {
	idem, problem := idempotency(r)
	run, err := s.host.CreateRun(r.Context(), r.actor, idem, lazily(r, problem, func(n *host.NewRun) error {
		if n.Agent == "" {
			return missing("/agent")
		}
		if err := contextObject(&n.ToolContext); err != nil {
			return err
		}
		return checkCalls(n.Calls)
	}))
	if err != nil {
		return err
	}
	if wait := preferWait(r.Header); wait > 0 {
		w.Header().Set("Preference-Applied", "wait="+strconv.Itoa(int(wait/time.Second)))
		if run, err = s.waitRun(r, run, wait); err != nil {
			return err
		}
	}
	w.Header().Set("Location", "/v1/runs/"+run.ID)
	return reply(w, http.StatusCreated, run)
}

// waitRun waits for a stop or an end. A wait that cannot begin or ends early is no error: the run exists and is answered.
func (s *Server) waitRun(r *request, run host.Run, wait time.Duration) (host.Run, error) {
	if run.State.Ended() || run.State.Paused() || run.State == "awaiting_planner" {
		return run, nil
	}
	ctx, release, err := s.hold(r.Context())
	if err != nil {
		return run, nil
	}
	defer release()
	ctx, cancel := context.WithTimeout(ctx, wait)
	defer cancel()
	return s.host.WaitRun(ctx, r.actor, run.ID)
}

var runStates = []string{
	"queued", "running", "awaiting_approval", "awaiting_input", "awaiting_event", "awaiting_planner", "succeeded", "failed", "cancelled",
}

func listRuns(s *Server, w http.ResponseWriter, r *request) error {
	q := r.query()
	p, problem := r.page()
	f := host.RunFilter{State: q.Get("state"), Agent: q.Get("agent")}
	if problem == nil {
		problem = oneOf("state", f.State, runStates)
	}
	if order := q.Get("order"); problem == nil && order != "" && order != "oldest" {
		if p.Newest = order == "newest"; !p.Newest {
			problem = invalid("/order", "unknown order: use oldest or newest")
		}
	}
	if problem != nil {
		f = host.RunFilter{}
	}
	runs, next, err := s.host.ListRuns(r.Context(), r.actor, f, p)
	if err := first(err, problem); err != nil {
		return err
	}
	return reply(w, http.StatusOK, runList{listOf(runs), next})
}

// first returns the error of a verb before the problem of its query: 404 and 403 come before 400. A verb that was called
// with a problem got the query's defaults.
func first(err, problem error) error {
	if err != nil {
		return err
	}
	return problem
}

func oneOf(name, v string, known []string) error {
	if v == "" || slices.Contains(known, v) {
		return nil
	}
	return invalid("/"+name, "unknown "+name+": use one of "+strings.Join(known, ", "))
}

func getRun(s *Server, w http.ResponseWriter, r *request) error {
	run, err := s.host.GetRun(r.Context(), r.actor, r.params["run"])
	return answer(w, http.StatusOK, run, err)
}

// answer replies with v unless err.
func answer(w http.ResponseWriter, status int, v any, err error) error {
	if err != nil {
		return err
	}
	return reply(w, status, v)
}

func trajectory(s *Server, w http.ResponseWriter, r *request) error {
	ms, err := s.host.Trajectory(r.Context(), r.actor, r.params["run"])
	return answer(w, http.StatusOK, messageList{listOf(ms)}, err)
}

func propose(s *Server, w http.ResponseWriter, r *request) error {
	idem, problem := idempotency(r)
	run, err := s.host.Propose(r.Context(), r.actor, r.params["run"], idem, lazily(r, problem, func(b *host.Batch) error {
		if b.Turn == nil {
			return missing("/turn")
		}
		if b.Calls == nil {
			return missing("/calls")
		}
		return checkCalls(b.Calls)
	}))
	return answer(w, http.StatusOK, run, err)
}

func finish(s *Server, w http.ResponseWriter, r *request) error {
	idem, problem := idempotency(r)
	run, err := s.host.Finish(r.Context(), r.actor, r.params["run"], idem, lazily(r, problem, func(f *host.Final) error {
		if f.Turn == nil {
			return missing("/turn")
		}
		if f.Output == nil {
			return missing("/output")
		}
		return nil
	}))
	return answer(w, http.StatusOK, run, err)
}

func input(s *Server, w http.ResponseWriter, r *request) error {
	idem, problem := idempotency(r)
	run, err := s.host.Input(r.Context(), r.actor, r.params["run"], idem, lazily(r, problem, func(in *host.NewInput) error {
		if in.Input == nil {
			return missing("/input")
		}
		return nil
	}))
	return answer(w, http.StatusOK, run, err)
}

func cancelRun(s *Server, w http.ResponseWriter, r *request) error {
	if err := s.emptyBodyOf(r); err != nil {
		return err
	}
	run, err := s.host.Cancel(r.Context(), r.actor, r.params["run"])
	return answer(w, http.StatusOK, run, err)
}

func rotateToken(s *Server, w http.ResponseWriter, r *request) error {
	if err := s.emptyBodyOf(r); err != nil {
		return err
	}
	run, err := s.host.RotateToken(r.Context(), r.actor, r.params["run"])
	return answer(w, http.StatusOK, run, err)
}

// emptyBodyOf refuses a body that asks for something, after the 404 of a run that the actor may not see.
func (s *Server) emptyBodyOf(r *request) error {
	problem := noBody(r)
	if problem == nil {
		return nil
	}
	_, err := s.host.GetRun(r.Context(), r.actor, r.params["run"])
	return first(err, problem)
}

func decide(s *Server, w http.ResponseWriter, r *request) error {
	idem, problem := idempotency(r)
	run, err := s.host.Decide(r.Context(), r.actor, r.params["run"], idem, func() (host.Answer, error) {
		if problem != nil {
			return host.Answer{}, problem
		}
		b, err := decode[decisionsBody](r.body)
		if err != nil {
			return host.Answer{}, err
		}
		return b.answer()
	})
	return answer(w, http.StatusOK, run, err)
}

func resume(s *Server, w http.ResponseWriter, r *request) error {
	token, err := resumeToken(r.body)
	if err != nil {
		return err
	}
	idem, problem := idempotency(r)
	run, err := s.host.Resume(r.Context(), r.actor, token, idem, func() (host.Answer, error) {
		if problem != nil {
			return host.Answer{}, problem
		}
		b, err := decode[resumeBody](r.body)
		if err != nil {
			return host.Answer{}, err
		}
		return b.answer()
	})
	return answer(w, http.StatusOK, run, err)
}

func callTool(s *Server, w http.ResponseWriter, r *request) error {
	idem, problem := idempotency(r)
	ctx, release, err := s.hold(r.Context())
	if err != nil {
		return err
	}
	defer release()
	ctx, cancel := context.WithTimeout(ctx, callWait)
	defer cancel()
	out, err := s.host.CallTool(ctx, r.actor, r.params["tool"], idem, lazily(r, problem, func(c *host.DirectCall) error {
		if c.Arguments == nil {
			return missing("/arguments")
		}
		return contextObject(&c.ToolContext)
	}))
	if err != nil {
		return err
	}
	if !out.Done {
		return reply(w, http.StatusAccepted, toolAnswer{Run: out.Run})
	}
	done := toolAnswer{Run: out.Run, Result: out.Result}
	if out.Error != nil {
		done.Error = &failure{out.Error.Code, out.Error.Message}
	}
	return reply(w, http.StatusOK, done)
}

func listTools(s *Server, w http.ResponseWriter, r *request) error {
	p, problem := r.page()
	tools, next, err := s.host.Tools(r.Context(), r.actor, p)
	return answer(w, http.StatusOK, toolList{listOf(tools), next}, first(err, problem))
}

func listAgents(s *Server, w http.ResponseWriter, r *request) error {
	p, problem := r.page()
	agents, next, err := s.host.Agents(r.Context(), r.actor, p)
	return answer(w, http.StatusOK, agentList{listOf(agents), next}, first(err, problem))
}

func getAgent(s *Server, w http.ResponseWriter, r *request) error {
	a, err := s.host.GetAgent(r.Context(), r.actor, r.params["name"])
	return answer(w, http.StatusOK, a, err)
}

func saveAgent(s *Server, w http.ResponseWriter, r *request) error {
	a, created, err := s.host.SaveAgent(r.Context(), r.actor, r.params["name"], func() (json.RawMessage, error) {
		return r.body, object(r.body)
	})
	status := http.StatusOK
	if created {
		status = http.StatusCreated
	}
	return answer(w, status, a, err)
}

func deleteAgent(s *Server, w http.ResponseWriter, r *request) error {
	if err := s.host.DeleteAgent(r.Context(), r.actor, r.params["name"]); err != nil {
		return err
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}
