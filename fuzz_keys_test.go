package sluice

import (
	"errors"
	"math"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice/internal/redistest"
)

var suffixes = []string{":tasks", ":dead", ":wake", ":fence"}

// FuzzKeys: all keys of a name are in one Cluster slot, as Redis itself says, and no
// two names share one.
func FuzzKeys(f *testing.F) {
	for _, name := range []string{"stock", "{eu}:stock", "a}b", "{}", "{}x", "{a}{b}", "x{a}", "{a", "a}", "{{a}}", "\x00{\xff}", "{a}:dead", "a:dead", "{a}:x:tasks", "{0}", "{{0}"} {
		f.Add("Queue:", name)
		f.Add("", name)
		f.Add("{p}", name)
	}
	rdb := redistest.Start(f, "--cluster-enabled", "yes").Client(f)
	f.Fuzz(func(t *testing.T, prefix, name string) {
		key, err := keyOf(prefix, name)
		if err != nil {
			require.ErrorIs(t, err, ErrInvalidName)
			require.ErrorIs(t, err, ErrInvalid)
			return
		}
		slots := []*redis.IntCmd{}
		_, err = rdb.Pipelined(t.Context(), func(p redis.Pipeliner) error {
			slots = append(slots, p.ClusterKeySlot(t.Context(), key))
			for _, suffix := range suffixes {
				slots = append(slots, p.ClusterKeySlot(t.Context(), companion(key, suffix)))
			}
			return nil
		})
		require.NoError(t, err)
		for i, suffix := range suffixes {
			other := companion(key, suffix)
			require.Equal(t, slots[0].Val(), slots[i+1].Val(), "%q", other)
			// Back from the companion: there is one key that it can be of, and no name
			// whose key it is.
			require.Equal(t, key, ownerOf(strings.TrimSuffix(other, suffix)))
			_, err := keyOf("", other)
			require.ErrorIs(t, err, ErrInvalidName, "%q is a name, too", other)
		}
	})
}

// ownerOf is the key whose companions begin so.
func ownerOf(start string) string {
	inner, opened := strings.CutPrefix(start, "{")
	inner, closed := strings.CutSuffix(inner, "}")
	if opened && closed && !strings.ContainsAny(inner, "{}") {
		return inner
	}
	return start
}

// FuzzDurations: what is sent is never less than was asked for, nor a microsecond more;
// and a lock's deadline lies within its TTL.
func FuzzDurations(f *testing.F) {
	for _, d := range []time.Duration{0, 1, 999, time.Microsecond, time.Microsecond + 1, time.Second - 1, time.Hour, longest} {
		f.Add(int64(d))
	}
	f.Fuzz(func(t *testing.T, ns int64) {
		d := time.Duration(ns)
		if d < 0 || d > longest {
			return
		}
		us := ceilMicros(d)
		require.GreaterOrEqual(t, us*1000, int64(d))
		require.Less(t, us*1000-int64(d), int64(1000))
		seconds, fraction, ok := strings.Cut(micros(us), ".")
		require.True(t, ok)
		require.Len(t, fraction, 6)
		whole, err := strconv.ParseInt(seconds+fraction, 10, 64)
		require.NoError(t, err)
		require.Equal(t, us, whole)
		if d >= time.Millisecond {
			sent := time.Unix(0, 0)
			require.True(t, deadline(sent, d).After(sent))
			require.True(t, deadline(sent, d).Before(sent.Add(d)))
		}
	})
}

// FuzzReplies: a server that answers nonsense gets ErrCorrupt said of it.
func FuzzReplies(f *testing.F) {
	for _, text := range []string{"", "*", "i1", "sx", "*i2s1.5sids1sp", "*i0s1.5", "*i1sas1.5s2sp", "*i1i2i3ssss", "*sinf", "*i-1s1e999", "n", "*n", "**"} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		reply := replyOf(text)
		_, claimed, err := decodeClaimed(reply)
		errs := []error{err}
		if err == nil {
			require.NotEmpty(t, claimedUntil(reply))
		}
		_, entries, err := decodeEntries(reply)
		errs = append(errs, err)
		for _, e := range append(claimed, entries...) {
			require.False(t, math.IsNaN(e.Score) || math.IsInf(e.Score, 0))
			_ = e.Time()
		}
		_, _, err = decodeDead(reply)
		errs = append(errs, err)
		_, err = appendOutcomes(nil, reply, 1)
		errs = append(errs, err)
		_, err = decodeStats(reply)
		errs = append(errs, err)
		_, err = decodeNext(reply)
		errs = append(errs, err)
		_, err = decodeGet("id", reply)
		if !errors.Is(err, ErrNotFound) {
			errs = append(errs, err)
		}
		_, err = decodeHeartbeat(answer{reply: reply})
		if !errors.Is(err, ErrStale) {
			errs = append(errs, err)
		}
		for _, err := range errs {
			if err != nil {
				require.ErrorIs(t, err, ErrCorrupt)
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
