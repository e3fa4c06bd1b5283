// Command gohello is a level 0 tool in plain Go, for the benchmark of a 3 MB guest.
package main

import (
	"encoding/json"
	"fmt"
	"os"
)

func main() {
	var req struct {
		Arguments struct{ Name string } `json:"arguments"`
	}
	if err := json.NewDecoder(os.Stdin).Decode(&req); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	_ = json.NewEncoder(os.Stdout).Encode("hello " + req.Arguments.Name)
}
