package store

import (
	"bytes"
	"encoding/binary"
	"slices"
	"strconv"
	"strings"
	"time"
)

const (
	// MaxHeaders is the most pairs that a task's header may have, with its kind and its end.
	MaxHeaders = 64
	// MaxHeaderKey is the length of the longest key of a header, and of the longest kind, in bytes.
	MaxHeaderKey = 256
	// KindKey is the key in a frame of the task's kind. No header has it. A client that knows no
	// kinds reads it as one.
	KindKey = "sluice-kind"
	// ExpiresKey is likewise that of the time after which no handler gets the task: decimal
	// microseconds of Unix time.
	ExpiresKey = "sluice-expires"
	// frameMagic is what a frame begins with, with the number of its format. No UTF-8 text begins
	// with its first byte.
	frameMagic = "\xffSLU\x01"
)

// A task's kind, header and end are kept in front of its payload, in a frame, so that they stay with
// the payload whatever becomes of the task, and no script knows of them:
//
//	frameMagic, the size of the pairs, the pairs, the payload
//
// A pair is a key and a value, each after its size; the keys ascend. A size is a uvarint of the
// fewest bytes. The kind is a pair, too, if there is one, and so is the end. A payload with none is
// stored as it is, except one that begins with frameMagic: that gets a frame without pairs.
//
// So there is one frame for each kind, header, end and payload. What begins like a frame and is not
// exactly what Pack would have written is a payload, from a foreign producer.

// Pack returns a kind, "" for none, a header, when the task expires, zero for never, and a payload,
// as they are stored: MaxHeaders pairs at most. It is a copy.
func Pack(kind string, header map[string]string, expires time.Time, payload []byte) string {
	if kind == "" && len(header) == 0 && expires.IsZero() && !bytes.HasPrefix(payload, []byte(frameMagic)) {
		return string(payload)
	}
	var room [MaxHeaders]string
	keys := room[:0]
	for key := range header {
		keys = append(keys, key)
	}
	if kind != "" {
		keys = append(keys, KindKey)
	}
	if !expires.IsZero() {
		keys = append(keys, ExpiresKey)
	}
	slices.Sort(keys)
	pairs := make([]byte, 0, 512) // mostly enough, and not on the heap
	for _, key := range keys {
		value := header[key]
		switch {
		case key == KindKey:
			value = kind
		case key == ExpiresKey && !expires.IsZero():
			value = strconv.FormatInt(expires.UnixMicro(), 10)
		}
		pairs = appendSized(appendSized(pairs, key), value)
	}
	size := binary.AppendUvarint(make([]byte, 0, binary.MaxVarintLen64), uint64(len(pairs)))
	var frame strings.Builder
	frame.Grow(len(frameMagic) + len(size) + len(pairs) + len(payload))
	frame.WriteString(frameMagic)
	frame.Write(size)
	frame.Write(pairs)
	frame.Write(payload)
	return frame.String()
}

func appendSized(b []byte, s string) []byte {
	return append(binary.AppendUvarint(b, uint64(len(s))), s...)
}

// Unpack returns the kind, the header, the end and the payload of what is stored; zero for those
// that are not there. The result shares no memory with what is stored.
func Unpack(stored string) (kind string, header map[string]string, expires time.Time, payload []byte) {
	kind, header, rest, ok := cutFrame(stored)
	if !ok {
		kind, header, rest = "", nil, stored
	}
	if end, has := header[ExpiresKey]; has { // the library's, or a header of an earlier build
		if us, err := strconv.ParseInt(end, 10, 64); err == nil && us >= 0 && strconv.FormatInt(us, 10) == end {
			expires = time.UnixMicro(us)
			if delete(header, ExpiresKey); len(header) == 0 {
				header = nil
			}
		}
	}
	if rest != "" {
		payload = []byte(rest)
	}
	return kind, header, expires, payload
}

// cutFrame is Unpack for a frame, whose end is in the header. It reports whether there is one.
func cutFrame(stored string) (kind string, header map[string]string, payload string, ok bool) {
	rest, ok := strings.CutPrefix(stored, frameMagic)
	if !ok {
		return "", nil, "", false
	}
	pairs, payload, ok := cutSized(rest)
	if !ok || pairs == "" {
		return "", nil, payload, ok && strings.HasPrefix(payload, frameMagic)
	}
	pairs = strings.Clone(pairs) // else the header would keep the payload in memory
	last := ""
	for n := 0; pairs != ""; n++ {
		var key, value string
		key, pairs, ok = cutSized(pairs)
		if !ok || key <= last || len(key) > MaxHeaderKey || n == MaxHeaders {
			return "", nil, "", false
		}
		if value, pairs, ok = cutSized(pairs); !ok {
			return "", nil, "", false
		}
		switch last = key; {
		case key != KindKey:
			if header == nil {
				header = map[string]string{}
			}
			header[key] = value
		case value == "" || len(value) > MaxHeaderKey:
			return "", nil, "", false
		default:
			kind = value
		}
	}
	return kind, header, payload, true
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
