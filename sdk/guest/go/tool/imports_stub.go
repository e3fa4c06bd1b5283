//go:build !wasip1

package tool

import "github.com/pawlhost/pawl/sdk/abi"

// hostCall is what a native program has: no host. Tests bring their own, from
// package tooltest.
func hostCall(string, []byte) ([]byte, int) { return nil, abi.ErrMalformed }

var _ Host = hostCall
