// Package c tests pawl.h, compiled natively with the address and
// undefined-behaviour sanitizers. Its tests need clang and skip without it.
package c

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
)

var build = sync.OnceValues(func() (string, error) {
	dir, err := os.MkdirTemp("", "pawl-c")
	if err != nil {
		return "", err
	}
	bin := filepath.Join(dir, "pawl_test")
	for _, source := range []string{"pawl.h", "testdata/pawl_test.c"} { // so that go test's cache knows them
		if _, err := os.ReadFile(source); err != nil {
			return "", err
		}
	}
	// Leaks are the memory model of pawl.h, so they are not looked for.
	out, err := exec.Command("clang-14", "-std=c11", "-g", "-O1", "-Wall", "-Wextra", "-Werror",
		"-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-o", bin, "testdata/pawl_test.c").CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("%w\n%s", err, out)
	}
	return bin, nil
})

func TestMain(m *testing.M) {
	code := m.Run()
	if bin, err := build(); err == nil {
		_ = os.RemoveAll(filepath.Dir(bin))
	}
	os.Exit(code)
}

// run gives documents to the program and returns its lines.
func run(t *testing.T, mode string, documents ...string) []string {
	t.Helper()
	if _, err := exec.LookPath("clang-14"); err != nil {
		t.Skip("clang-14 is not installed; on Debian 12: apt-get install clang-14 libclang-rt-14-dev")
	}
	bin, err := build()
	if err != nil {
		t.Fatal(err)
	}
	var in bytes.Buffer
	for _, d := range documents {
		fmt.Fprintln(&in, hex.EncodeToString([]byte(d)))
	}
	cmd := exec.CommandContext(t.Context(), bin, mode)
	cmd.Stdin = &in
	cmd.Env = append(os.Environ(), "ASAN_OPTIONS=detect_leaks=0")
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%v\n%s", err, stderr.String())
	}
	return strings.Split(strings.TrimSuffix(string(out), "\n"), "\n")
}

func vectors(t *testing.T, name string, into any) {
	t.Helper()
	raw, err := os.ReadFile("../../abi/vectors/" + name)
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(raw, into); err != nil {
		t.Fatal(err)
	}
}

func TestStringsAreReadAndWrittenAsTheVectorsSay(t *testing.T) {
	t.Parallel()
	var file struct {
		Strings []struct{ JSON, Hex, Canonical string }
	}
	vectors(t, "strings.json", &file)
	var documents, want []string
	for _, v := range file.Strings {
		documents = append(documents, v.JSON, v.Canonical)
		line := v.Hex + " " + hex.EncodeToString([]byte(v.Canonical))
		want = append(want, line, line)
	}
	for at := range 70 { // every alignment of the eight and thirty-two bytes at a time
		text := strings.Repeat("x", at) + "\n" + strings.Repeat("é", at) + `"`
		quoted, err := json.Marshal(text)
		if err != nil {
			t.Fatal(err)
		}
		documents = append(documents, string(quoted))
		want = append(want, hex.EncodeToString([]byte(text))+" "+hex.EncodeToString(quoted))
	}
	for _, bad := range []string{`"`, `"a`, `"\"`, `"\u12"`, `"\u12g4"`, `"\x"`, `1`, `null`, `a"`} {
		documents, want = append(documents, bad), append(want, "no string")
	}
	for i, got := range run(t, "string", documents...) {
		if got != want[i] {
			t.Errorf("%s: %s; want %s", documents[i], got, want[i])
		}
	}
}

func TestAnswersMeanWhatTheVectorsSay(t *testing.T) {
	t.Parallel()
	var file struct {
		Answers []struct {
			Name, Bytes string
			Error       *struct {
				Code, Message string
				Retryable     bool
			}
			Hex *string `json:"value_hex"`
		}
	}
	vectors(t, "answers.json", &file)
	var documents []string
	for _, v := range file.Answers {
		documents = append(documents, v.Bytes)
	}
	for i, got := range run(t, "answer", documents...) {
		v := file.Answers[i]
		var want string
		switch {
		case v.Error != nil:
			retryable := 0
			if v.Error.Retryable {
				retryable = 1
			}
			want = fmt.Sprintf("error %x %x %d", v.Error.Code, v.Error.Message, retryable)
		case v.Hex != nil && strings.Contains(v.Bytes, `"value_b64"`), v.Hex == nil:
			want = "other " + hex.EncodeToString([]byte(strings.TrimSuffix(strings.TrimPrefix(v.Bytes, `{"ok":`), "}")))
		default:
			want = "value " + *v.Hex
		}
		if got != want {
			t.Errorf("%s: %s; want %s", v.Name, got, want)
		}
	}
}

// Whatever a host sends, pawl.h reads no byte behind its end: the sanitizer ends
// the program at the first.
func TestNothingIsReadBehindTheEnd(t *testing.T) {
	t.Parallel()
	rnd := rand.New(rand.NewPCG(3, 4))
	seeds := []string{
		`{"ok":{"value":"a\ud83d\ude00\n","version":1},"x":[1,-2.5e+3,true,null,{"a":[]}]}`,
		` [ "a" , { "b" : "\\\"" } , [ [ [ ] ] ] , "` + strings.Repeat("x", 60) + `\u00e9" ] `,
		`{"error":{"code":"denied","message":"","retryable":true}}`,
	}
	alphabet := `{}[]",:\u0d8 x1-` + "\n\x00\xff"
	var documents []string
	for i := range 400 {
		b := []byte(seeds[i%len(seeds)])
		for range rnd.IntN(4) {
			b[rnd.IntN(len(b))] = alphabet[rnd.IntN(len(alphabet))]
		}
		documents = append(documents, string(b))
	}
	for range 400 {
		b := make([]byte, rnd.IntN(40))
		for i := range b {
			b[i] = alphabet[rnd.IntN(len(alphabet))]
		}
		documents = append(documents, string(b))
	}
	run(t, "any", documents...)
}
