// Package observability_test holds the dashboard and the alerts against a host: every metric that they name is there.
package observability_test

import (
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/pawlhost/pawl/host"
	"github.com/pawlhost/pawl/host/api"
	"github.com/pawlhost/pawl/host/hosttest"
	"github.com/pawlhost/pawl/store"
)

var named = regexp.MustCompile(`\bpawl_[a-z_]+`)

func TestEveryMetricNamedIsThere(t *testing.T) {
	t.Parallel()
	h := hosttest.New(t, hosttest.Options{Config: func(c *host.Config) { c.Store = onDisk{c.Store} }})
	h.Script("ops", `[{"calls":[{"tool":"write_file","arguments":{"path":"/memories/a","content":"x"}}]},{"final":1}]`, "")
	r := h.Settled(h.Create(hosttest.Member, "ops").ID)
	if _, err := h.DecideAll(hosttest.Owner, r, "approve"); err != nil {
		t.Fatal(err)
	}
	h.Settled(r.ID)
	web := httptest.NewServer(api.New(h.Host, api.Options{MetricsOpen: true, Version: "test", Log: slog.New(slog.DiscardHandler)}))
	defer web.Close()
	get := func(path string) string {
		resp, err := web.Client().Get(web.URL + path)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		body, err := io.ReadAll(resp.Body)
		if err != nil || resp.StatusCode != http.StatusOK {
			t.Fatalf("%s: %s %v", path, resp.Status, err)
		}
		return string(body)
	}
	get("/healthz") // so that there is a request to tell of
	var text string
	for deadline := time.Now().Add(20 * time.Second); !strings.Contains(text, "pawl_runs_by_state{"); { // counted in the background
		if text = get("/metrics"); time.Now().After(deadline) {
			t.Fatalf("the gauges did not come:\n%s", text)
		}
	}
	there := map[string]bool{}
	for line := range strings.Lines(text) {
		if name := named.FindString(line); strings.HasPrefix(line, name) {
			there[name] = true
		}
	}
	for _, file := range []string{"alerts.yaml", "alerts_test.yaml", "dashboard.json", "README.md", "../../docs/operating.md"} {
		raw, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		names := named.FindAllString(string(raw), -1)
		if len(names) == 0 {
			t.Errorf("%s names no metric: this test would hold nothing", file)
		}
		for _, name := range slices.Compact(slices.Sorted(slices.Values(names))) {
			if !there[name] && !there[name+"_count"] { // a histogram by its own name
				t.Errorf("%s names %s, which /metrics does not have", file, name)
			}
		}
	}
}

// Panels do not overlap, and each has a place.
func TestDashboardLayout(t *testing.T) {
	t.Parallel()
	raw, err := os.ReadFile("dashboard.json")
	if err != nil {
		t.Fatal(err)
	}
	var d struct {
		UID    string
		Panels []struct {
			ID      int
			Title   string
			GridPos struct{ X, Y, W, H int }
		}
	}
	if err := json.Unmarshal(raw, &d); err != nil || d.UID == "" {
		t.Fatalf("%q %v", d.UID, err)
	}
	taken, ids := map[string]string{}, map[int]bool{}
	for _, p := range d.Panels {
		if g := p.GridPos; g.W <= 0 || g.H <= 0 || g.X+g.W > 24 || ids[p.ID] || p.Title == "" {
			t.Errorf("panel %d %q at %+v", p.ID, p.Title, g)
		}
		ids[p.ID] = true
		for x := range p.GridPos.W {
			for y := range p.GridPos.H {
				at := fmt.Sprint(p.GridPos.X+x, " ", p.GridPos.Y+y)
				if other := taken[at]; other != "" {
					t.Fatalf("%q lies on %q", p.Title, other)
				}
				taken[at] = p.Title
			}
		}
	}
}

// onDisk is a store that has a medium to run out of.
type onDisk struct{ store.Store }

func (onDisk) Space() (free uint64, ok bool) { return 1 << 40, true }
