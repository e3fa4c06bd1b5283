package abi_test

import (
	"bytes"
	"embed"
	"encoding/hex"
	"encoding/json"
	"os"
	"reflect"
	"strconv"
	"strings"
	"testing"

	"github.com/pawlhost/pawl/sdk/abi"
)

//go:embed vectors
var vectors embed.FS

func load(t *testing.T, name string, into any) {
	t.Helper()
	raw, err := vectors.ReadFile("vectors/" + name)
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(raw, into); err != nil {
		t.Fatalf("%s: %v", name, err)
	}
}

type lineCall struct {
	Op      string          `json:"op"`
	Request json.RawMessage `json:"request"`
}

// split is section 3 of ABI.md as a program: what a host finds in stdout.
func split(stdout, nonce string) (calls []lineCall, output string) {
	for stdout != "" {
		line, rest, ended := strings.Cut(stdout, "\n")
		call, ours := strings.CutPrefix(strings.TrimSuffix(line, "\r"), abi.LinePrefix+nonce)
		call, spaced := strings.CutPrefix(call, " ")
		if !ended || !ours || !spaced && call != "" {
			if ended {
				line += "\n"
			}
			output += line
		} else {
			op, request, _ := strings.Cut(call, " ")
			if op != "" && request == "" {
				request = "{}"
			}
			if op == "" || !json.Valid([]byte(request)) {
				request = "null"
			}
			calls = append(calls, lineCall{op, json.RawMessage(request)})
		}
		stdout = rest
	}
	return calls, output
}

func TestLineVectorsAreWhatTheTextSays(t *testing.T) {
	t.Parallel()
	var file struct {
		Nonce   string
		Streams []struct {
			Name, Stdout, Output string
			Calls                []lineCall
		}
	}
	load(t, "lines.json", &file)
	if len(file.Nonce) < abi.MinNonce || len(file.Nonce) > abi.MaxNonce {
		t.Errorf("nonce of %d characters", len(file.Nonce))
	}
	for _, v := range file.Streams {
		calls, output := split(v.Stdout, file.Nonce)
		if output != v.Output {
			t.Errorf("%s: output %q; want %q", v.Name, output, v.Output)
		}
		if len(calls) != len(v.Calls) {
			t.Errorf("%s: %d calls; want %d", v.Name, len(calls), len(v.Calls))
			continue
		}
		for i, want := range v.Calls {
			if calls[i].Op != want.Op || !sameJSON(t, calls[i].Request, want.Request) {
				t.Errorf("%s: call %q %s; want %q %s", v.Name, calls[i].Op, calls[i].Request, want.Op, want.Request)
			}
		}
	}
}

func sameJSON(t *testing.T, a, b []byte) bool {
	t.Helper()
	var x, y any
	for raw, into := range map[*[]byte]*any{&a: &x, &b: &y} {
		d := json.NewDecoder(bytes.NewReader(*raw))
		d.UseNumber()
		if err := d.Decode(into); err != nil {
			t.Fatalf("%s: %v", *raw, err)
		}
	}
	return reflect.DeepEqual(x, y)
}

func TestAnswerVectorsHaveOneMeaning(t *testing.T) {
	t.Parallel()
	var file struct {
		Answers []struct {
			Name, Bytes string
			OK, Error   json.RawMessage
		}
	}
	load(t, "answers.json", &file)
	for _, v := range file.Answers {
		var got struct{ OK, Error json.RawMessage }
		if err := json.Unmarshal([]byte(v.Bytes), &got); err != nil {
			t.Errorf("%s: %v", v.Name, err)
			continue
		}
		if (v.OK == nil) == (v.Error == nil) {
			t.Errorf("%s: wants exactly one of ok and error", v.Name)
		}
		for _, pair := range [][2]json.RawMessage{{got.OK, v.OK}, {got.Error, v.Error}} {
			if (pair[0] == nil) != (pair[1] == nil) || pair[0] != nil && !sameJSON(t, pair[0], pair[1]) {
				t.Errorf("%s: %s; want %s", v.Name, pair[0], pair[1])
			}
		}
	}
}

