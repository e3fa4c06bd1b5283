//go:build !unix

package main

// maxConnections is how many connections are accepted at a time.
func maxConnections() int { return 1 << 16 }
