package api

import (
	"encoding/json"
	"net/http"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"github.com/pawlhost/pawl/host"
	"github.com/pawlhost/pawl/policy"
)

// requestNeeds are the required members of types that occur inside request bodies.
var requestNeeds = map[reflect.Type][]string{
	reflect.TypeFor[host.Decision]():      {"approval_id", "kind"},
	reflect.TypeFor[host.EvalPrincipal](): {},
	reflect.TypeFor[host.AgentLimits]():   {},
}

var enums = map[reflect.Type][]string{
	reflect.TypeOf(host.Run{}.State):      runStates,
	reflect.TypeOf(host.Approval{}.State): {"pending", "decided", "expired", "cancelled", "superseded"},
	reflect.TypeFor[host.Preset]():        policy.Presets(),
	reflect.TypeOf(host.Call{}.State):     {"planned", "awaiting", "started", "finished"},
}

type jsonObject = map[string]any

// describer collects the schemas that routes refer to.
type describer struct{ schemas jsonObject }

// describe renders the route table as an OpenAPI 3.1 document.
func describe() []byte {
	d := describer{schemas: jsonObject{}}
	paths := jsonObject{}
	problem := d.schema(reflect.TypeFor[Problem](), nil)
	for _, rt := range routes() {
		path, ok := paths[rt.path].(jsonObject)
		if !ok {
			path = jsonObject{}
			paths[rt.path] = path
		}
		path[strings.ToLower(rt.method)] = d.operation(rt, problem)
	}
	b, err := json.MarshalIndent(jsonObject{
		"openapi": "3.1.0",
		"info": jsonObject{
			"title": "pawl", "version": "1", "license": jsonObject{"name": "Apache-2.0", "identifier": "Apache-2.0"},
			"description": "A tool host for AI agents. Errors are application/problem+json with a code; unknown members of a request are refused; bodies are I-JSON of at most 1 MiB.",
		},
		"paths": paths,
		"components": jsonObject{
			"schemas":         d.schemas,
			"securitySchemes": jsonObject{"key": jsonObject{"type": "http", "scheme": "bearer", "description": "An API key, or a token of the identity provider that the host is told of."}},
		},
		"security": []any{jsonObject{"key": []string{}}},
	}, "", "  ")
	if err != nil {
		panic(err) // strings, numbers, maps and slices only
	}
	return append(b, '\n')
}

func (d *describer) operation(rt route, problem jsonObject) jsonObject {
	op := jsonObject{"summary": rt.summary, "operationId": operationID(rt)}
	if rt.auth == open {
		op["security"] = []any{}
	}
	var params []any
	for seg := range strings.SplitSeq(rt.path, "/") {
		if strings.HasPrefix(seg, "{") {
			params = append(params, jsonObject{"name": seg[1 : len(seg)-1], "in": "path", "required": true, "schema": jsonObject{"type": "string"}})
		}
	}
	for _, q := range rt.query {
		schema := jsonObject{"type": "string"}
		if q == "limit" {
			schema = jsonObject{"type": "integer", "minimum": 1, "maximum": maxLimit}
		}
		params = append(params, jsonObject{"name": q, "in": "query", "schema": schema})
	}
	if rt.idem {
		params = append(params, jsonObject{"name": "Idempotency-Key", "in": "header", "schema": jsonObject{"type": "string", "minLength": 1, "maxLength": maxKey}})
	}
	if rt.prefer {
		params = append(params, jsonObject{"name": "Prefer", "in": "header", "description": "wait=N waits up to N seconds (at most 60) for a stop or an end.", "schema": jsonObject{"type": "string"}})
	}
	if rt.stream == "text/event-stream" {
		params = append(params, jsonObject{"name": "Last-Event-ID", "in": "header", "schema": jsonObject{"type": "string"}})
	}
	if params != nil {
		op["parameters"] = params
	}
	if rt.body != nil {
		needs := rt.needs
		if needs == nil {
			needs = []string{}
		}
		op["requestBody"] = jsonObject{
			"required": len(needs) > 0,
			"content":  jsonObject{"application/json": jsonObject{"schema": d.schema(reflect.TypeOf(rt.body), needs)}},
		}
	}
	answers := jsonObject{}
	for status, v := range rt.answers {
		a := jsonObject{"description": http.StatusText(status)}
		switch {
		case v != nil:
			a["content"] = jsonObject{"application/json": jsonObject{"schema": d.schema(reflect.TypeOf(v), nil)}}
		case rt.stream != "":
			a["content"] = jsonObject{rt.stream: jsonObject{"schema": jsonObject{"type": "string"}}}
		}
		answers[strconv.Itoa(status)] = a
	}
	for _, status := range rt.problems() {
		answers[strconv.Itoa(status)] = jsonObject{
			"description": http.StatusText(status),
			"content":     jsonObject{"application/problem+json": jsonObject{"schema": problem}},
		}
	}
	op["responses"] = answers
	return op
}

