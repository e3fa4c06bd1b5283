package api

import (
	"bytes"
	"encoding/json"
	"flag"
	"os"
	"slices"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "write openapi.json anew")

func TestOpenAPIIsWhatTheRouteTableSays(t *testing.T) {
	t.Parallel()
	got := describe()
	if *update {
		if err := os.WriteFile("openapi.json", got, 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	if !bytes.Equal(got, description) {
		t.Error("openapi.json is out of date: go test ./host/api -run OpenAPI -update")
	}
}

// The document is checked the way a client sees it: every operation of it is found by the router, and every route is in it.
func TestOpenAPIAndRouterNameTheSameRoutes(t *testing.T) {
	t.Parallel()
	var doc struct {
		OpenAPI string `json:"openapi"`
		Paths   map[string]map[string]struct {
			OperationID string                     `json:"operationId"`
			Responses   map[string]json.RawMessage `json:"responses"`
		} `json:"paths"`
	}
	if err := json.Unmarshal(describe(), &doc); err != nil {
		t.Fatal(err)
	}
	if !strings.HasPrefix(doc.OpenAPI, "3.1.") {
		t.Errorf("openapi %q", doc.OpenAPI)
	}
	rs := routes()
	rt := newRouter(rs)
	ids, described := map[string]bool{}, 0
	for path, ops := range doc.Paths {
		for method, op := range ops {
			described++
			found, _, _ := rt.find(strings.ToUpper(method), strings.NewReplacer("{", "", "}", "").Replace(path))
			if found == nil || found.path != path {
				t.Errorf("%s %s is described and not routed", method, path)
			}
			if ids[op.OperationID] {
				t.Errorf("operationId %s twice", op.OperationID)
			}
			ids[op.OperationID] = true
			if len(op.Responses) < 3 {
				t.Errorf("%s %s describes %d answers", method, path, len(op.Responses))
			}
		}
	}
	if described != len(rs) {
		t.Errorf("%d operations are described, %d are routed", described, len(rs))
	}
}

func TestRouterFindsExactlyWhatIsWritten(t *testing.T) {
	t.Parallel()
	rt := newRouter(routes())
	for _, tt := range []struct {
		method, path, want string
		param              string
		allow              []string
	}{
		{"GET", "/v1/runs", "/v1/runs", "", nil},
		{"HEAD", "/v1/runs", "/v1/runs", "", nil},
		{"HEAD", "/v1/runs/x/events", "", "", []string{"GET"}},
		{"HEAD", "/v1/ws", "", "", []string{"GET"}},
		{"GET", "/v1/runs/run_1", "/v1/runs/{run}", "run_1", nil},
		{"GET", "/v1/runs/a%2Fb", "/v1/runs/{run}", "a/b", nil},
		{"GET", "/v1/runs/%zz", "", "", nil},
		{"GET", "/v1/runs/", "", "", nil},
		{"GET", "/v1//runs", "", "", nil},
		{"GET", "//v1/runs", "", "", nil},
		{"GET", "/v1/../v1/runs", "", "", nil},
		{"GET", "/V1/runs", "", "", nil},
		{"PATCH", "/v1/runs", "", "", []string{"GET", "POST"}},
		{"POST", "/v1/agents/x", "", "", []string{"DELETE", "GET", "PUT"}},
		{"OPTIONS", "/healthz", "", "", []string{"GET"}},
		{"GET", "", "", "", nil},
		{"CONNECT", "host:80", "", "", nil},
	} {
		got, params, allow := rt.find(tt.method, tt.path)
		name := ""
		if got != nil {
			name = got.path
		}
		if name != tt.want || !slices.Equal(allow, tt.allow) || tt.param != "" && params["run"] != tt.param {
			t.Errorf("%s %s: %q %v %v, want %q %q %v", tt.method, tt.path, name, params, allow, tt.want, tt.param, tt.allow)
		}
	}
}
