package api

import (
	"encoding/json"
	"net/http"
	"strconv"

	"github.com/pawlhost/pawl/host"
)

// What people who approve and operate ask for: the queue, keys, policy's opinion.

type (
	approvalList struct {
		Approvals []host.Approval `json:"approvals"`
		Next      string          `json:"next,omitempty"`
	}
	keyList struct {
		Keys []host.Key `json:"keys"`
		Next string     `json:"next,omitempty"`
	}
)

func runApprovals(s *Server, w http.ResponseWriter, r *request) error {
	as, err := s.host.RunApprovals(r.Context(), r.actor, r.params["run"])
	return answer(w, http.StatusOK, approvalList{Approvals: listOf(as)}, err)
}

func listApprovals(s *Server, w http.ResponseWriter, r *request) error {
	q := r.query()
	p, problem := r.page()
	state := q.Get("state")
	if problem != nil {
		state = ""
	}
	as, next, err := s.host.Approvals(r.Context(), r.actor, state, p)
	return answer(w, http.StatusOK, approvalList{listOf(as), next}, first(err, problem))
}

func getApproval(s *Server, w http.ResponseWriter, r *request) error {
	a, err := s.host.GetApproval(r.Context(), r.actor, r.params["approval"])
	return answer(w, http.StatusOK, a, err)
}

func listKeys(s *Server, w http.ResponseWriter, r *request) error {
	p, problem := r.page()
	keys, next, err := s.host.Keys(r.Context(), r.actor, p)
	return answer(w, http.StatusOK, keyList{listOf(keys), next}, first(err, problem))
}

func createKey(s *Server, w http.ResponseWriter, r *request) error {
	idem, problem := idempotency(r)
	key, err := s.host.CreateKey(r.Context(), r.actor, idem, lazily(r, problem, func(n *host.NewKey) error {
		switch {
		case n.Principal == "":
			return missing("/principal")
		case n.Roles == nil:
			return missing("/roles")
		case n.Kind == "":
			return missing("/kind")
		}
		for i, role := range n.Roles {
			if role == "" {
				return invalid("/roles/"+strconv.Itoa(i), "a role must be a name")
			}
		}
		return nil
	}))
	return answer(w, http.StatusCreated, key, err)
}

func revokeKey(s *Server, w http.ResponseWriter, r *request) error {
	if err := s.host.RevokeKey(r.Context(), r.actor, r.params["id"]); err != nil {
		return err
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}

func getPolicy(s *Server, w http.ResponseWriter, r *request) error {
	p, err := s.host.GetPolicy(r.Context(), r.actor)
	return answer(w, http.StatusOK, p, err)
}

func evaluate(s *Server, w http.ResponseWriter, r *request) error {
	out, err := s.host.Evaluate(r.Context(), r.actor, lazily(r, nil, func(e *host.Evaluation) error {
		if e.Agent == "" {
			return missing("/agent")
		}
		if err := checkCall(e.Call, "/call"); err != nil {
			return err
		}
		return contextObject(&e.ToolContext)
	}))
	return answer(w, http.StatusOK, json.RawMessage(out), err)
}

// Ticket opens one WebSocket.
type Ticket struct {
	Ticket    string    `json:"ticket"`
	ExpiresAt host.Time `json:"expires_at"`
}

func wsTicket(s *Server, w http.ResponseWriter, r *request) error {
	if err := s.host.May(r.Context(), r.actor, "ws.connect"); err != nil {
		return err
	}
	if err := noBody(r); err != nil {
		return err
	}
	revoked, release := s.host.Revoked(r.actor.KeyID)
	if err := s.authenticate(r); err != nil { // again: the key may have been revoked before it was watched
		release()
		return err
	}
	text, expires, ok := s.tickets.issue(r.actor, revoked, release)
	if !ok {
		return &host.Error{Code: host.CodeUnavailable, Detail: "too many tickets are open: use those, or wait until they expire"}
	}
	return reply(w, http.StatusCreated, Ticket{text, host.Time(expires)})
}

type status struct {
	Status string `json:"status"`
}

func healthz(_ *Server, w http.ResponseWriter, _ *request) error {
	return reply(w, http.StatusOK, status{"ok"})
}

func readyz(s *Server, w http.ResponseWriter, _ *request) error {
	if s.draining.Err() != nil {
		return errDraining()
	}
	if err := s.host.Ready(); err != nil {
		return err
	}
	return reply(w, http.StatusOK, status{"ready"})
}
