package operations

import (
	"fmt"
	"regexp"
	"strconv"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"
)

// State is everything that one server holds at keys of a pattern, to the bit, and until when.
func State(t *testing.T, rdb redis.UniversalClient, pattern string) map[string]string {
	t.Helper()
	ctx, state := t.Context(), map[string]string{}
	keys, err := rdb.Keys(ctx, pattern).Result()
	require.NoError(t, err)
	for _, key := range keys {
		var content any
		switch rdb.Type(ctx, key).Val() {
		case "string":
			content = rdb.Get(ctx, key).Val()
		case "hash":
			content = rdb.HGetAll(ctx, key).Val()
		case "zset":
			content = rdb.ZRangeWithScores(ctx, key, 0, -1).Val()
		}
		state[key] = fmt.Sprint(content, " until ", rdb.PExpireTime(ctx, key).Val().Milliseconds())
	}
	return state
}

var (
	tokens = regexp.MustCompile(`[A-Z2-7]{26}`)
	// times are in seconds, milliseconds or, as fences, microseconds.
	times = regexp.MustCompile(`1\.[0-9]+e\+(09|12)|1[0-9]{9}([0-9]{3}([0-9]{3})?)?(\.[0-9]+)?`)
)

// Outline is a state without what differs from run to run: tokens, and times to less than a quarter of an hour.
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
