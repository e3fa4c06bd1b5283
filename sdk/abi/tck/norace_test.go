//go:build !race

package tck_test

const race = false
