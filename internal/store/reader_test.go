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
		read  func(r *Reader)
		good  bool
	}{
		"all of it":              {[]any{int64(1), "a"}, func(r *Reader) { r.Int(); r.Text() }, true},
		"no list":                {int64(1), func(*Reader) {}, false},
		"nothing":                {nil, func(*Reader) {}, false},
		"a part is left":         {[]any{int64(1), "a"}, func(r *Reader) { r.Int() }, false},
		"a part is missing":      {[]any{int64(1)}, func(r *Reader) { r.Int(); r.Int() }, false},
		"another type":           {[]any{"1"}, func(r *Reader) { r.Int() }, false},
		"too low":                {[]any{int64(0)}, func(r *Reader) { r.Between(1, 3) }, false},
		"too high":               {[]any{int64(4)}, func(r *Reader) { r.Between(1, 3) }, false},
		"the bounds":             {[]any{int64(1), int64(3)}, func(r *Reader) { r.Between(1, 3); r.Between(1, 3) }, true},
		"a score":                {[]any{"1.5"}, func(r *Reader) { r.Score() }, true},
		"an infinite score":      {[]any{"-inf"}, func(r *Reader) { r.Score() }, false},
		"any infinite score":     {[]any{"inf"}, func(r *Reader) { r.AnyScore() }, true},
		"scores as numbers":      {[]any{int64(3), 1.5}, func(r *Reader) { r.Score(); r.Score() }, true},
		"a score that is a list": {[]any{[]any{}}, func(r *Reader) { r.Score() }, false},
		"no number":              {[]any{"nan"}, func(r *Reader) { r.AnyScore() }, false},
		"perhaps a score":        {[]any{"", "1.5"}, func(r *Reader) { r.MaybeScore(); r.MaybeScore() }, true},
		"no score":               {[]any{""}, func(r *Reader) { r.Score() }, false},
		"an answer":              {[]any{int64(-1), int64(4)}, func(r *Reader) { r.Answer(); r.Answer() }, true},
		"no answer":              {[]any{int64(5)}, func(r *Reader) { r.Answer() }, false},
		"an attempt that is bad": {[]any{"id", "1", "x", ""}, func(r *Reader) { r.Listed() }, false},
		"what was left out":      {[]any{"id", "1", "1", int64(5)}, func(r *Reader) { r.Listed() }, true},
		"nothing was left out":   {[]any{"id", "1", "1", int64(0)}, func(r *Reader) { r.Listed() }, false},
	} {
		r := Read(read.reply)
		read.read(&r)
		if read.good {
			require.NoError(t, r.Err(), name)
		} else {
			require.ErrorIs(t, r.Err(), redisexec.ErrCorrupt, name)
		}
	}
}

// TestExchange_ReadsEachPart of a reply to a script that was to finish two tasks and to claim others.
func TestExchange_ReadsEachPart(t *testing.T) {
	reply := func(change func(parts []any)) []any {
		parts := []any{int64(2), "9.5", []any{"a", "b"}, []any{int64(1), int64(3)}, []any{"p", ""}, "1.5 2.5", []any{int64(1), int64(0)}, int64(-7), int64(4), int64(2)}
		change(parts)
		return parts
	}
	x, err := Exchange(reply(func([]any) {}), 2, AsTask)
	require.NoError(t, err)
	require.Equal(t, Exchanged[Task]{
		Answers: []Answer{Accepted, Stale}, More: true, Receipt: "9.5", Next: -7 * time.Microsecond, Waiting: 4, Place: 2,
		Tasks: []Task{
			{ID: "a", Payload: []byte("p"), Score: 9.5, Due: 1.5, Attempt: 1},
			{ID: "b", Score: 9.5, Due: 2.5, Attempt: 3},
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
		_, err := Exchange(reply(change), 2, AsTask)
		require.ErrorIs(t, err, redisexec.ErrCorrupt, name)
	}
	all, err := Exchange(reply(func(p []any) { p[2], p[3], p[4], p[5], p[6] = []any{}, []any{}, []any{}, "", []any{} }), 2, AsTask)
	require.NoError(t, err)
	require.Equal(t, []Answer{Accepted, Accepted}, all.Answers, "nothing is said if all are accepted")
}
