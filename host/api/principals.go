package api

import (
	"net/http"

	"github.com/pawlhost/pawl/host"
)

// Principals of the caller's tenant, and tenants.

type (
	principalList struct {
		Principals []host.Principal `json:"principals"`
		Next       string           `json:"next,omitempty"`
	}
	tenantList struct {
		Tenants []host.Tenant `json:"tenants"`
		Next    string        `json:"next,omitempty"`
	}
)

func listPrincipals(s *Server, w http.ResponseWriter, r *request) error {
	p, problem := r.page()
	list, next, err := s.host.Principals(r.Context(), r.actor, p)
	return answer(w, http.StatusOK, principalList{listOf(list), next}, first(err, problem))
}

func getPrincipal(s *Server, w http.ResponseWriter, r *request) error {
	p, err := s.host.GetPrincipal(r.Context(), r.actor, r.params["id"])
	return answer(w, http.StatusOK, p, err)
}

func savePrincipal(s *Server, w http.ResponseWriter, r *request) error {
	p, created, err := s.host.SavePrincipal(r.Context(), r.actor, r.params["id"], lazily(r, nil, func(d *host.PrincipalDoc) error {
		if d.Roles == nil {
			return missing("/roles")
		}
		return nil
	}))
	status := http.StatusOK
	if created {
		status = http.StatusCreated
	}
	return answer(w, status, p, err)
}

func removePrincipal(s *Server, w http.ResponseWriter, r *request) error {
	if err := s.host.RemovePrincipal(r.Context(), r.actor, r.params["id"]); err != nil {
		return err
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}

func getTenant(s *Server, w http.ResponseWriter, r *request) error {
	t, err := s.host.GetTenant(r.Context(), r.actor)
	return answer(w, http.StatusOK, t, err)
}

func getTenantOf(s *Server, w http.ResponseWriter, r *request) error {
	t, err := s.host.TenantOf(r.Context(), r.actor, r.params["name"])
	return answer(w, http.StatusOK, t, err)
}

func changeTenant(s *Server, w http.ResponseWriter, r *request) error {
	t, err := s.host.ChangeTenant(r.Context(), r.actor, tenantChange(r))
	return answer(w, http.StatusOK, t, err)
}

func changeTenantOf(s *Server, w http.ResponseWriter, r *request) error {
	t, err := s.host.ChangeTenantOf(r.Context(), r.actor, r.params["name"], tenantChange(r))
	return answer(w, http.StatusOK, t, err)
}

func tenantChange(r *request) host.Lazy[host.TenantChange] {
	return lazily(r, nil, func(*host.TenantChange) error { return nil })
}

func listTenants(s *Server, w http.ResponseWriter, r *request) error {
	p, problem := r.page()
	list, next, err := s.host.Tenants(r.Context(), r.actor, p)
	return answer(w, http.StatusOK, tenantList{listOf(list), next}, first(err, problem))
}

func createTenant(s *Server, w http.ResponseWriter, r *request) error {
	idem, problem := idempotency(r)
	t, err := s.host.CreateTenant(r.Context(), r.actor, idem, lazily(r, problem, func(n *host.NewTenant) error {
		if n.Name == "" {
			return missing("/name")
		}
		return nil
	}))
	return answer(w, http.StatusCreated, t, err)
}
