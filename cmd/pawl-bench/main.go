// Command pawl-bench measures pawl and prints each number beside its budget. It is a module of its own, so that what it
// compares with never enters pawl's go.mod.
//
// Two kinds of numbers: the benchmarks that stand beside the code (go test -bench), and what a client sees of a real host in a
// process of its own, on the same two cores as the client.
package main

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"regexp"
	"runtime"
	"text/tabwriter"
	"time"
)

// result is one number. Budget 0 means that there is none; Ratio is how many times better than the budget it is.
type result struct {
	Name   string  `json:"name"`
	Value  float64 `json:"value"`
	Unit   string  `json:"unit"`
	Budget float64 `json:"budget,omitempty"`
	Ratio  float64 `json:"ratio,omitempty"`
	Note   string  `json:"note,omitempty"`
}

// least and most compare with a budget from below and from above.
func (r result) least(budget float64) result {
	r.Budget, r.Ratio = budget, r.Value/budget
	return r
}

func (r result) most(budget float64) result {
	r.Budget, r.Ratio = budget, budget/r.Value
	return r
}

// bench is one run of everything.
type bench struct {
	root    string // of the checkout
	quick   bool
	profile string        // file for the host's CPU profile
	seconds time.Duration // of each load
	report  func(result)
}

func main() {
	asJSON := flag.Bool("json", false, "print one JSON object a line")
	quick := flag.Bool("quick", false, "measure shortly, to see that it works")
	only := flag.String("only", "", "regular expression of parts: store, gate, guest, cycle, fanout")
	profile := flag.String("profile", "", "write the host's CPU profile of the last part with a host to this file")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()

	b := &bench{root: "../..", quick: *quick, profile: *profile, seconds: 5 * time.Second}
	if *quick {
		b.seconds = time.Second
	}
	w := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', tabwriter.AlignRight)
	b.report = func(r result) {
		if *asJSON {
			line, err := json.Marshal(r)
			if err == nil {
				fmt.Println(string(line))
			}
			return
		}
		budget, ratio := "", ""
		if r.Budget > 0 {
			budget, ratio = number(r.Budget), fmt.Sprintf("%.2f×", r.Ratio)
		}
		fmt.Fprintf(w, "%s\t%s %s\t%s\t%s\t\v%s\n", r.Name, number(r.Value), r.Unit, budget, ratio, r.Note)
		w.Flush()
	}
	if !*asJSON {
		fmt.Printf("%s, %d CPUs; a ratio above 1 is better than the budget\n", runtime.Version(), runtime.NumCPU())
	}
	match, err := regexp.Compile(*only)
	if err != nil {
		fail(err)
	}
	for _, part := range []struct {
		name string
		run  func(context.Context) error
	}{{"store", b.store}, {"gate", b.gate}, {"guest", b.guests}, {"cycle", b.cycles}, {"fanout", b.fanout}} {
		if !match.MatchString(part.name) {
			continue
		}
		if err := part.run(ctx); err != nil {
			fail(fmt.Errorf("%s: %w", part.name, err))
		}
	}
}

func fail(err error) {
	fmt.Fprintln(os.Stderr, "pawl-bench:", err)
	os.Exit(1)
}

func number(v float64) string {
	switch {
	case v >= 100:
		return fmt.Sprintf("%.0f", v)
	case v >= 10:
		return fmt.Sprintf("%.1f", v)
	}
	return fmt.Sprintf("%.2f", v)
}
