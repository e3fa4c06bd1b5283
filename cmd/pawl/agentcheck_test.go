package main

import (
	"slices"
	"testing"

	"github.com/pawlhost/pawl/host"
)

// A name in an agent that means nothing on this host is told; one that means something is not.
func TestDoubtsAboutAnAgent(t *testing.T) {
	t.Parallel()
	installed := []host.Tool{{Name: "write_file", Plugin: "files"}, {Name: "a.shout", Plugin: "a"}, {Name: "b.shout", Plugin: "b"}}
	for _, c := range []struct {
		name         string
		tools, stops []string
		want         []string
	}{
		{"nothing to say", []string{"write_file", "a.shout"}, []string{"write_file", "a.shout"}, nil},
		{"a bare name covers every plugin's tool, a qualified one its own", []string{"write_file", "a.shout"}, []string{"shout", "files.write_file"}, nil},
		{"a rule with a typing error", []string{"write_file"}, []string{"wirte_file"},
			[]string{`interrupt_on names "wirte_file", which is no tool of this agent, so that it stops nothing: did you mean "write_file"?`}},
		{"a rule for another tool", []string{"write_file"}, []string{"b.shout"},
			[]string{`interrupt_on names "b.shout", which is no tool of this agent, so that it stops nothing`}},
		{"a tool with a typing error, and a rule with the same: one mistake", []string{"wirte_file"}, []string{"wirte_file"},
			[]string{`this host has no tool "wirte_file", so that its calls fail: did you mean "write_file"?`}},
		{"a name of two plugins", []string{"shout"}, nil,
			[]string{`several plugins have a tool "shout", so that its calls fail: say which one, a.shout or b.shout`}},
		{"a tool that nobody knows", []string{"transfer"}, nil, []string{`this host has no tool "transfer", so that its calls fail`}},
	} {
		if got := doubts(c.tools, c.stops, installed); !slices.Equal(got, c.want) {
			t.Errorf("%s: %q, want %q", c.name, got, c.want)
		}
	}
}

func TestDistance(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		a, b string
		want int
	}{{"", "", 0}, {"", "abc", 3}, {"abc", "", 3}, {"abc", "abc", 0}, {"kitten", "sitting", 3}, {"wirte", "write", 2}, {"ab", "b", 1}, {"b", "ab", 1}} {
		if got := distance(c.a, c.b); got != c.want {
			t.Errorf("distance(%q, %q) = %d, want %d", c.a, c.b, got, c.want)
		}
	}
}
