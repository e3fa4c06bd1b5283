package tool

import (
	"encoding/json"
	"fmt"
	"reflect"
	"strings"
)

var rawMessage = reflect.TypeFor[json.RawMessage]()

// schemaOf makes the input schema of a tool from its argument type.
func schemaOf[In any](tool string) json.RawMessage {
	t := reflect.TypeFor[In]()
	if t.Kind() != reflect.Struct {
		panic(fmt.Sprintf("tool: the arguments of %s are a %s; they must be a struct, or give Spec.Input", tool, t))
	}
	raw, err := json.Marshal(schema(t, tool, nil))
	if err != nil {
		panic(fmt.Sprintf("tool: schema of %s: %v", tool, err))
	}
	return raw
}

// schema panics on a type that has no honest schema, naming the place. within
// holds the structs around t: a type within itself would need $ref.
func schema(t reflect.Type, at string, within []reflect.Type) map[string]any {
	if t == rawMessage {
		return map[string]any{}
	}
	switch t.Kind() {
	case reflect.Pointer:
		return schema(t.Elem(), at, within)
	case reflect.String:
		return map[string]any{"type": "string"}
	case reflect.Bool:
		return map[string]any{"type": "boolean"}
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64:
		return map[string]any{"type": "integer"}
	case reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		return map[string]any{"type": "integer", "minimum": 0}
	case reflect.Float32, reflect.Float64:
		return map[string]any{"type": "number"}
	case reflect.Slice:
		if t.Elem().Kind() == reflect.Uint8 {
			return map[string]any{"type": "string", "contentEncoding": "base64"}
		}
		return map[string]any{"type": "array", "items": schema(t.Elem(), at+"[]", within)}
	case reflect.Map:
		if t.Key().Kind() == reflect.String {
			return map[string]any{"type": "object", "additionalProperties": schema(t.Elem(), at+"{}", within)}
		}
	case reflect.Interface:
		if t.NumMethod() == 0 {
			return map[string]any{}
		}
	case reflect.Struct:
		for _, outer := range within {
			if outer == t {
				panic(fmt.Sprintf("tool: %s: %s contains itself; give Spec.Input", at, t))
			}
		}
		return object(t, at, append(within, t))
	}
	panic(fmt.Sprintf("tool: %s: no schema for %s; give Spec.Input", at, t))
}

func object(t reflect.Type, at string, within []reflect.Type) map[string]any {
	properties := map[string]any{}
	required := []string{}
	for i := range t.NumField() {
		f := t.Field(i)
		name, options, _ := strings.Cut(f.Tag.Get("json"), ",")
		if !f.Anonymous && !f.IsExported() || name == "-" && options == "" {
			continue
		}
		if f.Anonymous || strings.Contains(options, "string") {
			panic(fmt.Sprintf("tool: %s.%s: embedded fields and the string option have no schema; give Spec.Input", at, f.Name))
		}
		if name == "" {
			name = f.Name
		}
		s := schema(f.Type, at+"."+name, within)
		keywords(s, f, at+"."+name)
		properties[name] = s
		if f.Type.Kind() != reflect.Pointer && !strings.Contains(options, "omit") {
			required = append(required, name)
		}
	}
	s := map[string]any{"type": "object", "properties": properties, "additionalProperties": false}
	if len(required) > 0 {
		s["required"] = required
	}
	return s
}

func keywords(s map[string]any, f reflect.StructField, at string) {
	if v, ok := f.Tag.Lookup("description"); ok {
		s["description"] = v
	}
	if v, ok := f.Tag.Lookup("format"); ok {
		s["format"] = v
	}
	if v, ok := f.Tag.Lookup("enum"); ok {
		s["enum"] = strings.Split(v, "|")
	}
	if v, ok := f.Tag.Lookup("default"); ok {
		if !json.Valid([]byte(v)) {
			panic(fmt.Sprintf("tool: %s: default %q is not JSON (a string needs quotes)", at, v))
		}
		s["default"] = json.RawMessage(v)
	}
}
