package sluice

import (
	"fmt"

	"github.com/sluice-go/sluice/internal/wire"
)

// packed returns the header and the payload as they are stored. It is a copy.
func (t *Task) packed() string { return wire.Pack(t.Header, t.Payload) }

// checkHeader says what is wrong with a header. The error names no key and no value.
func checkHeader(header map[string]string) error {
	if len(header) > wire.MaxHeaders {
		return fmt.Errorf("%w: a header of %d pairs, %d are allowed", ErrInvalid, len(header), wire.MaxHeaders)
	}
	for key := range header {
		if len(key) == 0 || len(key) > wire.MaxHeaderKey {
			return fmt.Errorf("%w: a key of a header has 1 to %d bytes", ErrInvalid, wire.MaxHeaderKey)
		}
	}
	return nil
}

// checkSize says whether the task's header and payload are too large for a queue that allows so
// many bytes.
func (t *Task) checkSize(allowed int) error {
	size := len(t.Payload)
	for key, value := range t.Header {
		size += len(key) + len(value)
	}
	switch {
	case size <= allowed:
		return nil
	case len(t.Header) == 0:
		return fmt.Errorf("%w: payload of %d bytes, %d are allowed", ErrInvalid, size, allowed)
	default:
		return fmt.Errorf("%w: header and payload of %d bytes, %d are allowed", ErrInvalid, size, allowed)
	}
}
