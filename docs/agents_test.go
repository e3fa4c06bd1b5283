package docs_test

import (
	"encoding/json"
	"os"
	"strings"
	"testing"

	"github.com/pawlhost/pawl/host"
	"github.com/pawlhost/pawl/host/hosttest"
	"github.com/pawlhost/pawl/plugins/bundled"
)

// The document that the page shows is saved as it stands, without a warning, and does what the page says.
func TestTheAgentOfThePage(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("agents.md")
	if err != nil {
		t.Fatal(err)
	}
	_, doc, _ := strings.Cut(string(page), "```json\n")
	doc, _, ok := strings.Cut(doc, "```")
	if !ok {
		t.Fatal("the page shows no document")
	}
	h := hosttest.New(t, hosttest.Options{Bundled: bundled.FS})
	saved, _, err := h.SaveAgent(t.Context(), hosttest.Owner, "garden", hosttest.Body(json.RawMessage(doc)))
	if err != nil {
		t.Fatal(err)
	}
	for _, w := range saved.Warnings {
		if !strings.Contains(w, "/skills/") { // the example's own rule covers less than the default, and that is told
			t.Errorf("warned of: %s", w)
		}
	}
	r := h.Settled(h.Create(hosttest.Member, "garden").ID)
	if r.State != host.RunAwaitingApproval || r.Pause.Approvals[0].Subagent != "scribe" {
		t.Fatalf("the run is %s: %+v", r.State, r.Pause)
	}
	// Each member of an agent has its row.
	var members map[string]json.RawMessage
	if err := json.Unmarshal([]byte(doc), &members); err != nil {
		t.Fatal(err)
	}
	for name := range members {
		if !strings.Contains(string(page), "| `"+name) {
			t.Errorf("the table has no row for %s", name)
		}
	}
}
