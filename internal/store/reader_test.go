package store

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice/internal/redisexec"
)

// TestReader_TakesNothingElse: a reply is read whole, and each part is what is asked for.
func TestReader_TakesNothingElse(t *testing.T) {
	for name, read := range map[string]struct {
		reply any
		read  func(r *reader)
		good  bool
	}{
		"all of it":              {[]any{int64(1), "a"}, func(r *reader) { r.int(); r.text() }, true},
		"no list":                {int64(1), func(*reader) {}, false},
		"nothing":                {nil, func(*reader) {}, false},
		"a part is left":         {[]any{int64(1), "a"}, func(r *reader) { r.int() }, false},
		"a part is missing":      {[]any{int64(1)}, func(r *reader) { r.int(); r.int() }, false},
		"another type":           {[]any{"1"}, func(r *reader) { r.int() }, false},
		"too low":                {[]any{int64(0)}, func(r *reader) { r.between(1, 3) }, false},
		"too high":               {[]any{int64(4)}, func(r *reader) { r.between(1, 3) }, false},
		"the bounds":             {[]any{int64(1), int64(3)}, func(r *reader) { r.between(1, 3); r.between(1, 3) }, true},
		"a score":                {[]any{"1.5"}, func(r *reader) { r.score() }, true},
		"an infinite score":      {[]any{"-inf"}, func(r *reader) { r.score() }, false},
		"any infinite score":     {[]any{"inf"}, func(r *reader) { r.anyScore() }, true},
		"scores as numbers":      {[]any{int64(3), 1.5}, func(r *reader) { r.score(); r.score() }, true},
		"a score that is a list": {[]any{[]any{}}, func(r *reader) { r.score() }, false},
		"no number":              {[]any{"nan"}, func(r *reader) { r.anyScore() }, false},
		"perhaps a score":        {[]any{"", "1.5"}, func(r *reader) { r.maybeScore(); r.maybeScore() }, true},
		"no score":               {[]any{""}, func(r *reader) { r.score() }, false},
		"an answer":              {[]any{int64(-1), int64(4)}, func(r *reader) { r.answer(); r.answer() }, true},
		"no answer":              {[]any{int64(5)}, func(r *reader) { r.answer() }, false},
		"an attempt that is bad": {[]any{"id", "x", ""}, func(r *reader) { r.task(r.text(), r.part(), r.part()) }, false},
		"what was left out":      {[]any{"id", "1", int64(5)}, func(r *reader) { r.task(r.text(), r.part(), r.part()) }, true},
		"nothing was left out":   {[]any{"id", "1", int64(0)}, func(r *reader) { r.task(r.text(), r.part(), r.part()) }, false},
	} {
		r := newReader(read.reply)
		read.read(&r)
		if read.good {
			require.NoError(t, r.err(), name)
		} else {
			require.ErrorIs(t, r.err(), redisexec.ErrCorrupt, name)
		}
	}
}

// TestExchange_ReadsEachPart of a reply to a script that was to finish two tasks and to claim
// others.
func TestExchange_ReadsEachPart(t *testing.T) {
	reply := func(change func(parts []any)) []any {
		parts := []any{int64(2), "9.5", []any{"a", "b"}, []any{int64(1), int64(3)}, []any{"p", ""}, "1.5 2.5", []any{int64(1), int64(0)}, int64(7), int64(4), int64(2)}
		change(parts)
		return parts
	}
	x, err := DecodeExchange(reply(func([]any) {}), 2)
	require.NoError(t, err)
	require.Equal(t, Exchanged{
		Answers: []Answer{Accepted, Stale}, More: true, Lacks: true, Receipt: "9.5", Head: Head{Off: 7 * time.Microsecond, Waiting: 4, Place: 2},
		Tasks: []Task{
			{ID: "a", Payload: []byte("p"), Score: 9.5, Due: TimeOf(1.5), Attempt: 1},
			{ID: "b", Score: 9.5, Due: TimeOf(2.5), Attempt: 3},
		},
	}, x)
	for name, change := range map[string]func(parts []any){
		"a task without an attempt": func(p []any) { p[3] = []any{int64(1)} },
		"a task without a payload":  func(p []any) { p[4] = []any{"p"} },
		"an ID that is no text":     func(p []any) { p[2] = []any{"a", int64(1)} },
		"a payload left out":        func(p []any) { p[4] = []any{"p", int64(9)} },
		"tasks without a receipt":   func(p []any) { p[1] = "" },
		"an answer too few":         func(p []any) { p[6] = []any{int64(1)} },
		"an answer too many":        func(p []any) { p[6] = []any{int64(1), int64(1), int64(1)} },
	} {
		_, err := DecodeExchange(reply(change), 2)
		require.ErrorIs(t, err, redisexec.ErrCorrupt, name)
	}
	all, err := DecodeExchange(reply(func(p []any) { p[2], p[3], p[4], p[5], p[6] = []any{}, []any{}, []any{}, "", []any{} }), 2)
	require.NoError(t, err)
	require.Equal(t, []Answer{Accepted, Accepted}, all.Answers, "nothing is said if all are accepted")
}
