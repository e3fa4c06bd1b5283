// Command write-line is a pawl plugin whose tool asks before it writes.
package main

import (
	"github.com/pawlhost/pawl/sdk/abi"
	"github.com/pawlhost/pawl/sdk/guest/go/tool"
)

type line struct {
	Text string `json:"text" description:"The line to write."`
}

type written struct {
	OK bool `json:"ok"`
}

type lines struct {
	Lines []string `json:"lines"`
}

func init() {
	tool.Describe(tool.Info{Name: "write-line", Version: "1.0.0", KV: abi.KVReadWrite})
	tool.Handle("write_line", tool.Spec{Description: "Write a line. A person is asked before each one."}, writeLine)
	tool.Handle("read_lines", tool.Spec{Description: "Read what was written, oldest first.", Effects: tool.Read}, readLines)
}

func writeLine(c *tool.Call, in line) (written, error) {
	if !c.Approved("write_line") {
		// The call ends here; nothing below runs. After an approval the same call is made again, and finds the flag.
		return written{}, c.Pause(abi.ReasonApprovalRequired, map[string]string{
			"title":        "Approve the write",
			"preview":      in.Text,
			"approval_key": "write_line",
		})
	}
	// A call's id is the same when the call is run again after a crash, so a line is never written twice. Ids sort by time.
	_, err := c.KV().Put("line/"+c.CallID(), []byte(in.Text))
	return written{OK: true}, err
}

func readLines(c *tool.Call, _ struct{}) (lines, error) {
	out := lines{Lines: []string{}}
	for key, err := range c.KV().List("line/") {
		if err != nil {
			return out, err
		}
		e, err := c.KV().Get(key)
		if err != nil {
			return out, err
		}
		out.Lines = append(out.Lines, string(e.Value))
	}
	return out, nil
}

func main() {}