// problems are the statuses of a route's errors.
func (rt *route) problems() []int {
	all := []int{http.StatusBadRequest, http.StatusNotFound, http.StatusRequestEntityTooLarge, http.StatusInternalServerError}
	if rt.auth == open {
		all = []int{http.StatusRequestEntityTooLarge, http.StatusInternalServerError}
	} else {
		all = append(all, http.StatusUnauthorized, http.StatusForbidden, http.StatusTooManyRequests,
			http.StatusServiceUnavailable) // a token cannot be judged while its provider is away
	}
	for _, status := range rt.errors {
		if !slices.Contains(all, status) {
			all = append(all, status)
		}
	}
	return all
}

func operationID(rt route) string {
	id := strings.ToLower(rt.method)
	for seg := range strings.SplitSeq(strings.NewReplacer("/v1", "", "{", "", "}", "", ".", "_").Replace(rt.path), "/") {
		if seg != "" {
			id += "_" + seg
		}
	}
	return id
}

// schema describes a type: by reference if it is a struct. needs is not nil for a request body, whose other members are
// optional and which has no members beside those described.
func (d *describer) schema(t reflect.Type, needs []string) jsonObject {
	for t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	if values, ok := enums[t]; ok {
		return jsonObject{"type": "string", "enum": values}
	}
	switch t {
	case reflect.TypeFor[host.Time]():
		return jsonObject{"type": "string", "format": "date-time"}
	case reflect.TypeFor[json.RawMessage]():
		return jsonObject{}
	case reflect.TypeFor[anyObject]():
		return jsonObject{"type": "object"}
	}
	switch t.Kind() {
	case reflect.String:
		return jsonObject{"type": "string"}
	case reflect.Bool:
		return jsonObject{"type": "boolean"}
	case reflect.Int, reflect.Int64:
		return jsonObject{"type": "integer"}
	case reflect.Uint64:
		return jsonObject{"type": "integer", "minimum": 0}
	case reflect.Slice:
		return jsonObject{"type": "array", "items": d.schema(t.Elem(), nil)}
	case reflect.Map, reflect.Interface:
		return jsonObject{}
	case reflect.Struct:
		name := strings.ToUpper(t.Name()[:1]) + t.Name()[1:]
		if _, done := d.schemas[name]; !done {
			d.schemas[name] = jsonObject{} // in case it refers to itself
			d.schemas[name] = d.structure(t, needs)
		}
		return jsonObject{"$ref": "#/components/schemas/" + name}
	}
	panic("no schema for " + t.String())
}

func (d *describer) structure(t reflect.Type, needs []string) jsonObject {
	inRequest := needs != nil
	if n, ok := requestNeeds[t]; ok {
		needs, inRequest = n, true
	}
	props, required := jsonObject{}, []string{}
	for _, f := range reflect.VisibleFields(t) {
		tag := f.Tag.Get("json")
		name, opts, _ := strings.Cut(tag, ",")
		if f.Anonymous && tag == "" || name == "-" || !f.IsExported() {
			continue
		}
		schema := d.schema(f.Type, nil)
		if f.Type.Kind() == reflect.Pointer && !strings.Contains(opts, "omitempty") && !inRequest {
			schema = jsonObject{"anyOf": []any{schema, jsonObject{"type": "null"}}}
		}
		props[name] = schema
		if !inRequest && !strings.Contains(opts, "omitempty") {
			required = append(required, name)
		}
	}
	if inRequest {
		required = needs
	}
	out := jsonObject{"type": "object", "properties": props}
	if len(required) > 0 {
		out["required"] = required
	}
	if inRequest {
		out["additionalProperties"] = false
	}
	return out
}
