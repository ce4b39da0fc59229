package fromasynq

import (
	"errors"
	"fmt"
	"time"

	"google.golang.org/protobuf/encoding/protowire"
)

// Message is what asynq stores of a task, as asynq v0.26.0 writes it.
type Message struct {
	Type    string
	Payload []byte
	Headers map[string]string
	ID      string
	// Retry is how often the task may be retried, and Retried how often it was.
	Retry, Retried int
	LastError      string
	LastFailed     time.Time // zero for never
	Timeout        time.Duration
	Deadline       time.Time // zero for none
	Retention      time.Duration
	UniqueKey      string
	Group          string
}

// The numbers of the fields in asynq's internal/proto/asynq.proto.
const (
	fieldType, fieldPayload, fieldID, fieldQueue, fieldRetry, fieldRetried, fieldError, fieldTimeout           = 1, 2, 3, 4, 5, 6, 7, 8
	fieldDeadline, fieldUnique, fieldFailed, fieldRetention, fieldCompleted, fieldGroup, fieldHeaders, numbers = 9, 10, 11, 12, 13, 14, 15, 16
)

var errMessage = errors.New("it is no task as asynq v0.26.0 writes it")

// Decode reads a message. A field that asynq v0.26.0 does not have is an error: what it means would
// be lost.
func Decode(stored string) (m Message, err error) {
	var texts [numbers]string
	var integers [numbers]int64
	for rest := []byte(stored); len(rest) > 0; {
		field, kind, n := protowire.ConsumeTag(rest)
		if n < 0 || field >= numbers {
			return m, fmt.Errorf("%w: field %d", errMessage, field)
		}
		rest = rest[n:]
		switch kind {
		case protowire.BytesType:
			var text []byte
			if text, n = protowire.ConsumeBytes(rest); n >= 0 && field == fieldHeaders {
				err = m.addHeader(text)
			}
			texts[field] = string(text)
		case protowire.VarintType:
			var integer uint64
			integer, n = protowire.ConsumeVarint(rest)
			integers[field] = int64(integer)
		default:
			n = -1
		}
		if n < 0 || err != nil {
			return m, fmt.Errorf("%w: field %d", errMessage, field)
		}
		rest = rest[n:]
	}
	m.Type, m.ID, m.LastError, m.UniqueKey, m.Group = texts[fieldType], texts[fieldID], texts[fieldError], texts[fieldUnique], texts[fieldGroup]
	if texts[fieldPayload] != "" {
		m.Payload = []byte(texts[fieldPayload])
	}
	m.Retry, m.Retried = int(integers[fieldRetry]), int(integers[fieldRetried])
	m.Timeout, m.Retention = time.Duration(integers[fieldTimeout])*time.Second, time.Duration(integers[fieldRetention])*time.Second
	m.LastFailed, m.Deadline = unix(integers[fieldFailed]), unix(integers[fieldDeadline])
	return m, nil
}

// addHeader reads an entry of the map of headers.
func (m *Message) addHeader(entry []byte) error {
	var pair [3]string
	for len(entry) > 0 {
		field, kind, n := protowire.ConsumeTag(entry)
		if n < 0 || kind != protowire.BytesType || field > 2 {
			return errMessage
		}
		text, k := protowire.ConsumeBytes(entry[n:])
		if k < 0 {
			return errMessage
		}
		pair[field], entry = string(text), entry[n+k:]
	}
	if m.Headers == nil {
		m.Headers = map[string]string{}
	}
	m.Headers[pair[1]] = pair[2]
	return nil
}

// unix returns a time of Unix seconds, zero for 0.
func unix(seconds int64) time.Time {
	if seconds == 0 {
		return time.Time{}
	}
	return time.Unix(seconds, 0)
}
