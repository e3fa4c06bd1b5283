package client

import (
	"context"
	"net/http"
	"time"
)

// Policy is the set of rules that a host has in force. Refused is there while the operator's folder has contents that the host cannot
// use; then an older set is in force.
type Policy struct {
	Revision string    `json:"revision"`
	LoadedAt time.Time `json:"loaded_at"`
	Files    []struct {
		Name   string `json:"name"`
		Digest string `json:"digest"`
		Bytes  int    `json:"bytes"`
	} `json:"files"`
	Refused *struct {
		At       time.Time `json:"at"`
		Problems []string  `json:"problems"`
	} `json:"refused,omitempty"`
}

// Policy tells which rules are in force. It is for owners and admins.
func (c *Client) Policy(ctx context.Context) (p Policy, err error) {
	_, err = c.do(ctx, call{method: http.MethodGet, path: "/v1/policy"}, &p)
	return p, err
}
