package operations

import (
	"context"
	"fmt"
	"maps"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"
)

// until stands before the end of a key's life.
const until = " until "

// State is everything that the servers hold at keys that have a name in them, to the bit, and until
// when.
func State(t *testing.T, rdb redis.UniversalClient, name string) map[string]string {
	t.Helper()
	ctx, state := t.Context(), map[string]string{}
	for _, key := range keys(t, rdb, "*"+name+"*") {
		var content any
		switch rdb.Type(ctx, key).Val() {
		case "string":
			content = rdb.Get(ctx, key).Val()
		case "hash":
			content = rdb.HGetAll(ctx, key).Val()
		case "zset":
			content = rdb.ZRangeWithScores(ctx, key, 0, -1).Val()
		}
		state[key] = fmt.Sprint(content, until, endOf(ctx, rdb, key))
	}
	return state
}

// endOf returns when a key's life ends, in milliseconds. Miniredis adds what is left to a present that
// may be later than what it was noted at, if the processor is taken from it: the earliest of some
// answers is right.
func endOf(ctx context.Context, rdb redis.UniversalClient, key string) int64 {
	end := rdb.PExpireTime(ctx, key).Val().Milliseconds()
	for i := 0; i < 4 && end > 0; i++ {
		end = min(end, rdb.PExpireTime(ctx, key).Val().Milliseconds())
	}
	return end
}

// Same fails the test if a state has changed. Keys may end up to 5 ms earlier or later: miniredis
// notes what is left of a life, and the end is that and the present, each to the millisecond.
func Same(t testing.TB, before, after map[string]string, msgAndArgs ...any) {
	t.Helper()
	after = maps.Clone(after)
	for key, now := range after {
		content, end, _ := strings.Cut(now, until)
		contentBefore, endBefore, _ := strings.Cut(before[key], until)
		from, _ := strconv.ParseInt(endBefore, 10, 64)
		to, _ := strconv.ParseInt(end, 10, 64)
		if content == contentBefore && max(from-to, to-from) <= 5 {
			after[key] = before[key]
		}
	}
	require.Equal(t, before, after, msgAndArgs...)
}

func keys(t *testing.T, rdb redis.UniversalClient, pattern string) (all []string) {
	var mu sync.Mutex
	add := func(ctx context.Context, c redis.Cmdable) error {
		found, err := c.Keys(ctx, pattern).Result()
		mu.Lock()
		defer mu.Unlock()
		all = append(all, found...)
		return err
	}
	err := error(nil)
	if cluster, ok := rdb.(*redis.ClusterClient); ok {
		err = cluster.ForEachMaster(t.Context(), func(ctx context.Context, c *redis.Client) error { return add(ctx, c) })
	} else {
		err = add(t.Context(), rdb)
	}
	require.NoError(t, err)
	return all
}

var (
	tokens = regexp.MustCompile(`[A-Z2-7]{26}`)
	// times are in seconds, milliseconds or, as fences, microseconds.
	times = regexp.MustCompile(`1\.[0-9]+e\+(09|12)|1[0-9]{9}([0-9]{3}([0-9]{3})?)?(\.[0-9]+)?`)
)

// Outline is a state without what differs from run to run: tokens, and times to less than a quarter
// of an hour.
func Outline(state map[string]string) map[string]string {
	outline := map[string]string{}
	for key, text := range state {
		text = tokens.ReplaceAllString(text, "a token")
		outline[key] = times.ReplaceAllStringFunc(text, func(number string) string {
			at, _ := strconv.ParseFloat(number, 64)
			for at > 1e10 {
				at /= 1000
			}
			return "in " + time.Until(time.UnixMilli(int64(at*1000))).Round(15*time.Minute).String()
		})
	}
	return outline
}
