package policy

import (
	"strings"
	"testing"
	"testing/fstest"
)

// What a rule says outright and what can never be read is told when the folder is loaded, with its line, and not only by the calls.
func TestLiteralsThatCanNeverBeRightAreTold(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("r", maxRuleID+1)
	for rule, want := range map[string]string{
		`pause contains {"rule": "x", "reason": "await_input"}`:                                              `a.rego:3: pause: reason "await_input", and there is only approval_required, constraints_conflict`,
		`pause contains {"rule": "x", "reason": "constraint_conflict"}`:                                      `did you mean "constraints_conflict"?`,
		`pause contains {"rule": "default/y"}`:                                                               `begin with default/`,
		`pause contains {"rule": "interrupt_on/y"} if input.turn > 1`:                                        `begin with interrupt_on/`,
		`pause contains {"rule": "preset.y"}`:                                                                `begin with preset.`,
		`pause contains {"rule": ""}`:                                                                        `rule must be a text that is not empty`,
		`pause contains {"rule": 7}`:                                                                         `rule must be a text that is not empty`,
		`pause contains {"rule": "` + long + `"}`:                                                            `longer than 256 bytes`,
		`pause contains {"reason": "approval_required"}`:                                                     `must say its rule`,
		`pause contains {"rule": "x", "title": 7}`:                                                           `title must be a text`,
		`pause contains {"rule": "x", "mesage": "y"}`:                                                        `did you mean "message"?`,
		`pause contains {"rule": "x", "ttl": "4 hours"}`:                                                     `ttl "4 hours" must be a positive duration`,
		`pause contains {"rule": "x", "ttl": "-1h"}`:                                                         `ttl "-1h"`,
		`pause contains {"rule": "x", "ttl": "0s"}`:                                                          `ttl "0s"`,
		`pause contains {"rule": "x", "ttl": 3600}`:                                                          `ttl 3600`,
		`pause contains {"rule": "x", "allowed_decisions": ["aprove"]}`:                                      `did you mean "approve"?`,
		`pause contains {"rule": "x", "allowed_decisions": {"approve", 1}}`:                                  `allowed_decisions has 1`,
		`pause contains {"rule": "x", "allowed_decisions": []}`:                                              `allowed_decisions is empty`,
		`pause contains {"rule": "x", "allowed_decisions": "approve"}`:                                       `must be a list`,
		`pause contains "x"`:                                                                                 `an element must be an object with a rule`,
		"pause contains stop if {\n\tinput.turn > 1\n\tstop := {\"rule\": \"x\",\n\t\t\"ttl\": \"soon\"}\n}": `a.rego:6: pause: ttl "soon"`,
		`deny contains ""`:                                 `an element must be a text that is not empty`,
		`deny contains 7`:                                  `an element must be a text that is not empty`,
		`deny contains ["x"]`:                              `an element must be a text, or {rule, message}`,
		`deny contains {"rule": "x"}`:                      `must say its message`,
		`deny contains {"rule": "x", "message": ""}`:       `message must be a text that is not empty`,
		`deny contains {"rule": "x", "reason": "y"}`:       `has the member "reason"`,
		"@authz\ndeny contains {\"rule\": \"x\"}":          `a.rego:3: deny: a refusal of an act must be a text`,
		"@authz\ndeny contains \"\" if input.act == \"x\"": `a refusal of an act must be a text that is not empty`,
	} {
		text := "package pawl.rules\n\n" + rule
		if authz, ok := strings.CutPrefix(rule, "@authz\n"); ok {
			text = "package pawl.rules.authz\n\n" + authz
		}
		if err := newEngineWith(t, Options{}, "a.rego", text).Doubts(); err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), "a.rego:") {
			t.Errorf("%s: %v; want %q", rule, err, want)
		}
	}
	// All of them at once, and nothing that is right or not known yet.
	e, err := New(t.Context(), Options{Rules: fstest.MapFS{
		"a.rego": {Data: []byte("package pawl.rules\npause contains {\"rule\": \"x\", \"reason\": \"y\", \"ttl\": \"z\"}\ndeny contains 1")},
		"b.rego": {Data: []byte("package pawl.rules.b\npause contains 1")},
	}})
	if err != nil {
		t.Fatal(err)
	}
	if err := e.Doubts(); err == nil || strings.Count(err.Error(), ".rego:") != 4 {
		t.Errorf("%v; want four complaints", err)
	}
	for _, rule := range []string{
		`pause contains {"rule": "x", "reason": "constraints_conflict", "title": "", "message": "", "ttl": "1h30m", "allowed_decisions": {"approve"}}`,
		`pause contains {"rule": sprintf("x/%s", [input.call.tool]), "reason": data.pawl.rules.why, "ttl": concat("", ["1", "h"]), "allowed_decisions": kinds}
		kinds := ["approve"]
		why := "approval_required"`,
		`pause contains {"rule": "x", kind: "y"} if some kind in ["title", "message"]`,
		`pause contains object.union({"rule": "x"}, {"ttl": "1h"})`,
		`pause contains stop if some stop in [{"rule": "x"}]`,
		`deny contains "no"`,
		`deny contains {"rule": "x", "message": sprintf("%d", [input.turn])}`,
		`deny contains text if text := concat(" ", ["not", "now"])`,
	} {
		if err := newEngineWith(t, Options{}, "a.rego", "package pawl.rules\n"+rule).Doubts(); err != nil {
			t.Errorf("%s: %v", rule, err)
		}
	}
}
