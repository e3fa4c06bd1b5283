package main

import (
	"fmt"

	"github.com/agnivade/levenshtein"
)

// meant is a question for the nearest of some names, if one is near.
func meant(name string, names []string) string {
	best, far := "", 3
	for _, n := range names {
		if d := levenshtein.ComputeDistance(name, n); d < far {
			best, far = n, d
		}
	}
	if best == "" {
		return ""
	}
	return fmt.Sprintf(": did you mean %q?", best)
}
