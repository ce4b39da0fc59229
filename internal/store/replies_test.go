package store_test

import (
	"math"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice/internal/lease"
	"github.com/sluice-go/sluice/internal/redisexec"
	"github.com/sluice-go/sluice/internal/store"
)

// FuzzDurations: what is sent is never less than was asked for, nor a microsecond more;
// and a deadline lies within its TTL.
func FuzzDurations(f *testing.F) {
	for _, d := range []time.Duration{0, 1, 999, time.Microsecond, time.Microsecond + 1, time.Second - 1, time.Hour, store.LongestDuration} {
		f.Add(int64(d))
	}
	f.Fuzz(func(t *testing.T, ns int64) {
		d := time.Duration(ns)
		if d < 0 || d > store.LongestDuration {
			return
		}
		us := store.CeilMicros(d)
		require.GreaterOrEqual(t, us*1000, int64(d))
		require.Less(t, us*1000-int64(d), int64(1000))
		seconds, fraction, ok := strings.Cut(store.Micros(us), ".")
		require.True(t, ok)
		require.Len(t, fraction, 6)
		whole, err := strconv.ParseInt(seconds+fraction, 10, 64)
		require.NoError(t, err)
		require.Equal(t, us, whole)
		if d >= time.Millisecond {
			sent := time.Unix(0, 0)
			require.True(t, lease.SafeUntil(sent, d).After(sent))
			require.True(t, lease.SafeUntil(sent, d).Before(sent.Add(d)))
		}
	})
}

// FuzzReplies: a reply that no script gives is ErrCorrupt.
func FuzzReplies(f *testing.F) {
	for _, text := range []string{"", "*", "i1", "sx", "*i2s1.5i0i1sids1sp", "*ssids1.5i1i7", "*ssids1.5i1i-7", "*s1.5i1i7i4sr", "*ssids1.5i1sri7", "*i0s1.5i-1i0", "*i0si3", "*i9999999999999sai3", "*i-2si0", "*i1sas1.5s2sp", "*i1i2i3ssss", "*sinf", "*i-1s1e999", "n", "*n", "**"} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		reply := replyOf(text)
		x, err := store.DecodeExchange(reply, 0)
		errs := []error{err}
		if err == nil {
			require.True(t, len(x.Tasks) == 0 || x.Receipt != "")
			require.True(t, 0 <= x.Head.Off && x.Head.Off <= time.Hour, "no overflow")
		}
		for _, e := range x.Tasks {
			require.False(t, math.IsNaN(e.Score) || math.IsInf(e.Score, 0))
		}
		for s := store.StateScheduled; s <= store.StateDone; s++ {
			_, listed, err := store.DecodeListed(s, reply)
			errs = append(errs, err)
			for _, i := range listed {
				require.GreaterOrEqual(t, i.Omitted, 0)
				require.Equal(t, s, i.State)
				require.True(t, s == store.StateDead || !math.IsNaN(i.Score) && !math.IsInf(i.Score, 0))
			}
		}
		_, err = store.DecodeRestored[int](reply, 1)
		errs = append(errs, err)
		_, err = store.DecodeStates(reply, 1)
		errs = append(errs, err)
		_, _, err = store.AppendOutcomes([]int(nil), reply, 1)
		errs = append(errs, err)
		_, err = store.DecodeStats(reply)
		errs = append(errs, err)
		_, err = store.DecodeHeads(reply, 1)
		errs = append(errs, err)
		_, err = store.DecodeReport(reply, []store.Item{{Disposition: store.Disposition{Action: store.Retry}}})
		errs = append(errs, err)
		_, err = store.DecodeExtended(reply, 1)
		errs = append(errs, err)
		_, err = store.DecodeAcquired(reply)
		errs = append(errs, err)
		_, _, err = store.DecodeAdopted(reply)
		errs = append(errs, err)
		_, err = store.DecodeForced(reply)
		errs = append(errs, err)
		_, err = store.DecodeInspected(reply)
		errs = append(errs, err)
		_, _, err = store.DecodeGot(reply, "id")
		errs = append(errs, err)
		for _, err := range errs {
			if err != nil {
				require.ErrorIs(t, err, redisexec.ErrCorrupt)
			}
		}
	})
}

// replyOf makes a reply of a text: * begins a list, i an integer, s a string, and n is
// nil.
func replyOf(text string) any {
	if list, ok := strings.CutPrefix(text, "*"); ok {
		items := []any{}
		for start, i := 0, 1; i <= len(list); i++ {
			if i == len(list) || strings.IndexByte("isn*", list[i]) >= 0 {
				if list[start] != '*' {
					items = append(items, replyOf(list[start:i]))
				}
				start = i
			}
		}
		return items
	}
	switch {
	case strings.HasPrefix(text, "i"):
		n, _ := strconv.ParseInt(text[1:], 10, 64)
		return n
	case strings.HasPrefix(text, "s"):
		return text[1:]
	}
	return nil
}

// TestClaimed_OneDueTimeForEachTask: another number of due times than of tasks is ErrCorrupt, and a
// reply that is cut gives each task its own.
func TestClaimed_OneDueTimeForEachTask(t *testing.T) {
	reply := func(dues any) []any {
		ids := []any{"a", "b", "c"}
		return []any{int64(0), "9.5", ids, []any{}, []any{}, dues, []any{}, int64(0), int64(0), int64(-1)}
	}
	for _, dues := range []any{"1.5 2.5", "1.5 2.5 3.5 4.5", "", " 1.5 2.5 3.5", "1.5  3.5", "1.5 inf 3.5", "1.5 nan 3.5", "1.5,2.5,3.5", []any{"1.5", "2.5", "3.5"}} {
		_, err := store.DecodeExchange(reply(dues), 0)
		require.ErrorIs(t, err, redisexec.ErrCorrupt, "%q", dues)
	}
	for n := range 5 {
		var got []store.Task
		rest, err := store.DecodeExchange(reply("1.5 2.5 3.5"), 0)
		require.NoError(t, err)
		first := rest.Cut(n)
		require.Len(t, first.Tasks, min(n, 3))
		got = append(append(got, first.Tasks...), rest.Tasks...)
		require.Len(t, got, 3)
		for i, e := range got {
			require.Equal(t, string(rune('a'+i)), e.ID)
			require.Equal(t, store.TimeOf(float64(i)+1.5), e.Due)
		}
	}
}