func TestStringVectorsDecodeToTheirBytes(t *testing.T) {
	t.Parallel()
	var file struct {
		Strings []struct{ JSON, Hex, Canonical string }
	}
	load(t, "strings.json", &file)
	for _, v := range file.Strings {
		for _, text := range []string{v.JSON, v.Canonical} {
			var got string
			if err := json.Unmarshal([]byte(text), &got); err != nil || hex.EncodeToString([]byte(got)) != v.Hex {
				t.Errorf("%s: %x, %v; want %s", text, got, err, v.Hex)
			}
		}
	}
}

// The text is the law, the constants its vocabulary: a word or number that is in
// one and not in the other would bind only half of the world.
func TestTheTextNamesEveryWordAndLimit(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("ABI.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, word := range []string{
		abi.OpInput, abi.OpOutput, abi.OpFail, abi.OpLog, abi.OpProgress, abi.OpConfig, abi.OpKVGet, abi.OpKVPut,
		abi.OpKVDelete, abi.OpKVList, abi.OpPause, abi.OpHTTP, abi.OpArtifactPut, abi.OpArtifactGet, abi.OpInterrupt,
		abi.OpCall, abi.OpSleep, abi.CodeUnsupported, abi.CodeInvalid, abi.CodeDenied, abi.CodeConflict,
		abi.CodeTooLarge, abi.CodeLimit, abi.CodeUnavailable, abi.CodeRejected, abi.ReasonApprovalRequired,
		abi.ReasonAwaitInput, abi.ReasonExternalEvent, abi.ReasonConstraintsConflict, abi.LogDebug, abi.LogInfo,
		abi.LogWarn, abi.LogError, abi.EffectsRead, abi.EffectsWrite, abi.KVNone, abi.KVReadOnly, abi.KVReadWrite,
		abi.ExportMemory, abi.ExportStart, abi.ManifestSection, abi.ImportModule,
	} {
		if !strings.Contains(string(text), "`"+word+"`") {
			t.Errorf("ABI.md does not name `%s`", word)
		}
	}
	for _, limit := range []struct {
		bytes int
		text  string
	}{
		{abi.MaxOp, "64 bytes"}, {abi.MaxRequest, "2 MiB each"}, {abi.MaxAnswer, "2 MiB each"}, {abi.MaxResult, "| result | 1 MiB"},
		{abi.MaxKey, "1,024 bytes ·"}, {abi.MaxValue, "· 64 KiB ·"}, {abi.MaxPayload, "· 64 KiB ·"}, {abi.MaxMessage, "· 8 KiB |"}, {abi.MaxSchema, "· 16 KiB ·"},
		{abi.MaxCalls, "10,000 ·"}, {abi.MaxLogLines, "· 1,000 ·"}, {abi.MaxKVWrites, "· 1,000 |"}, {abi.MaxKVBytes, "| 4 MiB |"},
		{abi.MaxListKeys, "most 1,000"}, {abi.DefaultList, "100 without"}, {abi.MaxStderrTail, "(4 KiB,"},
		{abi.MaxManifest, "at most 256 KiB"}, {abi.MinNonce, "16 to 64"}, {abi.MaxNonce, "16 to 64"},
	} {
		if !strings.Contains(strings.Join(strings.Fields(string(text)), " "), limit.text) || !spells(limit.text, limit.bytes) {
			t.Errorf("ABI.md and %d: no %q", limit.bytes, limit.text)
		}
	}
}

// spells says whether text has n in it, as 1,024 or 64 KiB or 2 MiB.
func spells(text string, n int) bool {
	plain := strings.ReplaceAll(text, ",", "")
	for _, unit := range []struct {
		size int
		name string
	}{{1 << 20, " MiB"}, {1 << 10, " KiB"}, {1, ""}} {
		if n%unit.size == 0 && strings.Contains(plain, strconv.Itoa(n/unit.size)+unit.name) {
			return true
		}
	}
	return false
}
