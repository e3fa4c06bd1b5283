// Package store owns what pawl remembers: keys, records, the one write, and the contract that every engine keeps.
//
// It has no rules and reads no clock: times arrive in the [Change]. Run transitions are built by package host; this
// package makes them durable, all or nothing, and shows them to nobody before that. The engines live in memstore (the
// reference model) and badgerstore (the embedded default); storetest holds the suite that both pass.
package store
