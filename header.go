package sluice

import (
	"encoding/binary"
	"fmt"
	"slices"
	"strings"
)

const (
	// maxHeaders is the most pairs that a task's header may have.
	maxHeaders = 64
	// maxHeaderKey is the most bytes that a key of a header may have.
	maxHeaderKey = 256
	// frameMagic is what a frame begins with, with the number of its format. No UTF-8 text begins with
	// its first byte.
	frameMagic = "\xffSLU\x01"
)

// A task's header is kept in front of its payload, in a frame, so that it stays with the
// payload whatever becomes of the task, and no script knows of it:
//
//	frameMagic, the size of the pairs, the pairs, the payload
//
// A pair is a key and a value, each after its size; the keys ascend. A size is a uvarint of the
// fewest bytes. A payload without a header is stored as it is, except one that begins with
// frameMagic: that gets a frame without pairs.
//
// So there is one frame for each header and payload. What begins like a frame and is not exactly what
// packed would have written is a payload, from a foreign producer.

// packed returns the header and the payload as they are stored. It is a copy.
func (t *Task) packed() string {
	if !t.isFramed() {
		return string(t.Payload)
	}
	var room [maxHeaders]string // checkHeader has checked that there are no more
	keys := room[:0]
	for key := range t.Header {
		keys = append(keys, key)
	}
	slices.Sort(keys)
	var frame strings.Builder
	frame.Grow(t.packedSize())
	frame.WriteString(frameMagic)
	writeSize(&frame, pairsSize(t.Header))
	for _, key := range keys {
		value := t.Header[key]
		writeSize(&frame, len(key))
		frame.WriteString(key)
		writeSize(&frame, len(value))
		frame.WriteString(value)
	}
	frame.Write(t.Payload)
	return frame.String()
}

// isFramed reports whether the task is stored with a frame.
func (t *Task) isFramed() bool {
	return len(t.Header) > 0 || len(t.Payload) >= len(frameMagic) && string(t.Payload[:len(frameMagic)]) == frameMagic
}

// packedSize returns how many bytes packed returns.
func (t *Task) packedSize() int {
	if !t.isFramed() {
		return len(t.Payload)
	}
	pairs := pairsSize(t.Header)
	return len(frameMagic) + sizeOfSize(pairs) + pairs + len(t.Payload)
}

// pairsSize returns how many bytes the pairs of a header have in a frame.
func pairsSize(header map[string]string) (n int) {
	for key, value := range header {
		n += sizeOfSize(len(key)) + len(key) + sizeOfSize(len(value)) + len(value)
	}
	return n
}

func sizeOfSize(n int) int {
	var to [binary.MaxVarintLen64]byte
	return binary.PutUvarint(to[:], uint64(n))
}

func writeSize(frame *strings.Builder, n int) {
	var to [binary.MaxVarintLen64]byte
	frame.Write(to[:binary.PutUvarint(to[:], uint64(n))])
}

// unpack returns the header and the payload of what is stored; nil for those that are empty.
// The result shares no memory with what is stored.
func unpack(stored string) (header map[string]string, payload []byte) {
	header, rest, ok := cutFrame(stored)
	if !ok {
		header, rest = nil, stored
	}
	if rest != "" {
		payload = []byte(rest)
	}
	return header, payload
}

// cutFrame is unpack for a frame. It reports whether there is one.
func cutFrame(stored string) (header map[string]string, payload string, ok bool) {
	rest, ok := strings.CutPrefix(stored, frameMagic)
	if !ok {
		return nil, "", false
	}
	pairs, payload, ok := cutSized(rest)
	if !ok || pairs == "" {
		return nil, payload, ok && strings.HasPrefix(payload, frameMagic)
	}
	pairs = strings.Clone(pairs) // else the header would keep the payload in memory
	header = map[string]string{}
	for last := ""; pairs != ""; {
		var key, value string
		key, pairs, ok = cutSized(pairs)
		if !ok || key <= last || len(key) > maxHeaderKey || len(header) == maxHeaders {
			return nil, "", false
		}
		if value, pairs, ok = cutSized(pairs); !ok {
			return nil, "", false
		}
		header[key], last = value, key
	}
	return header, payload, true
}

// cutSized cuts off the size at the beginning of s, and as many bytes. It reports whether they are
// there.
func cutSized(s string) (first, rest string, ok bool) {
	var begin [binary.MaxVarintLen64]byte
	n, width := binary.Uvarint(begin[:copy(begin[:], s)])
	if width <= 0 || width > 1 && begin[width-1] == 0 || n > uint64(len(s)-width) {
		return "", "", false
	}
	end := width + int(n)
	return s[width:end], s[end:], true
}

// checkHeader says what is wrong with a header. The error names no key and no value.
func checkHeader(header map[string]string) error {
	if len(header) > maxHeaders {
		return fmt.Errorf("%w: a header of %d pairs, %d are allowed", ErrInvalid, len(header), maxHeaders)
	}
	for key := range header {
		if len(key) == 0 || len(key) > maxHeaderKey {
			return fmt.Errorf("%w: a key of a header has 1 to %d bytes", ErrInvalid, maxHeaderKey)
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
