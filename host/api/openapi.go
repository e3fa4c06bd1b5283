package api

import (
	_ "embed"
	"net/http"
)

// description describes the route table as OpenAPI 3.1. The tests make it (openapi_describe_test.go) and hold it against the table;
// it is a file so that a change of the wire shows in review.
//
//go:generate go test . -run TestOpenAPIIsWhatTheRouteTableSays -update
//go:embed openapi.json
var description []byte

func openAPI(_ *Server, w http.ResponseWriter, _ *request) error {
	send(w, http.StatusOK, "application/json", description)
	return nil
}
