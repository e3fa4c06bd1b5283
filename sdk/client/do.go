package client

import (
	"context"
	"net/http"
	"net/url"
)

// Do sends one request: for the routes that have no method of their own here, and for callers that want an answer's bytes (out
// a *json.RawMessage). body and out may be nil. A POST carries an Idempotency-Key, the same when it is sent again. A refusal is a
// *[Problem].
func (c *Client) Do(ctx context.Context, method, path string, query url.Values, body, out any) error {
	_, err := c.do(ctx, call{method: method, path: path, query: query, body: body, once: method == http.MethodPost}, out)
	return err
}
