// Package check holds the dashboard and the alerts with the parsers of Prometheus itself.
package check

import (
	"encoding/json"
	"log/slog"
	"os"
	"strings"
	"testing"

	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/rulefmt"
	"github.com/prometheus/prometheus/promql/parser"
)

func TestAlerts(t *testing.T) {
	raw, err := os.ReadFile("../alerts.yaml")
	if err != nil {
		t.Fatal(err)
	}
	groups, errs := rulefmt.Parse(raw, false, model.LegacyValidation, parser.NewParser(parser.Options{}), slog.New(slog.DiscardHandler))
	for _, err := range errs {
		t.Error(err)
	}
	alerts := 0
	for _, g := range groups.Groups {
		for _, r := range g.Rules {
			if r.Alert == "" {
				continue
			}
			alerts++
			if r.Labels["severity"] == "" || r.Annotations["summary"] == "" || r.Annotations["description"] == "" {
				t.Errorf("%s lacks a severity, a summary or a description", r.Alert)
			}
		}
	}
	if alerts < 8 {
		t.Errorf("only %d alerts", alerts)
	}
}

func TestDashboard(t *testing.T) {
	raw, err := os.ReadFile("../dashboard.json")
	if err != nil {
		t.Fatal(err)
	}
	var d struct {
		Panels []struct {
			Title   string
			Type    string
			Targets []struct{ Expr string }
		}
	}
	if err := json.Unmarshal(raw, &d); err != nil {
		t.Fatal(err)
	}
	// What Grafana fills in before it asks.
	fill := strings.NewReplacer("$__rate_interval", "1m", "$__interval", "1m", "$instance", ".*")
	queries := 0
	for _, p := range d.Panels {
		if p.Type != "row" && len(p.Targets) == 0 {
			t.Errorf("the panel %q asks nothing", p.Title)
		}
		for _, q := range p.Targets {
			queries++
			if _, err := parser.NewParser(parser.Options{}).ParseExpr(fill.Replace(q.Expr)); err != nil {
				t.Errorf("the panel %q asks %s: %v", p.Title, q.Expr, err)
			}
		}
	}
	if queries < 15 {
		t.Errorf("only %d queries", queries)
	}
}
