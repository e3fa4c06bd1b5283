// Command skipped reads "go test -json" and prints what go test prints, and then every test that did not run, with its reason.
// A suite that silently skips what it cannot do looks like one that passes.
package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"
	"strings"
)

type event struct {
	Action, Package, Test, Output string
}

func main() {
	var skipped []string
	output := map[string][]string{} // of tests that have not ended
	failed := false
	in := bufio.NewScanner(os.Stdin)
	in.Buffer(nil, 16<<20)
	for in.Scan() {
		var e event
		if json.Unmarshal(in.Bytes(), &e) != nil {
			fmt.Println(in.Text())
			continue
		}
		name := e.Package + " " + e.Test
		switch {
		case e.Action == "output" && e.Test == "" || e.Action == "build-output":
			if e.Output != "PASS\n" {
				fmt.Print(e.Output)
			}
		case e.Action == "output":
			output[name] = append(output[name], e.Output)
		case e.Action == "fail" || e.Action == "build-fail":
			failed = true
			fmt.Print(strings.Join(output[name], ""))
		case e.Action == "skip" && e.Test != "":
			skipped = append(skipped, name+": "+reason(output[name]))
		}
		if e.Action == "pass" || e.Action == "skip" || e.Action == "fail" {
			delete(output, name)
		}
	}
	if len(skipped) > 0 {
		fmt.Printf("\nskipped (%d):\n", len(skipped))
		for _, s := range skipped {
			fmt.Println("  " + s)
		}
	}
	if failed || in.Err() != nil {
		os.Exit(1)
	}
}

// reason finds what a test said when it skipped: its last line that is not the framework's.
func reason(lines []string) string {
	for i := len(lines) - 1; i >= 0; i-- {
		l := strings.TrimSpace(lines[i])
		if l != "" && !strings.HasPrefix(l, "---") && !strings.HasPrefix(l, "===") {
			return l
		}
	}
	return "no reason given"
}
