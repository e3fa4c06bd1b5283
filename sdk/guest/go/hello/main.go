// Command hello is a pawl plugin in Go: a greeting, and a counter that asks
// before it starts again from zero.
package main

import (
	"fmt"
	"strconv"

	"github.com/pawlhost/pawl/sdk/abi"
	"github.com/pawlhost/pawl/sdk/guest/go/tool"
)

type greet struct {
	Name string `json:"name" description:"Whom to greet."`
	Lang string `json:"lang,omitempty" description:"The language of the greeting." enum:"en|de|pl" default:"\"en\""`
}

type greeting struct {
	Text string `json:"text"`
}

type count struct {
	Key string `json:"key" description:"What is counted."`
}

type total struct {
	Total int `json:"total"`
}

func init() {
	tool.Describe(tool.Info{Name: "hello", Version: "1.0.0", KV: abi.KVReadWrite})
	tool.Handle("greet", tool.Spec{Description: "Greet somebody.", Effects: tool.Read}, greetTool)
	tool.Handle("count", tool.Spec{Description: "Count one more, and say how many."}, countTool)
	tool.Handle("reset", tool.Spec{Description: "Start counting from zero; a person is asked first."}, resetTool)
}

func greetTool(c *tool.Call, in greet) (greeting, error) {
	words := map[string]string{"": "Hello", "en": "Hello", "de": "Hallo", "pl": "Cześć"}
	word, ok := words[in.Lang]
	if !ok {
		return greeting{}, tool.Fail("unknown_language", "no greeting in %q; use en, de or pl", in.Lang)
	}
	c.Log(abi.LogDebug, "greeting "+in.Name)
	return greeting{fmt.Sprintf("%s, %s!", word, in.Name)}, nil
}

func countTool(c *tool.Call, in count) (total, error) {
	old, err := c.KV().Get(in.Key)
	if err != nil {
		return total{}, err
	}
	n, _ := strconv.Atoi(string(old.Value)) // nothing yet is 0
	_, err = c.KV().Put(in.Key, []byte(strconv.Itoa(n+1)))
	return total{n + 1}, err
}

func resetTool(c *tool.Call, in count) (total, error) {
	key := "reset " + in.Key
	if !c.Approved(key) {
		return total{}, c.Pause(abi.ReasonApprovalRequired, map[string]string{
			"approval_key": key,
			"message":      "Start counting " + in.Key + " from zero?",
		})
	}
	return total{}, c.KV().Delete(in.Key)
}

func main() {}
