package main

import (
	"slices"
	"strings"

	"github.com/agnivade/levenshtein"
	"github.com/spf13/cobra"
)

// A command's first line of usage says which arguments it takes, and is the only place that does: in brackets they may be missing, with
// "…" there may be more. What is wrong with a command line is told in the same words.

// markUsage gives every command its check of arguments, and every complaint its exit code.
func markUsage(c *cobra.Command) {
	if c.HasSubCommands() && c.Run == nil && c.RunE == nil {
		c.RunE = func(c *cobra.Command, _ []string) error { return c.Help() }
	}
	if c.Name() != "help" {
		c.Args = checkArgs
	}
	for _, sub := range c.Commands() {
		markUsage(sub)
	}
}

func checkArgs(c *cobra.Command, args []string) error {
	if c.HasSubCommands() {
		if len(args) > 0 {
			return unknownCommand(c, args[0])
		}
		return nil
	}
	names, least, more := positional(c.Use)
	form := strings.TrimSuffix(c.CommandPath(), c.Name()) + c.Use
	switch {
	case len(args) < least:
		missing := strings.Join(names[len(args):least], " and ")
		return usagef("missing %s: the form is %s: see %s --help", missing, form, c.CommandPath())
	case len(args) > len(names) && len(names) == 0:
		return usagef("unexpected argument %q: %s takes none: see %[2]s --help", args[0], c.CommandPath())
	case len(args) > len(names) && !more:
		return usagef("unexpected argument %q: the form is %s: see %s --help", args[len(names)], form, c.CommandPath())
	}
	return nil
}

// positional reads a line of usage: what its arguments are called, how many must be there, and whether there may be more.
func positional(use string) (names []string, least int, more bool) {
	for _, word := range strings.Fields(use)[1:] {
		if word == "|" { // another form of the same command
			break
		}
		more = more || strings.Contains(word, "…")
		if !strings.HasPrefix(word, "[") {
			least++
		}
		names = append(names, strings.NewReplacer("…", "", "|", " or ").Replace(strings.Trim(word, "[]")))
	}
	return names, least, more
}

// unknownCommand is the complaint about a word that is no command below c.
func unknownCommand(c *cobra.Command, word string) error {
	hint := "see " + c.CommandPath() + " --help"
	c.SuggestionsMinimumDistance = 2
	if near := c.SuggestionsFor(word); len(near) > 0 {
		best := levenshtein.ComputeDistance(word, slices.MinFunc(near, func(a, b string) int {
			return levenshtein.ComputeDistance(word, a) - levenshtein.ComputeDistance(word, b)
		}))
		near = slices.DeleteFunc(near, func(s string) bool { return levenshtein.ComputeDistance(word, s) > best && !strings.HasPrefix(s, word) })
		hint = "did you mean " + c.CommandPath() + " " + strings.Join(near, ", ") + "? " + hint
	}
	return usagef("unknown command %q for %q: %s", word, c.CommandPath(), hint)
}

// generated adds the commands that come with the library now, so that they have the manners of the others.
func generated(root *cobra.Command) {
	root.InitDefaultCompletionCmd()
	root.InitDefaultHelpCmd()
	for _, c := range root.Commands() {
		if c.Name() != "completion" {
			continue
		}
		c.Example = "  source <(pawl completion bash)"
		for _, shell := range c.Commands() {
			shell.Example = "  pawl completion " + shell.Name()
		}
	}
	help := root.Commands()[slices.IndexFunc(root.Commands(), func(c *cobra.Command) bool { return c.Name() == "help" })]
	help.Example = "  pawl help approvals decide"
	help.Run, help.RunE = nil, func(_ *cobra.Command, args []string) error {
		c, rest, err := root.Find(args)
		if err != nil {
			return usagef("%w", err)
		}
		if len(rest) > 0 && c.HasSubCommands() {
			return unknownCommand(c, rest[0])
		}
		return c.Help()
	}
}
