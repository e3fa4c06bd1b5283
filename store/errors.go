package store

import "errors"

var (
	// ErrNotFound means that there is no such item or blob, or that it belongs to another tenant.
	ErrNotFound = errors.New("not found")
	// ErrConflict means that a precondition did not hold: reload and reconsider.
	ErrConflict = errors.New("conflict")
	// ErrTooLarge means that the change is larger than an engine can write atomically. Nothing was written.
	ErrTooLarge = errors.New("change too large")
	// ErrClosed means that the store is closed, or that a failed commit has ended it.
	ErrClosed = errors.New("store closed")
	// ErrCorrupt means that stored bytes do not decode, or do not match their digest.
	ErrCorrupt = errors.New("corrupt record")
	// ErrFormat means that a directory was written by a newer, unknown store format.
	ErrFormat = errors.New("unknown store format")
	// ErrLocked means that another process has the directory open.
	ErrLocked = errors.New("store is in use by another process")
	// ErrFull means that the medium has too little space left to write safely. Nothing was written, and the store goes on
	// once there is space.
	ErrFull = errors.New("no space left for the store")
	// ErrTrimmed means that a log no longer has the entries right after a cursor.
	ErrTrimmed = errors.New("log trimmed")
)
