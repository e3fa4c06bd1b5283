package plugins

import (
	"strings"
	"testing"
)

func TestManifestRefusesWhatItDoesNotKnow(t *testing.T) {
	t.Parallel()
	tool := `{"name":"a","description":"d","input_schema":{"type":"object"}}`
	for _, c := range []struct{ why, manifest, want string }{
		{"good", `{"abi":1,"level":2,"tools":[` + tool + `]}`, ""},
		{"everything", `{"abi":1,"level":0,"name":"n","version":"1","tools":[{"name":"a-B_9","description":"d","input_schema":{"type":"object"},"output_schema":true,"effects":"read"}],
			"permissions":{"kv":"ro"},"limits":{"timeout_ms":1,"memory_bytes":1,"result_bytes":1,"calls":1,"log_lines":1}}`, ""},
		{"a misspelt member", `{"abi":1,"level":2,"tools":[],"permisions":{}}`, "/permisions"},
		{"another case", `{"ABI":1,"level":2,"tools":[` + tool + `]}`, "/ABI"},
		{"a misspelt permission", `{"abi":1,"level":2,"tools":[` + tool + `],"permissions":{"KV":"rw"}}`, "/permissions/KV"},
		{"a permission of a later edition", `{"abi":1,"level":2,"tools":[` + tool + `],"permissions":{"http":["x"]}}`, "/permissions/http"},
		{"a misspelt limit", `{"abi":1,"level":2,"tools":[` + tool + `],"limits":{"timeout":1}}`, "/limits/timeout"},
		{"a misspelt tool member", `{"abi":1,"level":2,"tools":[{"name":"a","effect":"read"}]}`, "/tools/0/effect"},
		{"a type", `{"abi":"1","level":2,"tools":[` + tool + `]}`, "/abi"},
		{"twice", `{"abi":1,"abi":1,"level":2,"tools":[` + tool + `]}`, "duplicate"},
		{"another edition", `{"abi":2,"level":2,"tools":[` + tool + `]}`, "/abi"},
		{"no edition", `{"level":2,"tools":[` + tool + `]}`, "/abi"},
		{"another level", `{"abi":1,"level":3,"tools":[` + tool + `]}`, "/level"},
		{"no tools", `{"abi":1,"level":2,"tools":[]}`, "/tools"},
		{"too many tools", `{"abi":1,"level":2,"tools":[` + strings.TrimSuffix(strings.Repeat(tool+",", 129), ",") + `]}`, "/tools"},
		{"a tool twice", `{"abi":1,"level":2,"tools":[` + tool + `,` + tool + `]}`, "/tools/1/name"},
		{"a dot in a name", `{"abi":1,"level":2,"tools":[{"name":"a.b","description":"d","input_schema":{"type":"object"}}]}`, "/tools/0/name"},
		{"a digit first", `{"abi":1,"level":2,"tools":[{"name":"9","description":"d","input_schema":{"type":"object"}}]}`, "/tools/0/name"},
		{"a look-alike", `{"abi":1,"level":2,"tools":[{"name":"wrіte","description":"d","input_schema":{"type":"object"}}]}`, "/tools/0/name"},
		{"a long name", `{"abi":1,"level":2,"tools":[{"name":"` + strings.Repeat("a", 65) + `","description":"d","input_schema":{"type":"object"}}]}`, "/tools/0/name"},
		{"no description", `{"abi":1,"level":2,"tools":[{"name":"a","input_schema":{"type":"object"}}]}`, "/tools/0/description"},
		{"other effects", `{"abi":1,"level":2,"tools":[{"name":"a","description":"d","input_schema":{"type":"object"},"effects":"none"}]}`, "/tools/0/effects"},
		{"another kv", `{"abi":1,"level":2,"tools":[` + tool + `],"permissions":{"kv":"wr"}}`, "/permissions/kv"},
		{"a negative limit", `{"abi":1,"level":2,"tools":[` + tool + `],"limits":{"calls":-1}}`, "/limits/calls"},
		{"not JSON", `{"abi":1`, ""},
		{"empty", ``, ""},
		{"too long", `{"name":"` + strings.Repeat("a", 256<<10) + `"}`, "limit"},
	} {
		m, err := ParseManifest([]byte(c.manifest))
		if good := c.why == "good" || c.why == "everything"; good {
			if err != nil {
				t.Errorf("%s: %v", c.why, err)
			}
			continue
		}
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v (%+v)", c.why, err, m)
		}
	}
}

func TestInvariant5_UndeclaredEffectsAreWrites(t *testing.T) {
	t.Parallel()
	m, err := ParseManifest([]byte(`{"abi":1,"level":2,"tools":[{"name":"a","description":"d","input_schema":{"type":"object"}}]}`))
	if err != nil || m.Tools[0].Effects != "write" || m.Permissions.KV != "none" {
		t.Fatalf("%+v %v", m, err)
	}
}

func FuzzManifest(f *testing.F) {
	f.Add([]byte(`{"abi":1,"level":2,"tools":[{"name":"a","description":"d","input_schema":{"type":"object"}}],"limits":{"calls":1}}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		m, err := ParseManifest(b)
		if err == nil && (m.ABI != 1 || len(m.Tools) == 0 || m.Level < 0 || m.Level > 2) {
			t.Fatalf("%q gives %+v", b, m)
		}
	})
}
